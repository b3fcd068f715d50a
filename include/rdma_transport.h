/* DRAFT of the C ABI. Replaced by the cbindgen output of src/ffi/; names, argument order and
 * meaning here are binding. */
#ifndef RDMA_TRANSPORT_H
#define RDMA_TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define RDMA_ABI_VERSION 1
#define RDMA_VERSION_MAJOR 0
#define RDMA_VERSION_MINOR 1
#define RDMA_VERSION_PATCH 0
#define RDMA_MAX_KEY_LEN 65536
#define RDMA_MAX_DIMS 254
#define RDMA_MAX_NAME_LEN 255

/* Codes: numbers of gRPC / absl / TensorFlow. */
typedef int32_t rdma_code_t;
#define RDMA_OK 0
#define RDMA_CANCELLED 1
#define RDMA_UNKNOWN 2
#define RDMA_INVALID_ARGUMENT 3
#define RDMA_DEADLINE_EXCEEDED 4
#define RDMA_NOT_FOUND 5
#define RDMA_ALREADY_EXISTS 6
#define RDMA_PERMISSION_DENIED 7
#define RDMA_RESOURCE_EXHAUSTED 8
#define RDMA_FAILED_PRECONDITION 9
#define RDMA_ABORTED 10
#define RDMA_OUT_OF_RANGE 11
#define RDMA_UNIMPLEMENTED 12
#define RDMA_INTERNAL 13
#define RDMA_UNAVAILABLE 14
#define RDMA_DATA_LOSS 15
#define RDMA_UNAUTHENTICATED 16

/* Why an operation ended, finer than its code (rdma_transfer_info_t.reason). */
#define RDMA_REASON_NONE 0
#define RDMA_REASON_CANCELLED 1          /* rdma_request_cancel or rdma_mgr_destroy          */
#define RDMA_REASON_DEADLINE 2           /* the operation's own deadline                     */
#define RDMA_REASON_PEER_GONE 3          /* process or connection ended                      */
#define RDMA_REASON_PEER_STALLED 4       /* connection up, peer answers nothing              */
#define RDMA_REASON_PEER_RESTARTED 5     /* same name, new incarnation                       */
#define RDMA_REASON_STEP_ABORTED 6
#define RDMA_REASON_REMOTE_ERROR 7       /* the peer answered ERROR_STATUS                   */
#define RDMA_REASON_LOCAL_ERROR 8        /* allocation, registration, protocol violation ... */

/* Protocol that carried a transfer. */
#define RDMA_PROTOCOL_AUTO 0
#define RDMA_PROTOCOL_LOCAL 1            /* both ends in this manager                        */
#define RDMA_PROTOCOL_EAGER 2            /* content inside the response message              */
#define RDMA_PROTOCOL_DIRECT_PUT 3       /* RDMA write with immediate                        */
#define RDMA_PROTOCOL_DIRECT_GET 4       /* RDMA read by the receiver                        */

#define RDMA_PROGRESS_THREAD 0           /* library's own progress thread (default)          */
#define RDMA_PROGRESS_MANUAL 1           /* only inside rdma_mgr_progress/_wait/rdma_recv    */

#define RDMA_TENSOR_DEAD 1u              /* is_dead: no content                              */
#define RDMA_TENSOR_SERIALIZED 2u        /* content is the runtime's serialised form         */

#define RDMA_LOG_ERROR 1
#define RDMA_LOG_WARN 2
#define RDMA_LOG_INFO 3
#define RDMA_LOG_DEBUG 4

#define RDMA_DEVICE_HOST 0u              /* device id of host memory                         */

typedef struct rdma_mgr rdma_mgr_t;      /* opaque */
typedef uint64_t rdma_request_t;         /* monotonic id, never reused; 0 is none            */
typedef uint64_t rdma_response_t;        /* id of a request a peer made of us                */

typedef struct rdma_tensor {
  size_t struct_size;
  const void *data;                      /* may be NULL when nbytes == 0                     */
  uint64_t nbytes;
  const int64_t *dims;                   /* may be NULL when ndims == 0                      */
  uint32_t ndims;
  uint32_t dtype;                        /* the runtime's own number; carried, not read      */
  uint32_t flags;                        /* RDMA_TENSOR_*                                    */
  uint32_t device;                       /* RDMA_DEVICE_HOST or an id from register_device   */
} rdma_tensor_t;

typedef struct rdma_transfer_info {
  size_t struct_size;
  uint64_t bytes;
  uint64_t elapsed_ns;                   /* from the call (recv) or the match (send)         */
  const char *provider;                  /* "shm", "tcp", "ibverbs", "loopback", "local", "" */
  const char *peer;                      /* peer's name, "" for oneself                      */
  uint32_t protocol;                     /* RDMA_PROTOCOL_*                                  */
  uint32_t reason;                       /* RDMA_REASON_*                                    */
} rdma_transfer_info_t;

/* Callbacks. Strings and structs are borrowed for the call. `userdata` last. They run on the thread
 * that drives progress (the progress thread; or the caller of rdma_mgr_progress, rdma_mgr_wait,
 * rdma_recv, rdma_mgr_connect, rdma_mgr_destroy), with no lock held, and may call any function
 * except rdma_mgr_destroy of the same manager. */
typedef void (*rdma_log_fn)(int32_t level, const char *message, size_t message_len, void *userdata);
/* Ends a send: the library no longer reads the tensor. Once per accepted send. For content that was
 * copied at once it may run on the sending thread before rdma_send returns. */
typedef void (*rdma_send_done_fn)(rdma_code_t code, const char *message, size_t message_len,
                                  const rdma_transfer_info_t *info, void *userdata);
/* Ends a receive. `tensor` is NULL unless code == RDMA_OK. */
typedef void (*rdma_recv_done_fn)(rdma_code_t code, const char *message, size_t message_len,
                                  const rdma_tensor_t *tensor, const rdma_transfer_info_t *info,
                                  void *userdata);
/* Returns memory for meta->nbytes bytes, or NULL to fail the request (RDMA_RESOURCE_EXHAUSTED).
 * Runs inside rdma_recv_async (metadata cached) or on the progress thread; again if the metadata
 * changed: the earlier memory is then unused. Not called for dead or zero-size tensors. The memory
 * stays the caller's. */
typedef void *(*rdma_alloc_fn)(const rdma_tensor_t *meta, void *userdata);
/* A peer requests `key` of `step` that the local table lacks: answer with rdma_response_send or
 * rdma_response_fail, now or later, from any thread, once. */
typedef void (*rdma_source_fn)(rdma_mgr_t *mgr, rdma_response_t response, const char *peer,
                               size_t peer_len, const char *key, size_t key_len, int64_t step,
                               void *userdata);
/* To be called once by a device copy function when the copy is complete, from any thread. */
typedef void (*rdma_copy_done_fn)(rdma_code_t code, void *token);

typedef struct rdma_device_ops {         /* an accelerator's copy functions */
  size_t struct_size;
  void (*copy_to_host)(void *host, const void *device, uint64_t nbytes, rdma_copy_done_fn done,
                       void *token, void *userdata);
  void (*copy_from_host)(void *device, const void *host, uint64_t nbytes, rdma_copy_done_fn done,
                         void *token, void *userdata);
} rdma_device_ops_t;

typedef struct rdma_mgr_options {
  size_t struct_size;
  const char *name;                      /* this worker's name; NULL: generated              */
  const char *provider;                  /* NULL or "auto"; "loopback","shm","ibverbs","tcp" */
  const char *listen;                    /* "host:port", "[v6]:port", port 0 = any; NULL: 127.0.0.1:0 on first need */
  const char *secret;                    /* NULL: no authentication                          */
  size_t secret_len;
  int32_t progress;                      /* RDMA_PROGRESS_*                                  */
  int32_t protocol;                      /* RDMA_PROTOCOL_*; AUTO chooses per transfer       */
  int64_t timeout_ms;                    /* default deadline of an operation; > 0            */
  int64_t busy_poll_us;                  /* spin before sleeping; >= 0                       */
  int64_t peer_timeout_ms;               /* silence after which a peer counts as stalled     */
  uint64_t eager_max;                    /* 0: the provider's own                            */
  uint32_t meta_cache_entries;           /* LRU bound, per peer                              */
  uint32_t queue_depth;                  /* RDMA_QP_QUEUE_DEPTH; control messages in flight  */
  uint8_t checksum;                      /* 1: content validated end to end (xxh3)           */
  uint8_t tolerate_dup_recv;             /* 1: duplicate receives wait instead of failing    */
  uint8_t allow_remote;                  /* 1: may listen beyond loopback without a secret   */
  uint8_t use_rdma_cm;
  const char *ib_device;                 /* RDMA_DEVICE                                      */
  int32_t ib_port;                       /* RDMA_DEVICE_PORT; 0: first active                */
  int32_t ib_gid_index;                  /* RDMA_GID_INDEX; -1: chosen                       */
  int32_t ib_pkey_index;                 /* RDMA_QP_PKEY_INDEX                               */
  int32_t ib_timeout;                    /* RDMA_QP_TIMEOUT                                  */
  int32_t ib_retry_count;                /* RDMA_QP_RETRY_COUNT                              */
  int32_t ib_sl;                         /* RDMA_QP_SL                                       */
  int32_t ib_mtu;                        /* RDMA_QP_MTU in bytes; 0: active MTU              */
  int32_t ib_traffic_class;              /* RDMA_TRAFFIC_CLASS                               */
} rdma_mgr_options_t;

typedef struct rdma_recv_options {
  size_t struct_size;
  int64_t timeout_ms;                    /* 0: the manager's                                 */
  void *dst;                             /* destination given up front, or NULL              */
  uint64_t dst_len;
  rdma_alloc_fn alloc;                   /* used when dst is NULL; NULL too: library memory  */
  void *alloc_userdata;
  uint32_t device;                       /* where dst / alloc's memory lives                 */
} rdma_recv_options_t;

typedef struct rdma_send_options {
  size_t struct_size;
  int64_t timeout_ms;                    /* 0: waits until taken or the step is cleaned up   */
} rdma_send_options_t;

typedef struct rdma_peer_info {
  size_t struct_size;
  char name[256];
  char provider[16];                     /* "" while not connected                           */
  char reason[256];                      /* why this provider, or the last connect error     */
  char address[256];
  uint8_t incarnation[16];
  int32_t state;                         /* RDMA_PEER_*                                      */
  uint32_t channels;
  uint64_t bytes_sent, bytes_received;   /* tensor content                                   */
  uint64_t requests_sent, requests_received;
} rdma_peer_info_t;
#define RDMA_PEER_IDLE 0
#define RDMA_PEER_CONNECTING 1
#define RDMA_PEER_CONNECTED 2
#define RDMA_PEER_FAILED 3               /* last attempt failed; retried on use              */

typedef struct rdma_parsed_key {         /* TensorFlow's src;incarnation;dst;name;frame:iter */
  size_t struct_size;
  const char *src_device; size_t src_device_len;   /* all point into the key given           */
  const char *dst_device; size_t dst_device_len;
  const char *edge_name;  size_t edge_name_len;
  uint64_t src_incarnation;
  uint64_t frame, iter;
} rdma_parsed_key_t;

/* status, log, version */
const char *rdma_version(void);
uint32_t rdma_abi_version(void);
const char *rdma_code_name(rdma_code_t code);              /* never NULL */
size_t rdma_last_error(char *buf, size_t cap);             /* thread-local; returns full length */
rdma_code_t rdma_set_log_callback(rdma_log_fn log, int32_t level, void *userdata);
/* text: writes up to cap bytes incl. NUL; *out_len = length without NUL; RDMA_OUT_OF_RANGE if cut. */
rdma_code_t rdma_providers(char *buf, size_t cap, size_t *out_len);   /* JSON: name, available, reason */

/* manager */
rdma_code_t rdma_mgr_options_init(rdma_mgr_options_t *options, size_t struct_size);
rdma_code_t rdma_recv_options_init(rdma_recv_options_t *options, size_t struct_size);
rdma_code_t rdma_send_options_init(rdma_send_options_t *options, size_t struct_size);
rdma_code_t rdma_tensor_init(rdma_tensor_t *tensor, size_t struct_size);
rdma_code_t rdma_mgr_create(const rdma_mgr_options_t *options /* NULL: defaults */, rdma_mgr_t **out);
rdma_code_t rdma_mgr_destroy(rdma_mgr_t *mgr);             /* ends every operation first */

/* peers. Peer names: C strings. */
rdma_code_t rdma_mgr_listen(rdma_mgr_t *mgr, const char *address, char *bound, size_t cap, size_t *out_len);
rdma_code_t rdma_mgr_add_peer(rdma_mgr_t *mgr, const char *peer, const char *address);
rdma_code_t rdma_mgr_connect(rdma_mgr_t *mgr, const char *peer, int64_t timeout_ms /* 0: start only */);
rdma_code_t rdma_mgr_disconnect(rdma_mgr_t *mgr, const char *peer);
rdma_code_t rdma_mgr_peer_info(const rdma_mgr_t *mgr, const char *peer, rdma_peer_info_t *out);
rdma_code_t rdma_mgr_export_address(rdma_mgr_t *mgr, uint8_t *blob, size_t cap, size_t *out_len);
rdma_code_t rdma_mgr_import_address(rdma_mgr_t *mgr, const uint8_t *blob, size_t blob_len,
                                    char *peer, size_t cap, size_t *out_len); /* adds/updates the peer, tells its name */

/* progress */
rdma_code_t rdma_mgr_progress(rdma_mgr_t *mgr, uint32_t *events);       /* never blocks */
rdma_code_t rdma_mgr_wait(rdma_mgr_t *mgr, int64_t timeout_ms);         /* until something happened */
rdma_code_t rdma_mgr_event_fd(rdma_mgr_t *mgr, int *fd);                /* readable: call progress */

/* memory */
rdma_code_t rdma_mem_register(rdma_mgr_t *mgr, void *addr, size_t len, uint32_t device);
rdma_code_t rdma_mem_unregister(rdma_mgr_t *mgr, void *addr);
rdma_code_t rdma_mem_alloc(rdma_mgr_t *mgr, size_t len, void **out);    /* shared, registered, 64-byte aligned */
rdma_code_t rdma_mem_free(rdma_mgr_t *mgr, void *addr);
rdma_code_t rdma_mgr_register_device(rdma_mgr_t *mgr, const rdma_device_ops_t *ops, void *userdata, uint32_t *device);

/* rendezvous. done may be NULL. On a code other than RDMA_OK no callback runs. */
rdma_code_t rdma_send(rdma_mgr_t *mgr, const char *key, size_t key_len, int64_t step,
                      const rdma_tensor_t *tensor, const rdma_send_options_t *options,
                      rdma_send_done_fn done, void *userdata);
/* out_request NULL: library memory lives for the callback only. Otherwise: until rdma_request_release,
 * which must be called once. peer NULL or own name: local. */
rdma_code_t rdma_recv_async(rdma_mgr_t *mgr, const char *peer, const char *key, size_t key_len,
                            int64_t step, const rdma_recv_options_t *options, rdma_recv_done_fn done,
                            void *userdata, rdma_request_t *out_request);
rdma_code_t rdma_recv(rdma_mgr_t *mgr, const char *peer, const char *key, size_t key_len,
                      int64_t step, const rdma_recv_options_t *options, rdma_tensor_t *out,
                      rdma_request_t *out_request);
rdma_code_t rdma_request_cancel(rdma_mgr_t *mgr, rdma_request_t request);
rdma_code_t rdma_request_release(rdma_mgr_t *mgr, rdma_request_t request);
rdma_code_t rdma_step_abort(rdma_mgr_t *mgr, int64_t step, rdma_code_t code, const char *message, size_t message_len);
rdma_code_t rdma_step_cleanup(rdma_mgr_t *mgr, int64_t step);
rdma_code_t rdma_key_parse(const char *key, size_t key_len, rdma_parsed_key_t *out);
rdma_code_t rdma_key_build(const rdma_parsed_key_t *parts, char *buf, size_t cap, size_t *out_len);

/* the runtime's own rendezvous as the source */
rdma_code_t rdma_mgr_set_source(rdma_mgr_t *mgr, rdma_source_fn source, void *userdata); /* NULL: none */
rdma_code_t rdma_response_send(rdma_mgr_t *mgr, rdma_response_t response, const rdma_tensor_t *tensor,
                               rdma_send_done_fn done, void *userdata);
rdma_code_t rdma_response_fail(rdma_mgr_t *mgr, rdma_response_t response, rdma_code_t code,
                               const char *message, size_t message_len);

/* observability */
rdma_code_t rdma_mgr_stats_json(const rdma_mgr_t *mgr, char *buf, size_t cap, size_t *out_len);
rdma_code_t rdma_mgr_metrics(const rdma_mgr_t *mgr, char *buf, size_t cap, size_t *out_len);  /* Prometheus text */
rdma_code_t rdma_trace_start(rdma_mgr_t *mgr, const char *path);
rdma_code_t rdma_trace_stop(rdma_mgr_t *mgr);

#ifdef __cplusplus
}
#endif
#endif
