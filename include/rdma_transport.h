/*
 * rdma-transport: moves tensors and messages between processes by one-sided RDMA, shared memory or TCP.
 *
 * Generated from src/ffi/ by `UPDATE_HEADER=1 cargo test --test header`. Do not edit.
 *
 * Codes. Functions return an rdma_code_t. After one other than RDMA_OK, rdma_last_error tells this
 * thread what was wrong: the argument, its value, what is allowed. Every function may return
 * RDMA_INTERNAL, for a defect of the library, and lists the others that it returns. One that needs something of the system
 * may also return what that refuses: RDMA_RESOURCE_EXHAUSTED for what is used up, RDMA_PERMISSION_DENIED, and else
 * RDMA_UNAVAILABLE, as where a sandbox knows a system call not; the text names it.
 *
 * Outputs are written on success only. Text outputs are three arguments, `buf`, `cap`, `out_len`: at
 * most cap bytes are written including the NUL, and *out_len, unless out_len is NULL, is the length
 * of the whole text without it. A text that does not fit is cut between characters, and the function
 * returns RDMA_OUT_OF_RANGE: the one case in which outputs are written without success. `buf` NULL
 * with cap 0 asks for the length, with the same code.
 *
 * Structs that begin with struct_size are set up by their init function, or by setting struct_size
 * to sizeof of the struct and the rest to zero; rdma_mgr_options_t by its init function only, since
 * its defaults are not zero. Fields are only ever added at their end: smaller structs of older
 * headers have the defaults for what they lack, of larger ones the tail is neither read nor
 * written, but by the init functions, which set all of the struct_size bytes that they are given. A NULL where a function does not mention one is RDMA_INVALID_ARGUMENT.
 *
 * Names of workers are UTF-8 of 1 to RDMA_MAX_NAME_LEN bytes. Keys are bytes with a length.
 *
 * Threads. Every function may be called from any thread at any time, if it does not say otherwise.
 * Callbacks run with no lock held on the thread that drives progress: the library's own, or the
 * caller of rdma_mgr_progress, rdma_mgr_wait, rdma_mgr_connect, rdma_recv, rdma_msg_send,
 * rdma_msg_recv, rdma_msg_probe, rdma_msg_test, rdma_msg_wait, rdma_msg_detach, rdma_pair_connect, rdma_pair_close,
 * rdma_buffer_wait_send, rdma_buffer_wait_recv, rdma_buffer_test, rdma_buffer_destroy, rdma_unbound_wait_send,
 * rdma_unbound_wait_recv, rdma_unbound_test, rdma_unbound_destroy, rdma_mgr_meet, rdma_mgr_flush, rdma_mesh_connect,
 * rdma_mem_unregister or rdma_mgr_destroy; some also inside the call that set them up, as they say. They may call every
 * function; those that wait (the same, rdma_mgr_connect and rdma_pair_connect with a timeout; but not
 * rdma_msg_send with RDMA_MSG_BUFFERED, rdma_pair_close, rdma_buffer_test, rdma_buffer_destroy, rdma_unbound_test and
 * rdma_mem_unregister) return RDMA_FAILED_PRECONDITION there. Some that are given another manager than
 * the callback's wait instead, and hold its callbacks up.
 * What callbacks are given is borrowed for
 * the call. They must return: no exception (which ends the process) and no longjmp may leave them. `userdata` is handed
 * back as it was given, perhaps on another thread. A thread that ends inside a callback, by pthread_exit, pthread_cancel or
 * an interpreter's end (CPython before 3.14), is unwound up to the library, which goes on as if the callback had returned;
 * it ends where its outermost call does: see "Callbacks" in docs/abi.md. The library's threads have 2 MiB of stack, and
 * block all signals but those of a fault of their own.
 *
 * A thread that may be inside a function of the library, and not in a callback, must not be cancelled by pthread_cancel,
 * which ends the process there, or the thread when the call is over. To end a call of another thread: rdma_mgr_wake, rdma_mgr_destroy, rdma_store_destroy,
 * rdma_unbound_abort_wait_send, rdma_unbound_abort_wait_recv, or a timeout.
 *
 * A call that drives progress may copy content of any operation of the manager, and returns late, whatever its timeout, if
 * a page of that memory comes late (slow storage, swap, a handler of page faults): see "Threads" in docs/abi.md.
 *
 * Forks. What the parent created is of no use in a forked child: each function refuses it there. The child may
 * create a manager of its own if it was forked while there was none, or after exec; forked beside managers it is refused
 * (RDMA_FAILED_PRECONDITION), since locks of theirs may be held for ever there. The child of a process
 * with other threads may find another lock held for ever by one that it does not have, and hang in any call.
 * The number of an event descriptor (rdma_mgr_event_fd) stays taken there, by one that is never ready and is closed by exec, so
 * that an event loop can be told of the fork; the child may close it.
 *
 * Environment. These variables override the options of every manager; a wrong value fails
 * rdma_mgr_create: RDMA_PROVIDER (auto, loopback, shm, ibverbs, tcp), RDMA_PROTOCOL (auto, eager,
 * put, get, persistent, pipeline), RDMA_EAGER_LIMIT, RDMA_RNDV_EAGER_LIMIT, RDMA_MAX_SEND_SIZE,
 * RDMA_MIN_RDMA_PIPELINE_SIZE, RDMA_PIPELINE_FRAG_SIZE, RDMA_PIPELINE_SEND_LENGTH, RDMA_SEND_PIPELINE_DEPTH,
 * RDMA_MAX_RDMA_PER_REQUEST, RDMA_MIN_STRIPED_SIZE,
 * RDMA_TUNING (a file), RDMA_LISTEN, RDMA_AUTH_SECRET_FILE, RDMA_BUSY_POLL_US, RDMA_TIMEOUT_MS,
 * RDMA_PEER_TIMEOUT_MS, RDMA_LOG (error, warn, info, debug), RDMA_TRACE, RDMA_SHM_COPY (pool, cma, ring), RDMA_DEVICE,
 * RDMA_DEVICE_PORT, RDMA_GID_INDEX, RDMA_QP_PKEY_INDEX, RDMA_QP_QUEUE_DEPTH, RDMA_QP_TIMEOUT,
 * RDMA_QP_RETRY_COUNT, RDMA_QP_SL, RDMA_QP_MTU, RDMA_TRAFFIC_CLASS, RDMA_MAX_REGION, RDMA_REGISTRATION_CACHE. An empty one
 * counts as not set.
 */

#ifndef RDMA_TRANSPORT_H
#define RDMA_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Some functions have the names of structs (rdma_pair_info), as in C they may: g++ -Wshadow says so of each. Until the end of this file. */
#if defined(__cplusplus) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#define RDMA_TRANSPORT_DIAGNOSTICS_PUSHED
#endif

/**
 * Version of the ABI: grows when a function or a field is added, never otherwise.
 */
#define RDMA_ABI_VERSION 11

/**
 * Version of the library, major part.
 */
#define RDMA_VERSION_MAJOR 0

/**
 * Version of the library, minor part.
 */
#define RDMA_VERSION_MINOR 1

/**
 * Version of the library, patch.
 */
#define RDMA_VERSION_PATCH 0

/**
 * Longest key in bytes.
 */
#define RDMA_MAX_KEY_LEN 65536

/**
 * Most dimensions of a tensor.
 */
#define RDMA_MAX_DIMS 254

/**
 * Most bytes of the application beside a tensor.
 */
#define RDMA_MAX_USER_LEN 512

/**
 * Longest name of a worker in bytes, without the NUL.
 */
#define RDMA_MAX_NAME_LEN 255

/**
 * Success.
 */
#define RDMA_OK 0

/**
 * Cancelled by the caller, or by the end of its manager.
 */
#define RDMA_CANCELLED 1

/**
 * An error without a better code.
 */
#define RDMA_UNKNOWN 2

/**
 * An argument is not allowed; rdma_last_error names it, its value and what is allowed.
 */
#define RDMA_INVALID_ARGUMENT 3

/**
 * The deadline passed.
 */
#define RDMA_DEADLINE_EXCEEDED 4

/**
 * No such peer, request, response, region or device.
 */
#define RDMA_NOT_FOUND 5

/**
 * It exists already.
 */
#define RDMA_ALREADY_EXISTS 6

/**
 * Memory key, access rights or system permission forbid it.
 */
#define RDMA_PERMISSION_DENIED 7

/**
 * A bound was reached: queue, memory, descriptors.
 */
#define RDMA_RESOURCE_EXHAUSTED 8

/**
 * Not in this state: inside a callback, in a forked child, after rdma_mgr_destroy.
 */
#define RDMA_FAILED_PRECONDITION 9

/**
 * Step aborted, or a duplicate send or receive.
 */
#define RDMA_ABORTED 10

/**
 * Outside of a range: a buffer is too small.
 */
#define RDMA_OUT_OF_RANGE 11

/**
 * Not available in this build or on this provider.
 */
#define RDMA_UNIMPLEMENTED 12

/**
 * A defect of the library; caught at the ABI.
 */
#define RDMA_INTERNAL 13

/**
 * The peer is gone or cannot be reached.
 */
#define RDMA_UNAVAILABLE 14

/**
 * Content arrived damaged.
 */
#define RDMA_DATA_LOSS 15

/**
 * The peer failed authentication.
 */
#define RDMA_UNAUTHENTICATED 16

/**
 * rdma_transfer_info_t.reason: nothing to add to the code.
 */
#define RDMA_REASON_NONE 0

/**
 * rdma_transfer_info_t.reason: rdma_request_cancel, rdma_mgr_disconnect or rdma_mgr_destroy.
 */
#define RDMA_REASON_CANCELLED 1

/**
 * rdma_transfer_info_t.reason: the operation's own deadline.
 */
#define RDMA_REASON_DEADLINE 2

/**
 * rdma_transfer_info_t.reason: process or connection ended.
 */
#define RDMA_REASON_PEER_GONE 3

/**
 * rdma_transfer_info_t.reason: the connection is up, the peer answers nothing.
 */
#define RDMA_REASON_PEER_STALLED 4

/**
 * rdma_transfer_info_t.reason: same name, new incarnation.
 */
#define RDMA_REASON_PEER_RESTARTED 5

/**
 * rdma_transfer_info_t.reason: the step was aborted or cleaned up.
 */
#define RDMA_REASON_STEP_ABORTED 6

/**
 * rdma_transfer_info_t.reason: the peer answered with an error.
 */
#define RDMA_REASON_REMOTE_ERROR 7

/**
 * rdma_transfer_info_t.reason: allocation, registration, checksum, protocol violation on this side.
 */
#define RDMA_REASON_LOCAL_ERROR 8

/**
 * Protocol: chosen per transfer.
 */
#define RDMA_PROTOCOL_AUTO 0

/**
 * Protocol: both ends in this manager. Reported, cannot be demanded.
 */
#define RDMA_PROTOCOL_LOCAL 1

/**
 * Protocol: content inside the response message.
 */
#define RDMA_PROTOCOL_EAGER 2

/**
 * Protocol: RDMA write with immediate by the sender.
 */
#define RDMA_PROTOCOL_DIRECT_PUT 3

/**
 * Protocol: RDMA read by the receiver.
 */
#define RDMA_PROTOCOL_DIRECT_GET 4

/**
 * Protocol: by way of a registered buffer of the tensor's name at either end, which lasts.
 */
#define RDMA_PROTOCOL_PERSISTENT 5

/**
 * Protocol: long messages in three segments, whose memory is registered while other memory is moved.
 */
#define RDMA_PROTOCOL_PIPELINE 6

/**
 * Progress: the library's own thread (default).
 */
#define RDMA_PROGRESS_THREAD 0

/**
 * Progress: only inside rdma_mgr_progress, rdma_mgr_wait and blocking calls.
 */
#define RDMA_PROGRESS_MANUAL 1

/**
 * rdma_tensor_t.flags: a dead tensor; it has no content.
 */
#define RDMA_TENSOR_DEAD 1

/**
 * rdma_tensor_t.flags: the content is the runtime's serialised form.
 */
#define RDMA_TENSOR_SERIALIZED 2

/**
 * Log level: something failed.
 */
#define RDMA_LOG_ERROR 1

/**
 * Log level: something is not as expected, and went on (default).
 */
#define RDMA_LOG_WARN 2

/**
 * Log level: decisions and changes of state.
 */
#define RDMA_LOG_INFO 3

/**
 * Log level: details.
 */
#define RDMA_LOG_DEBUG 4

/**
 * Device id of host memory.
 */
#define RDMA_DEVICE_HOST 0

/**
 * rdma_peer_info_t.state: not connected, nothing under way.
 */
#define RDMA_PEER_IDLE 0

/**
 * rdma_peer_info_t.state: connecting.
 */
#define RDMA_PEER_CONNECTING 1

/**
 * rdma_peer_info_t.state: connected.
 */
#define RDMA_PEER_CONNECTED 2

/**
 * rdma_peer_info_t.state: the last attempt failed; retried on use.
 */
#define RDMA_PEER_FAILED 3

/**
 * rdma_peer_event_fn: the first connection to a peer is up.
 */
#define RDMA_PEER_CAME 1

/**
 * rdma_peer_event_fn: the last connection to a peer has ended.
 */
#define RDMA_PEER_GONE 2

/**
 * A message from anybody.
 */
#define RDMA_PEER_ANY 0

/**
 * rdma_msg_options_t.mode: a send has ended when its memory may be used again.
 */
#define RDMA_MSG_STANDARD 0

/**
 * rdma_msg_options_t.mode: the same, and a receive has met the message.
 */
#define RDMA_MSG_SYNCHRONOUS 1

/**
 * rdma_msg_options_t.mode: as RDMA_MSG_STANDARD; the application knows that a receive waits for it.
 */
#define RDMA_MSG_READY 2

/**
 * rdma_msg_options_t.mode: the content is copied by the call, within what rdma_msg_attach allows.
 */
#define RDMA_MSG_BUFFERED 3

/**
 * rdma_msg_handler_fn: the message is done with.
 */
#define RDMA_MSG_HANDLED 0

/**
 * rdma_msg_handler_fn: status->message is received by rdma_msg_imrecv later.
 */
#define RDMA_MSG_LATER 1

/**
 * Longest header of a message in bytes.
 */
#define RDMA_MSG_MAX_HEADER 512

/**
 * Most pieces of a layout that lists them.
 */
#define RDMA_MSG_MAX_PIECES 16384

/**
 * Most parts of a message.
 */
#define RDMA_MSG_MAX_PARTS 64

/**
 * rdma_msg_layout_t.kind: pieces, one after the other.
 */
#define RDMA_MSG_IOVEC 1

/**
 * rdma_msg_layout_t.kind: blocks of equal length at equal distances.
 */
#define RDMA_MSG_STRIDED 2

/**
 * rdma_msg_layout_t.kind: pieces, each a part of the message. A receive has a piece for each part,
 * which may be longer than that; what is left of it is not written.
 */
#define RDMA_MSG_PARTS 3

/**
 * rdma_msg_options_t.timeout_ms: no deadline.
 */
#define RDMA_MSG_FOREVER -1

/**
 * A mask under which each bit of a tag counts.
 */
#define RDMA_MSG_TAG_MASK UINT64_MAX

/**
 * rdma_msg_test, rdma_msg_wait: all requests, or none.
 */
#define RDMA_MSG_ALL 0

/**
 * rdma_msg_test, rdma_msg_wait: one request.
 */
#define RDMA_MSG_ANY 1

/**
 * rdma_msg_test, rdma_msg_wait: as many requests as have ended, one at least.
 */
#define RDMA_MSG_SOME 2

/**
 * timeout_ms of a store: as long as the store was set up for.
 */
#define RDMA_STORE_DEFAULT 0

/**
 * timeout_ms of a store: without end.
 */
#define RDMA_STORE_FOREVER -1

/**
 * timeout_ms of a store: one look. What is to be reached over a network has as long as the store was set up for.
 */
#define RDMA_STORE_NOW -2

/**
 * Longest key of a store in bytes, with its prefixes and their separators.
 */
#define RDMA_STORE_MAX_KEY_LEN 4096

/**
 * Longest value in bytes.
 */
#define RDMA_STORE_MAX_VALUE_LEN 16777216

/**
 * Most keys of one call.
 */
#define RDMA_STORE_MAX_KEYS 65536

/**
 * rdma_store_compare_set: the value was as expected, and is now the new one.
 */
#define RDMA_STORE_SET 0

/**
 * rdma_store_compare_set: another value is there; nothing was changed.
 */
#define RDMA_STORE_DIFFERS 1

/**
 * rdma_store_compare_set: one was expected, and none is there; nothing was changed.
 */
#define RDMA_STORE_ABSENT 2

/**
 * Most ranks of a mesh.
 */
#define RDMA_MESH_MAX_RANKS 65536

/**
 * Most bytes of the address of a pair.
 */
#define RDMA_PAIR_ADDRESS_MAX 4096

/**
 * rdma_pair_info_t.state: rdma_pair_connect was not called.
 */
#define RDMA_PAIR_CREATED 0

/**
 * rdma_pair_info_t.state: the other end has not answered.
 */
#define RDMA_PAIR_CONNECTING 1

/**
 * rdma_pair_info_t.state: both ends know each other.
 */
#define RDMA_PAIR_CONNECTED 2

/**
 * rdma_pair_info_t.state: it has ended; close it.
 */
#define RDMA_PAIR_BROKEN 3

/**
 * rdma_buffer_fn: a send has ended.
 */
#define RDMA_BUFFER_SENT 0

/**
 * rdma_buffer_fn: content has arrived.
 */
#define RDMA_BUFFER_RECEIVED 1

/**
 * rdma_buffer_fn: the pair has ended, nothing arrives any more.
 */
#define RDMA_BUFFER_BROKEN 2

/**
 * Most peers that a receive of an unbound buffer may name.
 */
#define RDMA_UNBOUND_MAX_SOURCES 65536

/**
 * A mesh: which peer of a manager is which rank. Opaque.
 */
struct rdma_mesh;

/**
 * A manager: one local worker identity, which owns everything else. Opaque.
 */
struct rdma_mgr;

/**
 * A pool of memory. Opaque.
 */
struct rdma_pool;

/**
 * A store, or a view of one. Opaque.
 */
struct rdma_store;

/**
 * How an operation ended: RDMA_OK or an error. The numbers are those of gRPC, absl and TensorFlow.
 */
typedef int32_t rdma_code_t;

/**
 * Receives log messages. `message` ends with a NUL. Runs on any thread, on several at once, with no
 * lock held, and may call any function that its thread may call; what those log is dropped.
 */
typedef void (*rdma_log_fn)(int32_t level, const char *message, size_t message_len, void *userdata);

/**
 * A manager. Opaque.
 */
typedef struct rdma_mgr rdma_mgr_t;

/**
 * Number of a request that a peer made of us. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_response_t;

/**
 * A peer requests `key` of `step`, which the local table lacks: answer with rdma_response_send or
 * rdma_response_fail, now or later, from any thread, once. `peer` ends with a NUL; `key` does not.
 * No order is promised: requests are handed out in the order of their arrival, but by whichever
 * thread drives progress, so that calls may overlap and overtake one another, also those for one
 * peer, key or step. With RDMA_PROGRESS_MANUAL and one thread that drives they come one at a time, in
 * the order of arrival; even then a peer's requests arrive in the order of its calls only on one
 * connection.
 */
typedef void (*rdma_source_fn)(rdma_mgr_t *mgr,
                               rdma_response_t response,
                               const char *peer,
                               size_t peer_len,
                               const char *key,
                               size_t key_len,
                               int64_t step,
                               void *userdata);

/**
 * A request that the source function was given has ended without its answer: its receiver gave it
 * up or is gone, the step was aborted or cleaned up, or this manager ends. Runs once for each such
 * request, never for one that was answered, and not before the source function has returned; an
 * answer that is under way on another thread returns RDMA_NOT_FOUND. `message` ends with a NUL.
 */
typedef void (*rdma_source_ended_fn)(rdma_mgr_t *mgr,
                                     rdma_response_t response,
                                     rdma_code_t code,
                                     const char *message,
                                     size_t message_len,
                                     void *userdata);

/**
 * A peer came or went: `event` is RDMA_PEER_*. `code` and `message` say why it went, and are RDMA_OK
 * and "" when it came. One event at a time, in their order; a peer that came goes once, with
 * RDMA_CANCELLED at the latest by rdma_mgr_destroy. One that came and went before it could be told
 * of is left out. Both texts end with a NUL.
 */
typedef void (*rdma_peer_event_fn)(rdma_mgr_t *mgr,
                                   int32_t event,
                                   const char *peer,
                                   size_t peer_len,
                                   rdma_code_t code,
                                   const char *message,
                                   size_t message_len,
                                   void *userdata);

/**
 * A pool of memory. Opaque.
 */
typedef struct rdma_pool rdma_pool_t;

/**
 * Settings of a manager. Prepare it with rdma_mgr_options_init, which fills in the defaults.
 * Environment variables override it, and the log (level info) says so.
 */
struct rdma_mgr_options {
  /**
   * sizeof(rdma_mgr_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * This worker's name, unique among its peers. NULL: generated.
   */
  const char *name;
  /**
   * "loopback", "shm", "ibverbs" or "tcp": only this one, or an error. NULL or "auto": chosen
   * per peer. RDMA_PROVIDER
   */
  const char *provider;
  /**
   * "host:port", IPv6 in brackets (link-local: [fe80::1%eth0]:port), port 0, or "host" alone, is any. NULL: 127.0.0.1:0 on first need, or
   * [::1]:0 where that cannot be had. RDMA_LISTEN
   */
  const char *listen;
  /**
   * Secret shared by all workers. NULL: no authentication. RDMA_AUTH_SECRET_FILE
   */
  const char *secret;
  /**
   * Length of the secret in bytes.
   */
  size_t secret_len;
  /**
   * RDMA_PROGRESS_*
   */
  int32_t progress;
  /**
   * RDMA_PROTOCOL_*; AUTO chooses per transfer. RDMA_PROTOCOL
   */
  int32_t protocol;
  /**
   * Default deadline of an operation in milliseconds, 1 to 3153600000000 (100 years); 120000 if it is not set. RDMA_TIMEOUT_MS
   */
  int64_t timeout_ms;
  /**
   * Time to spin before sleeping, in microseconds; less where spinning does not pay, up to four
   * times that where waits were seen to end so. 0: never. RDMA_BUSY_POLL_US
   */
  int64_t busy_poll_us;
  /**
   * Silence after which a peer counts as stalled, in milliseconds; 10000 if it is not set. 0: never, only a connection
   * that ends is a peer that is gone. Time in which this manager was not driven, or the machine
   * stood still, does not count. Nor does a peer that is driven by its application alone (RDMA_PROGRESS_MANUAL) stall: it may be
   * silent for as long as it computes, and operations with it end by their deadlines, or with its connection. A connection to a peer that stands still ends sooner where an operation's deadline
   * passes while its content is on its way and nobody says for two seconds that its memory is not touched any
   * more: rdma_msg_isend and rdma_recv_async tell when. RDMA_PEER_TIMEOUT_MS
   */
  int64_t peer_timeout_ms;
  /**
   * Largest content that rides in the response message. 0: the provider's own.
   */
  uint64_t eager_max;
  /**
   * Bound of the metadata cache, entries per peer. 0 counts as 1.
   */
  uint32_t meta_cache_entries;
  /**
   * Depth of send and receive queues; control messages in flight. RDMA_QP_QUEUE_DEPTH
   */
  uint32_t queue_depth;
  /**
   * 1: all messages and content have checksums (xxh3), in both directions; one side that has this set
   * is enough. Damage is RDMA_DATA_LOSS.
   */
  uint8_t checksum;
  /**
   * 1: a receive of a key and step that another waits for already waits as well instead of failing with RDMA_ABORTED.
   * What counts is the setting of the manager that the tensor is asked of, its sender's; of receives from oneself one's own.
   */
  uint8_t tolerate_dup_recv;
  /**
   * 1: may listen beyond loopback without a secret.
   */
  uint8_t allow_remote;
  /**
   * 1: ibverbs resolves address and route by rdma_cm (librdmacm), also across subnets; 0 or 1.
   */
  uint8_t use_rdma_cm;
  /**
   * Name of the ibverbs device, or up to 4 with a comma between, over which long content is spread; behind each a
   * colon and a port, if need be. NULL: chosen. RDMA_DEVICE
   */
  const char *ib_device;
  /**
   * Port of the device. 0: the first active one. RDMA_DEVICE_PORT
   */
  int32_t ib_port;
  /**
   * Index into the port's GID table. -1: chosen. RDMA_GID_INDEX
   */
  int32_t ib_gid_index;
  /**
   * Index into the port's partition key table. RDMA_QP_PKEY_INDEX
   */
  int32_t ib_pkey_index;
  /**
   * Local ACK timeout, 0 to 31: 4.096 us * 2^n. RDMA_QP_TIMEOUT
   */
  int32_t ib_timeout;
  /**
   * Retries, 0 to 7. RDMA_QP_RETRY_COUNT
   */
  int32_t ib_retry_count;
  /**
   * Service level, 0 to 7. RDMA_QP_SL
   */
  int32_t ib_sl;
  /**
   * Path MTU in bytes: 256, 512, 1024, 2048, 4096. 0: the port's active MTU. RDMA_QP_MTU
   */
  int32_t ib_mtu;
  /**
   * Traffic class, 0 to 255. RDMA_TRAFFIC_CLASS
   */
  int32_t ib_traffic_class;
  /**
   * The source function, as by rdma_mgr_set_source, but before the first request can come. NULL:
   * none.
   */
  rdma_source_fn source;
  /**
   * Hears of requests that ended while the source function owes the answer, its own and that of
   * rdma_mgr_set_source. NULL: not wanted.
   */
  rdma_source_ended_fn source_ended;
  /**
   * Passed to source and source_ended. Lives until rdma_mgr_destroy has returned.
   */
  void *source_userdata;
  /**
   * Hears of peers that come and go. NULL: not wanted.
   */
  rdma_peer_event_fn peer_event;
  /**
   * Passed to peer_event. Lives until rdma_mgr_destroy has returned.
   */
  void *peer_event_userdata;
  /**
   * Memory that nobody registered stays registered after a transfer, for the next one of the same
   * memory: so many bytes at most, the least recently used go first. 0: none. Where it is not 0, call
   * rdma_mem_invalidate before memory that was sent from or received into is freed or mapped anew. On
   * ibverbs; the other providers register nothing. RDMA_REGISTRATION_CACHE
   */
  uint64_t registration_cache_bytes;
  /**
   * A pool of rdma_pool_create, whose memory this manager then knows as its own: registered, and shared with
   * peers on this host. Several managers may have the same one. It stays until each of them has ended, also after
   * rdma_pool_destroy. NULL: none.
   */
  rdma_pool_t *pool;
  /**
   * Connections that long content of one transfer is spread over, 1 to 8; the smaller of both ends' counts. 0: as the
   * tuning file says, or 1, on ibverbs one for each device that is named. shm has no use for more than 1. RDMA_MAX_RDMA_PER_REQUEST
   */
  uint32_t max_rdma_per_request;
};

/**
 * Settings of a manager.
 */
typedef struct rdma_mgr_options rdma_mgr_options_t;

/**
 * A tensor in memory of this process. Prepare it with rdma_tensor_init.
 */
struct rdma_tensor {
  /**
   * sizeof(rdma_tensor_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Content, on its device. May be NULL when nbytes is 0.
   */
  const void *data;
  /**
   * Length of the content in bytes.
   */
  uint64_t nbytes;
  /**
   * Dimensions, none negative. May be NULL when ndims is 0.
   */
  const int64_t *dims;
  /**
   * Number of dimensions, at most RDMA_MAX_DIMS.
   */
  uint32_t ndims;
  /**
   * The runtime's own number of the element type; carried, not read.
   */
  uint32_t dtype;
  /**
   * RDMA_TENSOR_*, or 0.
   */
  uint32_t flags;
  /**
   * RDMA_DEVICE_HOST or an id from rdma_mgr_register_device.
   */
  uint32_t device;
  /**
   * Bytes of the application that go with this one transfer, of dead tensors, too; carried, not read. Copied by the call
   * that sends. Of a result they live as long as its dimensions. In an allocation callback they are there if the sender
   * has told of this transfer already. May be NULL when user_len is 0.
   */
  const void *user;
  /**
   * Length of these in bytes, at most RDMA_MAX_USER_LEN; 0: none.
   */
  size_t user_len;
};

/**
 * A tensor in memory of this process.
 */
typedef struct rdma_tensor rdma_tensor_t;

/**
 * Returns memory for meta->nbytes bytes on the device named in the receive's options, or NULL to
 * fail the request (RDMA_RESOURCE_EXHAUSTED). Runs inside rdma_recv_async (metadata cached) or on
 * the progress thread; once more if the metadata changed: the earlier memory is then unused. NULL for
 * cached metadata, which may be out of date, does not fail the request yet: the sender is asked, and
 * the callback runs once more with the metadata that it tells; NULL then fails it. Not
 * called for dead or zero-size tensors. The memory stays the application's; meta->data is NULL.
 */
typedef void *(*rdma_alloc_fn)(const rdma_tensor_t *meta, void *userdata);

/**
 * Options of a receive. Prepare it with rdma_recv_options_init.
 */
struct rdma_recv_options {
  /**
   * sizeof(rdma_recv_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Deadline in milliseconds. 0: the manager's.
   */
  int64_t timeout_ms;
  /**
   * Destination given up front, or NULL. The library's until the callback has run.
   */
  void *dst;
  /**
   * Its length in bytes. A larger tensor ends the receive with RDMA_OUT_OF_RANGE, and stays at its sender.
   */
  uint64_t dst_len;
  /**
   * Used when dst is NULL. NULL too: memory of the library.
   */
  rdma_alloc_fn alloc;
  /**
   * Passed to alloc.
   */
  void *alloc_userdata;
  /**
   * Device on which dst, or alloc's memory, lives.
   */
  uint32_t device;
};

/**
 * Options of a receive.
 */
typedef struct rdma_recv_options rdma_recv_options_t;

/**
 * Options of a send. Prepare it with rdma_send_options_init.
 */
struct rdma_send_options {
  /**
   * sizeof(rdma_send_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Deadline in milliseconds. 0: waits until taken, or until the step is cleaned up. What is being taken by then goes on;
   * but if its receiver gives no sign of life for 8 seconds behind it the connection ends, and the send with
   * RDMA_UNAVAILABLE.
   */
  int64_t timeout_ms;
};

/**
 * Options of a send.
 */
typedef struct rdma_send_options rdma_send_options_t;

/**
 * What is known of a peer. Set struct_size before rdma_mgr_peer_info.
 */
struct rdma_peer_info {
  /**
   * sizeof(rdma_peer_info_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Its name.
   */
  char name[256];
  /**
   * Provider of the connection, "" while not connected.
   */
  char provider[16];
  /**
   * Why this provider, or the last error; cut to fit.
   */
  char reason[256];
  /**
   * Where it is reached; cut to fit.
   */
  char address[256];
  /**
   * Identifies the peer's manager; zero while unknown. Another one after a restart.
   */
  uint8_t incarnation[16];
  /**
   * RDMA_PEER_*
   */
  int32_t state;
  /**
   * Live connections, those that carry a part of another's transfers among them.
   */
  uint32_t channels;
  /**
   * Content sent to it, in bytes: of tensors, messages and pairs' buffers. What the peer refused since it was too long for its
   * receive counts here, and not there.
   */
  uint64_t bytes_sent;
  /**
   * Content received from it, in bytes: of tensors and messages. A receiver does not count what comes into pairs' buffers.
   */
  uint64_t bytes_received;
  /**
   * Requests made of it.
   */
  uint64_t requests_sent;
  /**
   * Requests it made.
   */
  uint64_t requests_received;
  /**
   * Largest content that rides in the response message; larger content is written or read beside
   * it. 0 while not connected.
   */
  uint64_t eager_max;
  /**
   * Largest message in bytes that goes out in one piece; a longer one, as by a long key, goes out in
   * fragments. 0 while not connected.
   */
  uint64_t max_message;
  /**
   * `incarnation` in one word, as rdma_msg_status_t.incarnation has it: for rdma_msg_options_t.incarnation. Of one that is not connected the last that was, 0 if none was.
   */
  uint64_t message_incarnation;
};

/**
 * What is known of a peer.
 */
typedef struct rdma_peer_info rdma_peer_info_t;

/**
 * To be called once by a device's copy function when the copy is complete, from any thread. A
 * second call with the same token is ignored.
 */
typedef void (*rdma_copy_done_fn)(rdma_code_t code, void *token);

/**
 * Starts a copy between the host and a device, and returns. Calls `done` with `token` when the
 * copy is complete, at once or later. Runs on the thread that drives progress.
 */
typedef void (*rdma_copy_to_host_fn)(void *host,
                                     const void *device,
                                     uint64_t nbytes,
                                     rdma_copy_done_fn done,
                                     void *token,
                                     void *userdata);

/**
 * The other direction of rdma_copy_to_host_fn.
 */
typedef void (*rdma_copy_from_host_fn)(void *device,
                                       const void *host,
                                       uint64_t nbytes,
                                       rdma_copy_done_fn done,
                                       void *token,
                                       void *userdata);

/**
 * Exports device memory as a dmabuf: *fd is a descriptor, which the library closes, and *offset is
 * where in it the memory begins. Returns RDMA_OK, or why it cannot. Runs inside rdma_mem_register,
 * with the manager's lock held: it calls no function of this library, and its thread does not end in it.
 */
typedef rdma_code_t (*rdma_export_dmabuf_fn)(const void *device,
                                             uint64_t nbytes,
                                             int *fd,
                                             uint64_t *offset,
                                             void *userdata);

/**
 * An accelerator's functions.
 */
struct rdma_device_ops {
  /**
   * sizeof(rdma_device_ops_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Copies from the device to the host. Not NULL.
   */
  rdma_copy_to_host_fn copy_to_host;
  /**
   * Copies from the host to the device. Not NULL.
   */
  rdma_copy_from_host_fn copy_from_host;
  /**
   * NULL is allowed: tensors on the device always go through host memory. With it, memory that is
   * registered by rdma_mem_register is moved by the RDMA device itself where that can
   * (GPUDirect); see docs/rdma.md.
   */
  rdma_export_dmabuf_fn export_dmabuf;
};

/**
 * An accelerator's functions.
 */
typedef struct rdma_device_ops rdma_device_ops_t;

/**
 * How a transfer went.
 */
struct rdma_transfer_info {
  /**
   * sizeof(rdma_transfer_info_t) as the library was compiled.
   */
  size_t struct_size;
  /**
   * Content bytes.
   */
  uint64_t bytes;
  /**
   * Nanoseconds since the call (receive) or the match (send). 0 of a send within one manager.
   */
  uint64_t elapsed_ns;
  /**
   * "shm", "tcp", "ibverbs", "loopback", "local", or "" if none carried it.
   */
  const char *provider;
  /**
   * The peer's name, "" for oneself.
   */
  const char *peer;
  /**
   * RDMA_PROTOCOL_*
   */
  uint32_t protocol;
  /**
   * RDMA_REASON_*: why the operation ended, finer than its code.
   */
  uint32_t reason;
};

/**
 * How a transfer went.
 */
typedef struct rdma_transfer_info rdma_transfer_info_t;

/**
 * Ends a send: the library no longer reads the tensor, nor does a receiver of the same manager (see rdma_recv_async). Runs
 * once per accepted send. For content that was copied at once it may run on the sending thread before rdma_send returns,
 * but not of a send that a callback makes which runs so. `message` is "" for RDMA_OK, and ends with a NUL. Codes: RDMA_OK; RDMA_CANCELLED: the receiver took it back, or
 * `mgr` is destroyed; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the connection or the peer ended;
 * RDMA_PERMISSION_DENIED: the receiver closed its memory meanwhile; RDMA_FAILED_PRECONDITION: the
 * memory was unregistered; RDMA_ABORTED: the step was cleaned up; that of rdma_step_abort;
 * RDMA_OUT_OF_RANGE: of rdma_response_send, the receiver's memory is too short; RDMA_DATA_LOSS: what came
 * over the connection was damaged; RDMA_INVALID_ARGUMENT: the peer broke the protocol;
 * RDMA_RESOURCE_EXHAUSTED; RDMA_INTERNAL.
 */
typedef void (*rdma_send_done_fn)(rdma_code_t code,
                                  const char *message,
                                  size_t message_len,
                                  const rdma_transfer_info_t *info,
                                  void *userdata);

/**
 * Ends a receive. Runs once per accepted receive. `tensor` is NULL unless code is RDMA_OK;
 * `message` is "" for RDMA_OK, and ends with a NUL.
 */
typedef void (*rdma_recv_done_fn)(rdma_code_t code,
                                  const char *message,
                                  size_t message_len,
                                  const rdma_tensor_t *tensor,
                                  const rdma_transfer_info_t *info,
                                  void *userdata);

/**
 * Number of a receive. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_request_t;

/**
 * Number of a peer in one manager: 0 is none, or anybody. See rdma_peer_lookup.
 */
typedef uint64_t rdma_peer_t;

/**
 * How a message operation ended, or what a probe found. Set struct_size before use.
 */
struct rdma_msg_status {
  /**
   * sizeof(rdma_msg_status_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Who sent it; of a send, who it was for.
   */
  rdma_peer_t peer;
  /**
   * Its tag.
   */
  uint64_t tag;
  /**
   * Its length in bytes, also where it was too long for the receive. Of a receive that met no message, how long that may be.
   */
  uint64_t bytes;
  /**
   * Its communicator.
   */
  uint32_t comm;
  /**
   * How it ended.
   */
  rdma_code_t code;
  /**
   * The message that rdma_msg_probe has claimed, 0 otherwise.
   */
  uint64_t message;
  /**
   * Text of an error, "" without one. It, `header` and `part_lens` live for the time of a callback;
   * what a function gives, until this thread's next call of a function that fills statuses.
   */
  const char *text;
  /**
   * The header that its sender gave, NULL without one: of a receive, and of what a probe found.
   */
  const void *header;
  /**
   * Its length.
   */
  size_t header_len;
  /**
   * Lengths of its parts, NULL where it was sent without.
   */
  const uint64_t *part_lens;
  /**
   * How many there are.
   */
  size_t parts;
  /**
   * Which incarnation of `peer` sent it: a number that is never 0, the same for all messages of one manager, and
   * another for the next that bears its name. For rdma_msg_options_t.incarnation. Of a send, and of a receive that no
   * message has met: what its options had there.
   */
  uint64_t incarnation;
};

/**
 * How a message operation ended.
 */
typedef struct rdma_msg_status rdma_msg_status_t;

/**
 * A message operation has ended.
 */
typedef void (*rdma_msg_done_fn)(const rdma_msg_status_t *status, void *userdata);

/**
 * One piece of memory.
 */
struct rdma_msg_piece {
  /**
   * First byte; NULL only with len 0.
   */
  void *data;
  /**
   * Length in bytes.
   */
  size_t len;
};

/**
 * One piece of memory.
 */
typedef struct rdma_msg_piece rdma_msg_piece_t;

/**
 * Memory of the host in several pieces, where the content of a message lies or goes. The layouts of
 * sender and receiver have nothing to do with each other. Pieces of a receive must not overlap. Set
 * struct_size, and what the kind does not need to zero. It is copied by the call, the memory that it
 * names is borrowed.
 */
struct rdma_msg_layout {
  /**
   * sizeof(rdma_msg_layout_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * RDMA_MSG_IOVEC, RDMA_MSG_STRIDED or RDMA_MSG_PARTS.
   */
  uint32_t kind;
  /**
   * 0; another value is refused.
   */
  uint32_t reserved;
  /**
   * Of RDMA_MSG_IOVEC and RDMA_MSG_PARTS: the pieces.
   */
  const rdma_msg_piece_t *pieces;
  /**
   * How many pieces, up to RDMA_MSG_MAX_PIECES or RDMA_MSG_MAX_PARTS; of RDMA_MSG_STRIDED how many blocks.
   */
  size_t count;
  /**
   * Of RDMA_MSG_STRIDED: the first block.
   */
  void *base;
  /**
   * Length of each block in bytes.
   */
  size_t block;
  /**
   * Bytes from the beginning of a block to that of the next, at least `block`.
   */
  size_t stride;
};

/**
 * Memory of the host in several pieces.
 */
typedef struct rdma_msg_layout rdma_msg_layout_t;

/**
 * Options of a message operation. Prepare it with rdma_msg_options_init, or set struct_size and the
 * rest to zero.
 */
struct rdma_msg_options {
  /**
   * sizeof(rdma_msg_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Deadline in milliseconds. 0: the manager's; RDMA_MSG_FOREVER: none.
   */
  int64_t timeout_ms;
  /**
   * Of a send: RDMA_MSG_STANDARD, RDMA_MSG_SYNCHRONOUS, RDMA_MSG_READY or RDMA_MSG_BUFFERED.
   */
  uint32_t mode;
  /**
   * Device on which the memory lives, 0 for the host.
   */
  uint32_t device;
  /**
   * Told of the end, unless that is known when the call returns. NULL: rdma_msg_test and
   * rdma_msg_wait tell.
   */
  rdma_msg_done_fn done;
  /**
   * Passed to done.
   */
  void *userdata;
  /**
   * Where the content lies, instead of the call's pointer and length, which are NULL and 0 then, and
   * with device 0. NULL: in one place.
   */
  const rdma_msg_layout_t *layout;
  /**
   * Of a send: bytes that travel beside the content, and that a probe and the status of the receive
   * show. Copied by the call. NULL: none.
   */
  const void *header;
  /**
   * Their length, at most RDMA_MSG_MAX_HEADER.
   */
  size_t header_len;
  /**
   * Of a send: the incarnation of the peer that alone may get it, as rdma_msg_status_t.incarnation tells it; an
   * answer is for who has asked. If the name is another's by now, the call returns RDMA_UNAVAILABLE; if that comes out while the
   * send waits, it ends so, as it does where the last that was connected is this one and nobody listens at its addresses any
   * more. Of a receive: the incarnation of `source` that alone may have sent it; rdma_msg_irecv tells when it ends without a
   * message. 0: whoever has the name.
   */
  uint64_t incarnation;
};

/**
 * Options of a message operation.
 */
typedef struct rdma_msg_options rdma_msg_options_t;

/**
 * Number of a message operation that is under way. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_msg_request_t;

/**
 * An active message has come for the handler that rdma_msg_handler has set. status->comm is the
 * handler's number; status->tag, bytes, header and part_lens are as of a receive. `data` has the content.
 * It and the header live for the time of the call, and begin at a multiple of 8 bytes. Where there is no content,
 * since status->bytes is 0 or status->message is not (it has not come yet), nothing may be read there.
 *
 * If status->message is not 0, the content has not come along: it is large, or its sender had no more
 * room. The handler, or somebody later, says by rdma_msg_imrecv where it goes; a length of 0 takes nothing.
 * Returns RDMA_MSG_LATER if that is still to come; with RDMA_MSG_HANDLED a message that was not
 * received is gone.
 */
typedef uint32_t (*rdma_msg_handler_fn)(rdma_mgr_t *mgr,
                                        const rdma_msg_status_t *status,
                                        const void *data,
                                        void *userdata);

/**
 * Number of a prepared message operation. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_msg_persistent_t;

/**
 * There is room for messages to a peer, `bytes` in all, or `code` says why there will be none.
 */
typedef void (*rdma_msg_room_fn)(rdma_code_t code, uint64_t bytes, void *userdata);

/**
 * Options of a store. Prepare it with rdma_store_options_init, or set struct_size and the rest to
 * zero.
 */
struct rdma_store_options {
  /**
   * sizeof(rdma_store_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Time for operations that say RDMA_STORE_DEFAULT, in milliseconds; 0: 120000.
   */
  int64_t timeout_ms;
  /**
   * Of a TCP store, the secret that both sides prove; of a Redis store, its password. NULL: none.
   */
  const void *secret;
  /**
   * Its length, at most 4096.
   */
  size_t secret_len;
  /**
   * Not 0: rdma_store_tcp_serve may serve beyond loopback without a secret.
   */
  uint8_t allow_remote;
};

/**
 * Options of a store.
 */
typedef struct rdma_store_options rdma_store_options_t;

/**
 * A store, or a view of one. Opaque.
 */
typedef struct rdma_store rdma_store_t;

/**
 * Takes a value from rdma_store_ops_t.get: call it once, with the value, before get returns.
 */
typedef void (*rdma_store_give_fn)(const void *value, size_t len, void *token);

/**
 * Bytes that are read: a key, or a value to be set.
 */
struct rdma_bytes {
  /**
   * The first. May be NULL where `len` is 0 and that is allowed.
   */
  const void *data;
  /**
   * How many.
   */
  size_t len;
};

/**
 * Bytes that are read.
 */
typedef struct rdma_bytes rdma_bytes_t;

/**
 * The application's own store. All functions may be called by several threads at once, return an
 * rdma_code_t, and should take no longer than timeout_ms. Set struct_size, and to NULL what there is
 * not.
 */
struct rdma_store_ops {
  /**
   * sizeof(rdma_store_ops_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Sets a key. Required.
   */
  rdma_code_t (*set)(const char *key,
                     size_t key_len,
                     const void *value,
                     size_t value_len,
                     int64_t timeout_ms,
                     void *userdata);
  /**
   * Gives the value of a key, by give(value, len, token), or returns RDMA_NOT_FOUND; does not wait
   * for it. Required.
   */
  rdma_code_t (*get)(const char *key,
                     size_t key_len,
                     int64_t timeout_ms,
                     rdma_store_give_fn give,
                     void *token,
                     void *userdata);
  /**
   * Whether a key is there. NULL: get is asked.
   */
  rdma_code_t (*check)(const char *key,
                       size_t key_len,
                       int64_t timeout_ms,
                       bool *out_there,
                       void *userdata);
  /**
   * Waits until each of the keys has been there; RDMA_DEADLINE_EXCEEDED if not in time. It is
   * called again and again with half a second at most. NULL: check is asked, with pauses.
   */
  rdma_code_t (*wait)(const rdma_bytes_t *keys, size_t count, int64_t timeout_ms, void *userdata);
  /**
   * Adds to a decimal number, where nothing counts as 0. NULL: rdma_store_add is
   * RDMA_UNIMPLEMENTED.
   */
  rdma_code_t (*add)(const char *key,
                     size_t key_len,
                     int64_t delta,
                     int64_t timeout_ms,
                     int64_t *out_sum,
                     void *userdata);
  /**
   * As rdma_store_compare_set; the value that is there instead is given by give(value, len, token).
   * NULL: that is RDMA_UNIMPLEMENTED.
   */
  rdma_code_t (*compare_set)(const char *key,
                             size_t key_len,
                             const rdma_bytes_t *expected,
                             const rdma_bytes_t *desired,
                             int64_t timeout_ms,
                             int32_t *out_result,
                             rdma_store_give_fn give,
                             void *token,
                             void *userdata);
  /**
   * Deletes a key. NULL: rdma_store_delete is RDMA_UNIMPLEMENTED.
   */
  rdma_code_t (*remove)(const char *key,
                        size_t key_len,
                        int64_t timeout_ms,
                        bool *out_was_there,
                        void *userdata);
};

/**
 * The application's own store.
 */
typedef struct rdma_store_ops rdma_store_ops_t;

/**
 * Where a value goes.
 */
struct rdma_bytes_out {
  /**
   * Memory for it. May be NULL where `cap` is 0.
   */
  void *data;
  /**
   * How many bytes there are.
   */
  size_t cap;
  /**
   * Written: how many bytes the value has.
   */
  size_t len;
};

/**
 * Where a value goes.
 */
typedef struct rdma_bytes_out rdma_bytes_out_t;

/**
 * Number of one end of a pair. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_pair_t;

/**
 * What is known of a pair. Set struct_size before use.
 */
struct rdma_pair_info {
  /**
   * sizeof(rdma_pair_info_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * As given to rdma_pair_create.
   */
  uint64_t rank;
  /**
   * The other end's manager, 0 before rdma_pair_connect.
   */
  rdma_peer_t peer;
  /**
   * RDMA_PAIR_CREATED, RDMA_PAIR_CONNECTING, RDMA_PAIR_CONNECTED or RDMA_PAIR_BROKEN.
   */
  uint32_t state;
  /**
   * Why it is broken, RDMA_OK otherwise.
   */
  rdma_code_t code;
  /**
   * Buffers that were made and not destroyed.
   */
  uint64_t buffers;
  /**
   * Sends that have not ended.
   */
  uint64_t sends;
  /**
   * Sends whose memory may still be read. What has left it lies in the library or in the network's buffers, and is on its
   * way to the other end; the send may still fail.
   */
  uint64_t reading;
};

/**
 * What is known of a pair.
 */
typedef struct rdma_pair_info rdma_pair_info_t;

/**
 * Number of a buffer of a pair. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_buffer_t;

/**
 * Something happened to a buffer: RDMA_BUFFER_SENT, once for each send, whose result `code` is;
 * RDMA_BUFFER_RECEIVED, once for each arrival; RDMA_BUFFER_BROKEN, once, to a receive buffer, and why.
 * `message` is the text of an error, "" otherwise.
 */
typedef void (*rdma_buffer_fn)(rdma_buffer_t buffer,
                               uint32_t event,
                               rdma_code_t code,
                               const char *message,
                               void *userdata);

/**
 * Number of an unbound buffer. Never used again by its manager; 0 is none.
 */
typedef uint64_t rdma_unbound_t;

/**
 * Options of a mesh. Prepare it with rdma_mesh_options_init, or set struct_size and the rest to zero.
 */
struct rdma_mesh_options {
  /**
   * sizeof(rdma_mesh_options_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Time until all ranks have met, in milliseconds; RDMA_STORE_DEFAULT: as long as the store was set up
   * for; RDMA_STORE_FOREVER.
   */
  int64_t timeout_ms;
  /**
   * How long what a rank publishes outlives the call, in milliseconds, in a store that has leases;
   * 0: 60000. Less than 1000 counts as 1000, and less than 100, or more than
   * 86400000 (a day), is refused.
   */
  int64_t keep_ms;
  /**
   * Not 0: connect to all ranks now, and not on first use.
   */
  uint8_t full;
};

/**
 * Options of a mesh.
 */
typedef struct rdma_mesh_options rdma_mesh_options_t;

/**
 * A mesh: which peer of a manager is which rank. Opaque.
 */
typedef struct rdma_mesh rdma_mesh_t;

/**
 * The parts of TensorFlow's key `src_device;src_incarnation;dst_device;edge_name;frame:iter`.
 * Texts are not NUL-terminated. Set struct_size before use.
 */
struct rdma_parsed_key {
  /**
   * sizeof(rdma_parsed_key_t) as the application was compiled.
   */
  size_t struct_size;
  /**
   * Full name of the sending device.
   */
  const char *src_device;
  /**
   * Its length.
   */
  size_t src_device_len;
  /**
   * Full name of the receiving device.
   */
  const char *dst_device;
  /**
   * Its length.
   */
  size_t dst_device_len;
  /**
   * Name of the edge.
   */
  const char *edge_name;
  /**
   * Its length.
   */
  size_t edge_name_len;
  /**
   * Incarnation of the sending device.
   */
  uint64_t src_incarnation;
  /**
   * Frame of the loop, 0 outside of loops.
   */
  uint64_t frame;
  /**
   * Iteration of the frame.
   */
  uint64_t iter;
};

/**
 * The parts of TensorFlow's key.
 */
typedef struct rdma_parsed_key rdma_parsed_key_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The library's version, "0.1.0". Threads: any. The text is static. Never NULL.
 */
const char *rdma_version(void);

/**
 * The library's RDMA_ABI_VERSION; it serves applications compiled with this one or a lower one.
 * Threads: any.
 */
uint32_t rdma_abi_version(void);

/**
 * The name of a code, "INVALID_ARGUMENT"; "INVALID_CODE" for a number that is none. Threads: any.
 * The text is static. Never NULL.
 */
const char *rdma_code_name(rdma_code_t code);

/**
 * The text of the last error that a function returned on this thread; successful calls leave it.
 * Writes at most `cap` bytes with the NUL, cut if need be, and returns the full length without
 * it; 0 if there was no error yet. Threads: any, each has its own. `buf` NULL: only the length.
 */
size_t rdma_last_error(char *buf, size_t cap);

/**
 * Sends log messages up to `level` (RDMA_LOG_*) to `log` instead of stderr. `log` NULL: stderr
 * again. The environment's RDMA_LOG (error, warn, info, debug) overrides `level`. One per process.
 * A message under way on another thread may still reach the earlier function.
 *
 * Threads: any. `userdata` is passed on, also from other threads; NULL is allowed.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: unknown level; RDMA_INTERNAL.
 */
rdma_code_t rdma_set_log_callback(rdma_log_fn log, int32_t level, void *userdata);

/**
 * Lists the providers as a JSON array of objects: "name", "available" and, in "reason", what is
 * missing. Text output.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `buf` NULL with
 * cap above 0, or with `out_len` NULL; RDMA_INTERNAL.
 */
rdma_code_t rdma_providers(char *buf, size_t cap, size_t *out_len);

/**
 * Fills in the defaults. `struct_size` is sizeof(rdma_mgr_options_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_options_init(rdma_mgr_options_t *options, size_t struct_size);

/**
 * Fills in the defaults. `struct_size` is sizeof(rdma_recv_options_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_recv_options_init(rdma_recv_options_t *options, size_t struct_size);

/**
 * Fills in the defaults. `struct_size` is sizeof(rdma_send_options_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_send_options_init(rdma_send_options_t *options, size_t struct_size);

/**
 * Makes an empty tensor on the host. `struct_size` is sizeof(rdma_tensor_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `tensor` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_tensor_init(rdma_tensor_t *tensor, size_t struct_size);

/**
 * Makes a manager: one local worker identity, which owns connections, memory and requests. The
 * environment overrides `options`; `options` NULL: defaults. On success *out is the handle, to be
 * ended by rdma_mgr_destroy. The options are copied. Functions in the options may run before this
 * returns; they are given the handle.
 *
 * Threads: any; the handle may be used from any thread at once. It is of no use in a forked
 * child, where every function returns RDMA_FAILED_PRECONDITION for it.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, wrong struct_size, a setting or an
 * environment variable that is not allowed; RDMA_UNAVAILABLE: the required provider cannot be
 * used here; RDMA_PERMISSION_DENIED, RDMA_NOT_FOUND, RDMA_UNAVAILABLE: a file named by the environment
 * cannot be opened, the address to listen on cannot be had; RDMA_ALREADY_EXISTS: it is in use;
 * RDMA_RESOURCE_EXHAUSTED: no memory or threads, or no descriptors for a
 * provider that could be used; RDMA_UNIMPLEMENTED: the required provider is
 * not part of this build; RDMA_FAILED_PRECONDITION: no secret for an address to listen on beyond loopback;
 * a secret named by the environment, which is not read in a program that has other rights than who runs it,
 * and none in the options; options.pool destroyed or in a forked child; forked beside managers (see "Forks"); RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_create(const rdma_mgr_options_t *options,
                            rdma_mgr_t **out);

/**
 * Ends a manager: each operation under way ends with RDMA_CANCELLED through its callback (a peer may
 * have received it all the same), the connections close, the library's threads end, its memory is freed. What was reported as sent goes out
 * before, for 5 seconds at most, or 1 in which a peer takes nothing; what is left then is lost, and the log says
 * so. A peer that has to have all of it answers, or is sent to with RDMA_MSG_SYNCHRONOUS. When it returns, no callback
 * runs any more, and calls of other threads have returned: it waits for them (but for one of rdma_mesh_connect that waits for
 * ranks: that uses `mgr` no more, and returns at its next look at the store), and for `done` of each copy that a device of
 * rdma_mgr_register_device has begun. The handle is then dead. Calls that begin meanwhile are refused, which says nothing
 * of operations: memory whose end was not told is not the library's any more when this has returned.
 *
 * Threads: any, at any time of the process's life, also in static and thread-local destructors,
 * but not inside a callback, nor where a thread of `mgr` itself logs. Where a shared object is loaded or unloaded (dlopen, dlclose), threads
 * do not begin: a progress thread that has not by then ends by itself later, and this returns half a second later. `mgr` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL or no handle; RDMA_FAILED_PRECONDITION:
 * inside a callback, destroyed already, or in a forked child: nothing was done; RDMA_INTERNAL: a defect; the manager is dead and
 * no callback runs, but some may not have run.
 */
rdma_code_t rdma_mgr_destroy(rdma_mgr_t *mgr);

/**
 * Listens for peers on `address`, "host:port", IPv6 in brackets, port 0 is any. Beyond loopback it
 * needs a secret, or allow_remote. May be called for several addresses. The address bound to is a
 * text output; `bound` NULL with cap 0: not wanted. If that text is cut the manager listens
 * nevertheless.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: `bound` is too small; RDMA_INVALID_ARGUMENT: `mgr` or
 * `address` NULL, malformed address, `bound` NULL with cap above 0; RDMA_ALREADY_EXISTS: address
 * in use; RDMA_FAILED_PRECONDITION: no secret for an address beyond loopback, `mgr` destroyed or
 * in a forked child; RDMA_RESOURCE_EXHAUSTED: listens on 16 addresses already, or by the system;
 * RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE: by the system; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_listen(rdma_mgr_t *mgr,
                            const char *address,
                            char *bound,
                            size_t cap,
                            size_t *out_len);

/**
 * Makes a peer known by name and address, or changes its address. Does not connect. `peer` NULL: the
 * name is learned from who listens there: it connects, tries again for options.timeout_ms, and
 * returns at once; options.peer_event tells the name when the peer came, rdma_mgr_meet waits for it.
 *
 * Threads: any. The texts are copied. A host's name is looked up in the call, which may take seconds.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `address` NULL, a name longer than 255 bytes, with
 * control characters or not UTF-8, one's own name, malformed address; RDMA_UNAVAILABLE: the host's name has no address;
 * RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked
 * child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_add_peer(rdma_mgr_t *mgr,
                              const char *peer,
                              const char *address);

/**
 * Connects to who listens at `address`, trying again until `timeout_ms` is over, and makes it known by
 * the name that it tells. The name is a text output; `peer` NULL with cap 0: not wanted. If that text
 * is cut the peer is known nevertheless.
 *
 * Threads: any, but not inside a callback: it drives progress.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: `peer` is too small; RDMA_INVALID_ARGUMENT: `mgr` or `address`
 * NULL, malformed address, a timeout below 1, `peer` NULL with cap above 0; no manager answers there;
 * RDMA_DEADLINE_EXCEEDED, RDMA_UNAVAILABLE: nobody could be reached, rdma_last_error says why;
 * RDMA_UNAUTHENTICATED: the secrets differ; RDMA_ALREADY_EXISTS: it has this manager's own name;
 * RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_DATA_LOSS: the handshake was damaged;
 * RDMA_FAILED_PRECONDITION: no provider or version in common, a system call that is refused here (a sandbox), inside a
 * callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_meet(rdma_mgr_t *mgr,
                          const char *address,
                          int64_t timeout_ms,
                          char *peer,
                          size_t cap,
                          size_t *out_len);

/**
 * Gives the manager another name, also while it listens, but before its first connection: a peer knows
 * it by the name that it heard. An address that was exported earlier carries the earlier name.
 *
 * Threads: any. The text is copied.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, a name longer than 255 bytes, with control
 * characters or not UTF-8; RDMA_FAILED_PRECONDITION: a connection was or is being made, the name is a
 * known peer's, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_set_name(rdma_mgr_t *mgr,
                              const char *name);

/**
 * Connects to a peer, and tries again until `timeout_ms` is over; 0 starts it and returns. Needed
 * by nobody: the first use connects too. Connected already is success. The other manager may know of this one a moment later:
 * until then rdma_peer_lookup does not find it there, if it was not told its address.
 *
 * Threads: any; with a timeout it blocks and drives progress, so not inside a callback.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name, negative timeout; no manager
 * answers at the peer's address; RDMA_NOT_FOUND: unknown peer, or another worker answers there;
 * RDMA_DEADLINE_EXCEEDED, RDMA_UNAVAILABLE: the peer could not be reached, rdma_last_error says why;
 * RDMA_UNAUTHENTICATED: the secrets differ; RDMA_DATA_LOSS: the handshake was damaged;
 * RDMA_FAILED_PRECONDITION: no provider or version in common, a system call that is refused here (a sandbox), inside a
 * callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_connect(rdma_mgr_t *mgr,
                             const char *peer,
                             int64_t timeout_ms);

/**
 * Closes the connection to a peer. Its operations end with RDMA_UNAVAILABLE; the peer stays known
 * and is connected again on use. Not connected already is success.
 * What was reported as sent and has not reached the peer by then may be lost; rdma_mgr_destroy waits for it,
 * for a while.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name; RDMA_NOT_FOUND:
 * unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_disconnect(rdma_mgr_t *mgr,
                                const char *peer);

/**
 * Tells what is known of a peer. Set out->struct_size first.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name, wrong struct_size;
 * RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_peer_info(const rdma_mgr_t *mgr, const char *peer, rdma_peer_info_t *out);

/**
 * Gives an address blob, to travel over the runtime's own control plane to
 * rdma_mgr_import_address. Listens if the manager does not yet. The blob holds no secret. In it a
 * link-local IPv6 address is without its interface, which is another one at each host: make such
 * a peer known by rdma_mgr_add_peer. Writes all of it and its length, or, with RDMA_OUT_OF_RANGE,
 * only the length needed; `blob` NULL with cap 0 asks for the length.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_INVALID_ARGUMENT: `mgr` or `out_len`
 * NULL, `blob` NULL with cap above 0; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked
 * child; as rdma_mgr_listen if it has to listen; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_export_address(rdma_mgr_t *mgr, uint8_t *blob, size_t cap, size_t *out_len);

/**
 * Takes a blob of rdma_mgr_export_address: makes the peer known, or changes its address. The
 * peer's name is a text output; `peer` NULL with cap 0: not wanted. If that text is cut the peer
 * is known nevertheless. The blob is checked, and may come from anywhere.
 *
 * Threads: any. The blob is copied.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: `peer` is too small; RDMA_INVALID_ARGUMENT: `mgr` or `blob`
 * NULL, malformed or longer than 65536 bytes, of another version, one's own, `peer` NULL with cap
 * above 0; RDMA_RESOURCE_EXHAUSTED: too many peers; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
 * in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_import_address(rdma_mgr_t *mgr,
                                    const uint8_t *blob,
                                    size_t blob_len,
                                    char *peer,
                                    size_t cap,
                                    size_t *out_len);

/**
 * Moves data, runs callbacks and timers, and returns; never blocks, but for a page of content that
 * comes late (see "Threads" above). *events is the number of things that happened. With RDMA_PROGRESS_THREAD it may be called too, and helps.
 *
 * Threads: any, but not inside a callback. `events` NULL: not wanted.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: inside a callback,
 * `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_progress(rdma_mgr_t *mgr,
                              uint32_t *events);

/**
 * Drives progress until something happened: a callback ran (on any thread), a connection came or
 * went, a peer asked, somebody called rdma_mgr_wake. Returns at once if something happened since
 * this thread's last call of it, so
 * that nothing is missed between the application's look at its own state and this call; the
 * first call on a thread may return at once. 0 looks once. Spins as busy_poll_us says, then
 * sleeps.
 *
 * Threads: any, but not inside a callback.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: nothing happened; RDMA_INVALID_ARGUMENT: `mgr` NULL,
 * negative timeout; RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked
 * child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_wait(rdma_mgr_t *mgr, int64_t timeout_ms);

/**
 * Ends each rdma_mgr_wait under way with RDMA_OK, and the next one of each other thread, and makes the
 * descriptor of rdma_mgr_event_fd readable once. For a thread that has other work for the one that
 * waits.
 *
 * Threads: any, also inside callbacks.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
 * in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_wake(rdma_mgr_t *mgr);

/**
 * Drives progress until what was accepted has ended and its callbacks have returned: receives from
 * `peer`, and sends that it is taking. `peer` NULL: all receives and sends, also those that nobody
 * has taken yet, or whose receiver, this manager itself, has yet to call rdma_request_release (see rdma_recv_async). What
 * is started meanwhile is waited for, too.
 *
 * Threads: any, but not inside a callback.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: some are still under way; RDMA_INVALID_ARGUMENT: `mgr`
 * NULL, malformed name, negative timeout; RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION:
 * inside a callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed
 * meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_flush(rdma_mgr_t *mgr,
                           const char *peer,
                           int64_t timeout_ms);

/**
 * Gives a descriptor for poll, select or epoll: when it is readable, call rdma_mgr_progress until
 * that reports no events. For RDMA_PROGRESS_MANUAL. Each call gives the same one, and does not make
 * it readable: it is so when there is something to do. The descriptor belongs to the manager: do not
 * read, write or close it. In a forked child its number is a descriptor that is never ready, which the child
 * may close, for an event loop that adds there what it watches (uv_loop_fork, event_reinit).
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `fd` NULL; RDMA_FAILED_PRECONDITION: progress
 * is RDMA_PROGRESS_THREAD, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_event_fd(rdma_mgr_t *mgr,
                              int *fd);

/**
 * Registers memory, so that tensors inside it move without a copy. Not needed for a transfer to
 * work. `device` is RDMA_DEVICE_HOST or an id from rdma_mgr_register_device. Ranges may adjoin,
 * and must not overlap. Where the RDMA device does not take it (a limit on locked memory, say), that is
 * logged, and transfers of it go through memory of the library.
 *
 * Threads: any. The memory stays the application's, and valid until rdma_mem_unregister or
 * rdma_mgr_destroy.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL, len 0 or beyond the address space;
 * RDMA_ALREADY_EXISTS: overlaps registered memory; RDMA_NOT_FOUND: unknown device;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mem_register(rdma_mgr_t *mgr,
                              void *addr,
                              size_t len,
                              uint32_t device);

/**
 * Ends a registration; `addr` as given to rdma_mem_register. Transfers under way that use the
 * memory, and tensors in it that wait to be received, end with RDMA_FAILED_PRECONDITION; a pair with a buffer in it breaks,
 * at both ends, also while it is idle (rdma_buffer_destroy before this spares it); when this
 * returns, neither the library nor a peer reads or writes it any more. Where a peer is slow that
 * takes up to 2 seconds; then the connection to it ends. A result that rdma_recv of the same
 * manager gave by reference stays the application's to keep valid. Callbacks of transfers that had
 * ended before may still run, also with RDMA_OK, after this returned.
 *
 * Threads: any. Drives progress while it waits; inside a callback of `mgr` it does not wait: connections end at
 * once.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL; RDMA_NOT_FOUND: not registered;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child, or called inside a device's copy
 * function of this memory; RDMA_INTERNAL.
 */
rdma_code_t rdma_mem_unregister(rdma_mgr_t *mgr,
                                void *addr);

/**
 * Says that memory is about to be freed or mapped anew: no registration of it that was kept is used
 * again. Only where options.registration_cache_bytes (RDMA_REGISTRATION_CACHE) is not 0; otherwise, and
 * where nothing is kept of the range, it does nothing. Without it a later transfer of memory at the same
 * address would read or write what lay there before. Memory of rdma_mem_register and rdma_mem_alloc is
 * not concerned.
 *
 * Threads: any, also inside callbacks: it waits for nobody. No operation may be using the memory. What other
 * operations use, of one registration with it, stays registered until they have ended.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL, len 0 or beyond the address space;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mem_invalidate(rdma_mgr_t *mgr,
                                void *addr,
                                size_t len);

/**
 * Allocates memory in the library's pool: registered, shared with peers on this host, aligned to
 * 64 bytes, zero when fresh. The best place for tensors.
 *
 * Threads: any. Free it with rdma_mem_free; rdma_mgr_destroy frees what is left.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out` NULL, len 0 or more than half of
 * the address space (PTRDIFF_MAX); RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mem_alloc(rdma_mgr_t *mgr,
                           size_t len,
                           void **out);

/**
 * Frees memory of rdma_mem_alloc. No operation may be using it.
 *
 * Threads: any. `addr` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `addr` NULL; RDMA_NOT_FOUND: not from
 * rdma_mem_alloc of this manager, or freed already; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in
 * a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mem_free(rdma_mgr_t *mgr, void *addr);

/**
 * Makes an accelerator known by its copy functions. *device is its id, for rdma_tensor_t.device,
 * rdma_recv_options_t.device and rdma_mem_register.
 *
 * Threads: any. `ops` is copied; `userdata` (NULL is allowed) is passed to its functions, until
 * rdma_mgr_destroy.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `ops`, `device` or a function NULL, wrong
 * struct_size; RDMA_RESOURCE_EXHAUSTED: too many devices; RDMA_FAILED_PRECONDITION: `mgr`
 * destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_register_device(rdma_mgr_t *mgr,
                                     const rdma_device_ops_t *ops,
                                     void *userdata,
                                     uint32_t *device);

/**
 * Makes a pool of memory for several managers, or for memory that lives longer than a manager, as an allocator's does:
 * like that of rdma_mem_alloc, registered and shared with peers on this host by every manager that has it in
 * options.pool. It takes `max_bytes` of the address space at most, 2 MiB or a multiple at a time; 0: as much as there is
 * physical memory. Memory is taken on need.
 *
 * Threads: any; the handle may be used from any thread at once. It is of no use in a forked child, where every function
 * returns RDMA_FAILED_PRECONDITION for it; the memory is not in the child, and touching it there ends it with SIGSEGV.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, max_bytes 1 to 2097151;
 * RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_INTERNAL.
 */
rdma_code_t rdma_pool_create(size_t max_bytes,
                             rdma_pool_t **out);

/**
 * Allocates memory in a pool, aligned to 64 bytes. The content is not defined. It is the application's until
 * rdma_pool_free, whatever becomes of managers.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` or `out` NULL, len 0 or more than PTRDIFF_MAX; RDMA_RESOURCE_EXHAUSTED: more than the pool's
 * most, no memory or descriptors; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_pool_alloc(rdma_pool_t *pool,
                            size_t len,
                            void **out);

/**
 * Frees memory of rdma_pool_alloc. No operation of any manager may be using it.
 *
 * Threads: any. `addr` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` or `addr` NULL; RDMA_NOT_FOUND: not from rdma_pool_alloc of this pool,
 * or freed already; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_pool_free(rdma_pool_t *pool,
                           void *addr);

/**
 * Bytes of a pool that are allocated, and bytes of address space that it takes for them.
 *
 * Threads: any. Either of `used` and `reserved` may be NULL.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` NULL; RDMA_FAILED_PRECONDITION: `pool` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_pool_usage(rdma_pool_t *pool,
                            uint64_t *used,
                            uint64_t *reserved);

/**
 * Ends a pool's handle. Its memory goes, also what was not freed, once the managers that have it in their options have
 * ended as well.
 *
 * Threads: any, but not inside a callback. `pool` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `pool` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a callback,
 * destroyed already, or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_pool_destroy(rdma_pool_t *pool);

/**
 * Offers a tensor under `key` for `step`: to a receive that waits here or at a peer, or to one
 * that comes later. Does not wait.
 *
 * Threads: any. Key, struct, dimensions and user bytes are copied; the content is borrowed until `done` runs,
 * once; `done` NULL: not wanted, the content must then live until rdma_mgr_destroy has returned: a
 * peer may still read it after rdma_step_cleanup. On a code other than RDMA_OK `done` never runs.
 * `options` NULL: defaults. `userdata` may be NULL.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `key` or `tensor` NULL, key_len not 1 to 65536,
 * wrong struct_size, negative timeout or dimension, more than 254 dimensions, unknown flags,
 * nbytes without data, more than 512 user bytes, user_len without user; RDMA_ABORTED: sent already, or the step was aborted; then the step's own
 * code; RDMA_NOT_FOUND: unknown device; RDMA_RESOURCE_EXHAUSTED: too many tensors wait;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_send(rdma_mgr_t *mgr,
                      const char *key,
                      size_t key_len,
                      int64_t step,
                      const rdma_tensor_t *tensor,
                      const rdma_send_options_t *options,
                      rdma_send_done_fn done,
                      void *userdata);

/**
 * Starts to receive the tensor `key` of `step` from `peer`; NULL or one's own name: from this
 * manager. `done` runs once, perhaps before this returns, perhaps before *out_request is written.
 * The tensor's struct, dimensions and user bytes are borrowed for that call. `done` NULL: not wanted.
 *
 * Content in the library's memory lives for the call of `done` only, if `out_request` is NULL;
 * otherwise until rdma_request_release, which must be called once, or rdma_mgr_destroy. Content in
 * options.dst, or from options.alloc, is the application's. Where a manager receives from itself, content in the library's
 * memory is the sender's, which is not copied: the send ends, and its `done` runs, when this lifetime is over, and not before.
 *
 * A tensor longer than options.dst_len ends the receive with RDMA_OUT_OF_RANGE; the message says its length. Nothing is
 * written, and the tensor, whatever its length, stays at its sender for the next receive: the send has not ended, unless a
 * source callback had answered. If options.alloc returns NULL, the receive ends with RDMA_RESOURCE_EXHAUSTED and the tensor
 * is gone: the send ends with RDMA_OK if it was short, else with RDMA_CANCELLED.
 *
 * Its deadline ends it once nothing writes to the destination any more: at once as a rule. Where content is on its way from a
 * peer that stands still (a stopped process), and is read from there over tcp (as where options.dst is NULL) or written by it
 * over ibverbs, that is up to 2 s later, or peer_timeout_ms if that is less, and the connection ends with it: nothing else
 * says that the memory is not touched any more.
 *
 * Threads: any. Key, name and options are copied; options.dst is written until `done` runs.
 * `options` NULL: defaults. `userdata` may be NULL. On a code other than RDMA_OK `done` never runs
 * and *out_request is not written.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `key` NULL, key_len not 1 to 65536, malformed
 * name, wrong struct_size, negative timeout, dst_len without dst; RDMA_NOT_FOUND: unknown peer or
 * device; RDMA_RESOURCE_EXHAUSTED: too many requests; RDMA_ABORTED: duplicate receive from this
 * manager, `peer` being NULL or oneself (of one from a peer `done` hears); the step's own code, if it was aborted; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in
 * a forked child; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
 * To `done` come RDMA_OK; RDMA_ABORTED: duplicate receive, or the step was aborted; then the
 * step's own code; RDMA_CANCELLED; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the peer cannot be
 * reached, or is gone; RDMA_OUT_OF_RANGE: dst is too small; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_DATA_LOSS: the checksum differs; RDMA_PERMISSION_DENIED; RDMA_UNAUTHENTICATED;
 * RDMA_NOT_FOUND: another worker answers at the peer's address; RDMA_FAILED_PRECONDITION: the required
 * provider does not reach the peer, a system call that connecting needs is refused, or dst was unregistered; RDMA_INVALID_ARGUMENT: the peer broke the
 * protocol, or no manager answers there; RDMA_INTERNAL; and any code that the peer's application gave.
 */
rdma_code_t rdma_recv_async(rdma_mgr_t *mgr,
                            const char *peer,
                            const char *key,
                            size_t key_len,
                            int64_t step,
                            const rdma_recv_options_t *options,
                            rdma_recv_done_fn done,
                            void *userdata,
                            rdma_request_t *out_request);

/**
 * Receives like rdma_recv_async and waits for the end, driving progress itself. Set
 * out->struct_size first. With `out_request`, content in the library's memory, the dimensions and the
 * user bytes live until rdma_request_release, which must be called once, or rdma_mgr_destroy.
 * `out_request` NULL is allowed with options.dst or options.alloc only; dimensions and user bytes then
 * live until this thread's next rdma_recv. A dst that is too small, and an alloc that returns NULL, are as with rdma_recv_async: after
 * RDMA_OUT_OF_RANGE the tensor can be received again, into a larger one. So is a deadline behind which a peer stands still: it may
 * return up to 2 s later.
 *
 * Threads: any, but not inside a callback.
 *
 * Returns what rdma_recv_async returns, and what it gives to `done`; RDMA_INVALID_ARGUMENT also:
 * `out` NULL or of a wrong struct_size, `out_request` NULL without a destination;
 * RDMA_FAILED_PRECONDITION also: inside a callback.
 */
rdma_code_t rdma_recv(rdma_mgr_t *mgr,
                      const char *peer,
                      const char *key,
                      size_t key_len,
                      int64_t step,
                      const rdma_recv_options_t *options,
                      rdma_tensor_t *out,
                      rdma_request_t *out_request);

/**
 * Asks for the end of a receive. Its callback runs with RDMA_CANCELLED once nothing writes to the
 * destination any more, or with another code if that was earlier. That is up to 2 s later, and ends the connection, where
 * rdma_recv_async says so of the deadline.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: ended already, or
 * never made; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_request_cancel(rdma_mgr_t *mgr,
                                rdma_request_t request);

/**
 * Gives up a request, and with it the library's memory of its result. To be called once for each
 * request that was handed out, also for failed ones. Before the receive has ended, or inside its
 * callback: the callback runs all the same, and the memory is freed once it has returned.
 * rdma_mgr_destroy releases what is left, and unmaps the memory.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: released already,
 * also by rdma_mgr_destroy that runs on another thread, or never made; RDMA_FAILED_PRECONDITION:
 * `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_request_release(rdma_mgr_t *mgr, rdma_request_t request);

/**
 * Fails the pending and the future operations of a step with `code` and `message`, until
 * rdma_step_cleanup.
 *
 * Threads: any. The text is copied; bytes that are not UTF-8 are replaced. `message` NULL with
 * length 0: none. Operations of this manager end with all of it. A peer hears its first 4096 bytes, or 64 where many
 * messages to it wait; one that was cut ends with "...". Where there is no memory for the text, an operation ends without it.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, code RDMA_OK or unknown, `message` NULL with
 * a length, or longer than 65535 bytes; RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
 * forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_step_abort(rdma_mgr_t *mgr,
                            int64_t step,
                            rdma_code_t code,
                            const char *message,
                            size_t message_len);

/**
 * Frees what a step left: tensors nobody took, receives that wait (they end with RDMA_ABORTED),
 * its abort status. A step that never was is success.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
 * in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_step_cleanup(rdma_mgr_t *mgr, int64_t step);

/**
 * Gives the number by which messages name a peer. It is the same for as long as the manager knows the
 * peer. One's own name gives a number, too: messages to oneself.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, malformed name; RDMA_NOT_FOUND: unknown
 * peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_peer_lookup(rdma_mgr_t *mgr,
                             const char *peer_name,
                             rdma_peer_t *out_peer);

/**
 * Gives the name of a peer, as a text output: of the sender of a message, for instance.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` no
 * number of a peer, `buf` NULL with cap above 0, or with `out_len` NULL; RDMA_NOT_FOUND: unknown peer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_peer_name(rdma_mgr_t *mgr,
                           rdma_peer_t peer,
                           char *buf,
                           size_t cap,
                           size_t *out_len);

/**
 * Fills `options` with the defaults: the manager's deadline, standard mode, host memory, no callback.
 * struct_size: sizeof(rdma_msg_options_t).
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong struct_size; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_options_init(rdma_msg_options_t *options,
                                  size_t struct_size);

/**
 * Begins to send a message of `len` bytes to `peer`, for a receive with this communicator and tag.
 * Messages of one sender to one communicator meet receives in the order of the sends. Ends when
 * `data` may be used again; with RDMA_MSG_SYNCHRONOUS not before a receive has met the message. With manual
 * progress what has ended so may wait here for room still: it goes when the manager is turned, or ends.
 *
 * *out_request is 0 if it has ended when this returns, well, and `done` does not run then: the case
 * of a small message where there is room. Otherwise it is the request, for rdma_msg_test,
 * rdma_msg_wait and rdma_msg_cancel; with options.done for rdma_msg_cancel only. `out_request` NULL:
 * nobody asks.
 *
 * A peer that takes nothing holds its sender back: requests wait, in order, until it does, or until
 * their deadline; see rdma_msg_room. What is short and has waited for 20 ms is offered, so that a receive finds it whatever lies before
 * it, and costs more than where there is room, beyond 1 KiB some thirty times as much: who sends thousands of small messages to one receiver paces himself by
 * rdma_msg_room and rdma_msg_on_room. Messages to oneself are not held back. Of messages that no receive has met 65,536 at most, with 8 MiB of headers and lengths of parts, are offered on a
 * connection beside those that went at once: what is sent then waits here, and the peer knows nothing of it, so
 * that a receive for a later message alone is met by none until earlier ones are received. Of all peers together 1,048,576 messages
 * may wait for receives; the connection by which one more comes ends. If the connection ends, what was reported as ended may be lost;
 * what waits fails with RDMA_UNAVAILABLE. A send that is taken back, or whose deadline passes, while its
 * peer knows of it, ends when the peer has answered or has the content, or has said nothing for two
 * seconds or more; ten seconds behind its deadline in any case, with the connection if need be.
 *
 * Threads: any. `data` is borrowed until the end; NULL is allowed with len 0. `options` NULL:
 * defaults.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` 0 or no number of a peer, `data` NULL
 * with a length, wrong struct_size, mode or timeout; RDMA_NOT_FOUND: unknown peer or device;
 * RDMA_RESOURCE_EXHAUSTED: too many requests, no memory, no room in what rdma_msg_attach allows;
 * RDMA_FAILED_PRECONDITION: RDMA_MSG_BUFFERED without rdma_msg_attach, `mgr` destroyed or in a forked child;
 * RDMA_UNAVAILABLE: the peer has restarted, and options.incarnation is another one;
 * RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
 * A peer that is not connected is dialled again and again until the deadline: one that nobody answers for ends the send with
 * RDMA_DEADLINE_EXCEEDED, and the text tells what the tries met.
 * The end is RDMA_OK; RDMA_CANCELLED: by either side; RDMA_DEADLINE_EXCEEDED; RDMA_UNAVAILABLE: the
 * connection ended, the peer ended while connecting, is gone, or has come back as another one than options.incarnation; RDMA_UNAUTHENTICATED: the secrets differ; RDMA_NOT_FOUND: another worker
 * answers at the peer's address; RDMA_RESOURCE_EXHAUSTED: no memory; RDMA_FAILED_PRECONDITION: its
 * memory was unregistered, or no connection as rdma_mgr_connect tells; RDMA_DATA_LOSS: what came over the connection was damaged;
 * RDMA_INVALID_ARGUMENT: the peer broke the protocol, or no manager answers there; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_isend(rdma_mgr_t *mgr,
                           rdma_peer_t peer,
                           uint32_t comm,
                           uint64_t tag,
                           const void *data,
                           size_t len,
                           const rdma_msg_options_t *options,
                           rdma_msg_request_t *out_request);

/**
 * Begins to receive a message into `len` bytes at `buf`: the first of `source` (RDMA_PEER_ANY: of
 * anybody) for this communicator whose tag equals `tag` in the bits of `mask`. Of several receives
 * that a message may meet it meets the one that was called first. With a mask of all bits it is found at once, however
 * many messages wait that no receive has met; with another mask those of its communicator are looked at one after the other
 * until one fits. A longer message ends the receive
 * with RDMA_OUT_OF_RANGE and its real length; it is gone, and nothing is written.
 *
 * *out_request is 0 if it has ended when this returns, well: then *out_status says how, and `done`
 * does not run. Otherwise it is the request, as of rdma_msg_isend. `out_status` NULL: not wanted.
 *
 * One that has met no message does not end with its peer's connection: `source` is a name, whose next connection, or next process, may
 * bring what it waits for. Whoever wants an end when the peer is gone gives options.incarnation, as the status of a message or
 * rdma_peer_info_t.message_incarnation tells it: such a receive meets messages of that incarnation alone, what it has said before its end among
 * them, and ends with RDMA_UNAVAILABLE when the last connection to it ends; with a peer that stands still that is after peer_timeout_ms, or never where that
 * has manual progress. One of a peer that was never connected waits until an incarnation comes, and ends so if it is another one.
 *
 * Of what a peer had sent before its connection ended that stays to be received which had come whole, up to 64 MiB of all peers together: with more
 * what those that ended first have left is dropped, which is logged, and of one connection's more what came last. What had not come whole, since it was
 * long or there was no room for it, is lost, and what was sent behind it may be received: who wants none without the other counts his messages.
 *
 * Its deadline ends it once nothing writes to `buf` any more: at once as a rule, up to 2 s later, or peer_timeout_ms if that is
 * less, where long content is on its way from a peer that stands still; and the connection then ends with it. A message whose
 * receive ends so is lost.
 *
 * Threads: any. `buf` is written until the end; NULL is allowed with len 0. `options` NULL: defaults.
 * Set out_status->struct_size first.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `source` no number of a peer, or RDMA_PEER_ANY with options.incarnation, `buf` NULL with a
 * length, wrong struct_size or timeout; RDMA_NOT_FOUND: unknown peer or device;
 * RDMA_RESOURCE_EXHAUSTED: too many requests, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
 * in a forked child; RDMA_UNAVAILABLE: the peer has restarted, and options.incarnation is another one, or it is this one and has no connection, and nothing that it has said is
 * here for this receive; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
 * The end is RDMA_OK; RDMA_OUT_OF_RANGE; RDMA_CANCELLED: by either side; RDMA_DEADLINE_EXCEEDED;
 * RDMA_UNAVAILABLE: the connection ended while the content was on its way, or the last one to options.incarnation did; RDMA_RESOURCE_EXHAUSTED: no
 * memory; RDMA_DATA_LOSS: the checksum differs; RDMA_FAILED_PRECONDITION, RDMA_PERMISSION_DENIED: its
 * memory, or the sender's, was unregistered; RDMA_INVALID_ARGUMENT: the peer broke the protocol; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_irecv(rdma_mgr_t *mgr,
                           rdma_peer_t source,
                           uint32_t comm,
                           uint64_t tag,
                           uint64_t mask,
                           void *buf,
                           size_t len,
                           const rdma_msg_options_t *options,
                           rdma_msg_status_t *out_status,
                           rdma_msg_request_t *out_request);

/**
 * Sends like rdma_msg_isend and waits for the end, driving progress itself. options.done is not used. With
 * RDMA_MSG_BUFFERED it waits for nothing, and drives nothing.
 *
 * Threads: any, but inside a callback only with RDMA_MSG_BUFFERED.
 *
 * Returns what rdma_msg_isend returns, and the end; RDMA_FAILED_PRECONDITION also: inside a callback, in another
 * mode than RDMA_MSG_BUFFERED.
 */
rdma_code_t rdma_msg_send(rdma_mgr_t *mgr,
                          rdma_peer_t peer,
                          uint32_t comm,
                          uint64_t tag,
                          const void *data,
                          size_t len,
                          const rdma_msg_options_t *options);

/**
 * Receives like rdma_msg_irecv and waits for the end, driving progress itself. options.done is not
 * used. *out_status is written where a message was met: also with RDMA_OUT_OF_RANGE.
 *
 * Threads: any, but not inside a callback. `out_status` NULL: not wanted.
 *
 * Returns what rdma_msg_irecv returns, and the end; RDMA_FAILED_PRECONDITION also: inside a callback.
 */
rdma_code_t rdma_msg_recv(rdma_mgr_t *mgr,
                          rdma_peer_t source,
                          uint32_t comm,
                          uint64_t tag,
                          uint64_t mask,
                          void *buf,
                          size_t len,
                          const rdma_msg_options_t *options,
                          rdma_msg_status_t *out_status);

/**
 * Looks for the first message that such a receive would meet, and waits for one up to timeout_ms; 0
 * looks once. `claim`: no other receive meets it any more; rdma_msg_imrecv with out_status->message
 * receives it, and has to be called. Until then its sender may take it back: the receive then ends with
 * RDMA_CANCELLED (or RDMA_OUT_OF_RANGE, if its memory is too short).
 *
 * Threads: any, but not inside a callback. Set out_status->struct_size first.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: there is none; RDMA_INVALID_ARGUMENT: `mgr` or `out_status`
 * NULL, `source` no number of a peer, wrong struct_size, negative timeout; RDMA_NOT_FOUND: unknown
 * peer; RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child;
 * RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_probe(rdma_mgr_t *mgr,
                           rdma_peer_t source,
                           uint32_t comm,
                           uint64_t tag,
                           uint64_t mask,
                           bool claim,
                           int64_t timeout_ms,
                           rdma_msg_status_t *out_status);

/**
 * Begins to receive a message that rdma_msg_probe has claimed; otherwise as rdma_msg_irecv. options.incarnation is not looked at: whose
 * message it is, the probe has said. It holds its sender back no more: who begins one for each message that comes, as a handler may,
 * bounds how many are under way.
 *
 * Threads: any.
 *
 * Returns what rdma_msg_irecv returns; RDMA_INVALID_ARGUMENT also: `message` 0; RDMA_NOT_FOUND also:
 * the message is not known, or was received.
 */
rdma_code_t rdma_msg_imrecv(rdma_mgr_t *mgr,
                            uint64_t message,
                            void *buf,
                            size_t len,
                            const rdma_msg_options_t *options,
                            rdma_msg_status_t *out_status,
                            rdma_msg_request_t *out_request);

/**
 * Takes a message operation back, unless that is too late, as in MPI: a receive that has met its
 * message, and a send whose message a receive has met, go on and end as if nothing had been asked, so
 * that no message is lost. Otherwise it ends with RDMA_CANCELLED, and nothing was written; or, where the
 * peer knows of it and does not say in time whether a receive has met it, with RDMA_UNAVAILABLE: within
 * some seconds, and then the connection ends, and with it all that is under way on it. The end is
 * told as usual. What must end in any case has a deadline: a receive that it ends in the middle of its
 * message may have been written in part, and that message is gone.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: its end was told
 * already, or it never was; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_cancel(rdma_mgr_t *mgr,
                            rdma_msg_request_t request);

/**
 * Nobody will ask for the end of this request; it goes on, and its memory stays borrowed.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, request 0; RDMA_NOT_FOUND: its end was told
 * already, or it never was; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_free(rdma_mgr_t *mgr, rdma_msg_request_t request);

/**
 * Takes the ends of message operations, if they have ended, and drives progress once where not. `how`:
 * RDMA_MSG_ALL takes all or none, RDMA_MSG_ANY one, RDMA_MSG_SOME those that have ended. Each request
 * whose end was taken becomes 0; requests that are 0 count as none, and where all are nothing is driven.
 *
 * *out_count is the number of ends; out_indices[i] says of which request the i-th is, and
 * out_statuses[i] how it ended. Both have room for `count`, or are NULL: not wanted. Without
 * out_statuses the code of the first that failed is returned, with everything else as on success. Set
 * out_statuses[0].struct_size first: the others are as long.
 *
 * A request that was made with options.done has no end to be taken here, since that callback hears it: as long as it is
 * under way it counts as one that has not ended, and then as one that is not known: RDMA_NOT_FOUND, and nothing is taken
 * of the others either.
 *
 * Threads: any, but not inside a callback where not all have ended. Each request in one call at a time, and once in it: of one
 * that is there twice the first becomes 0, and the other names a request that is not known any more.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr`, `requests` or `out_count` NULL, count not 1 to 1048576,
 * unknown `how`, wrong struct_size; RDMA_NOT_FOUND: a request is not known; RDMA_FAILED_PRECONDITION:
 * inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_test(rdma_mgr_t *mgr,
                          rdma_msg_request_t *requests,
                          size_t count,
                          uint32_t how,
                          size_t *out_indices,
                          rdma_msg_status_t *out_statuses,
                          size_t *out_count);

/**
 * Waits until rdma_msg_test would take ends, driving progress, and takes them. timeout_ms:
 * RDMA_MSG_FOREVER for none. Where all requests are 0 it returns at once. It must not be given a request that was made with
 * options.done: for one that is under way it waits, and returns RDMA_NOT_FOUND once that has ended (with RDMA_MSG_ALL once
 * those before it in `requests` have ended as well).
 *
 * Threads: any, but not inside a callback. Each request in one call at a time.
 *
 * Returns what rdma_msg_test returns; RDMA_DEADLINE_EXCEEDED: they did not end in time, and nothing was
 * taken (without out_statuses also the code of one that was taken: *out_count and its request tell);
 * RDMA_INVALID_ARGUMENT also: another negative timeout; RDMA_CANCELLED: `mgr` was destroyed meanwhile, or an operation was
 * cancelled. Where `mgr` is destroyed it returns once all of `requests` have ended, and takes their ends as ever: then
 * their memory is not the library's any more, nor that of those which RDMA_MSG_ANY leaves.
 */
rdma_code_t rdma_msg_wait(rdma_mgr_t *mgr,
                          rdma_msg_request_t *requests,
                          size_t count,
                          uint32_t how,
                          int64_t timeout_ms,
                          size_t *out_indices,
                          rdma_msg_status_t *out_statuses,
                          size_t *out_count);

/**
 * Sets the function that active messages of this number run on their arrival, or, with NULL, takes it
 * away; one that is running may still be, and messages that have come before may still be given to it: `userdata`
 * lives until rdma_mgr_destroy has returned. Messages that have come while there was none go to the new one. Until there
 * is one they wait, and hold their senders back as messages that no receive has met.
 *
 * Threads: any. `handler` runs where callbacks run; it may call what callbacks may. Messages are handed
 * out in the order in which they came, but by whichever thread drives progress, and may overlap then.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_handler(rdma_mgr_t *mgr,
                             uint32_t handler_id,
                             rdma_msg_handler_fn handler,
                             void *userdata);

/**
 * The same, whose handler is shown content where the peer wrote it, without a copy, if it can be: over shm, from 2 KiB up. What
 * process that is runs as this user; one that misbehaves can change the bytes while they are read: check copies of them, not
 * the bytes themselves. Where there is a header `data` then begins at any address. Until the handler has returned nothing of
 * what the peer wrote since then is given back to it: some 256 KiB may come meanwhile, of whatever kind, and then all that this peer
 * sends waits. So it must not wait for anything of that peer. Anywhere else nothing differs.
 *
 * Threads: any. `handler` runs where callbacks run; it may call what callbacks may.
 *
 * Returns what rdma_msg_handler returns.
 */
rdma_code_t rdma_msg_handler_in_place(rdma_mgr_t *mgr,
                                      uint32_t handler_id,
                                      rdma_msg_handler_fn handler,
                                      void *userdata);

/**
 * Sends like rdma_msg_isend, to the handler of this number at the peer (rdma_msg_handler). It ends as a
 * send to a receive does; with RDMA_MSG_SYNCHRONOUS not before the handler is about to run.
 *
 * Threads: any. `data` is borrowed until the end; NULL is allowed with len 0. `options` NULL:
 * defaults. `out_request` NULL: nobody asks.
 *
 * Returns what rdma_msg_isend returns.
 */
rdma_code_t rdma_msg_am_isend(rdma_mgr_t *mgr,
                              rdma_peer_t peer,
                              uint32_t handler_id,
                              uint64_t tag,
                              const void *data,
                              size_t len,
                              const rdma_msg_options_t *options,
                              rdma_msg_request_t *out_request);

/**
 * Prepares a send: rdma_msg_start begins it, as rdma_msg_isend would with these arguments, as often as
 * it is called.
 *
 * Threads: any. `data` is borrowed from each start to its end, the options are copied.
 *
 * Returns what rdma_msg_isend returns of its arguments; RDMA_INVALID_ARGUMENT also: `out_persistent`
 * NULL.
 */
rdma_code_t rdma_msg_send_init(rdma_mgr_t *mgr,
                               rdma_peer_t peer,
                               uint32_t comm,
                               uint64_t tag,
                               const void *data,
                               size_t len,
                               const rdma_msg_options_t *options,
                               rdma_msg_persistent_t *out_persistent);

/**
 * Prepares a receive: rdma_msg_start begins it, as rdma_msg_irecv would with these arguments, as often
 * as it is called.
 *
 * Threads: any. `buf` is written from each start to its end, the options are copied. Whether the incarnation of options.incarnation is
 * gone, rdma_msg_start finds out.
 *
 * Returns what rdma_msg_irecv returns of its arguments; RDMA_INVALID_ARGUMENT also: `out_persistent`
 * NULL.
 */
rdma_code_t rdma_msg_recv_init(rdma_mgr_t *mgr,
                               rdma_peer_t source,
                               uint32_t comm,
                               uint64_t tag,
                               uint64_t mask,
                               void *buf,
                               size_t len,
                               const rdma_msg_options_t *options,
                               rdma_msg_persistent_t *out_persistent);

/**
 * Begins what was prepared. Its request and status are those of rdma_msg_isend and rdma_msg_irecv; of a
 * send *out_status is left as it is. One prepared receive must not be started again before it has ended.
 *
 * Threads: any. `out_status`, `out_request` NULL: not wanted. Set out_status->struct_size first.
 *
 * Returns what rdma_msg_isend or rdma_msg_irecv returns; RDMA_INVALID_ARGUMENT also: `persistent` 0;
 * RDMA_NOT_FOUND also: `persistent` is not known, or was freed.
 */
rdma_code_t rdma_msg_start(rdma_mgr_t *mgr,
                           rdma_msg_persistent_t persistent,
                           rdma_msg_status_t *out_status,
                           rdma_msg_request_t *out_request);

/**
 * Forgets what was prepared; what it has begun goes on.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `persistent` 0; RDMA_NOT_FOUND: not known, or
 * freed already; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_persistent_free(rdma_mgr_t *mgr, rdma_msg_persistent_t persistent);

/**
 * Lets sends with RDMA_MSG_BUFFERED take up to `bytes` of memory for copies of their content, each 256
 * more than that. Such a send ends in its call, whether or not a receive waits, and nobody hears what becomes of the
 * message; the memory is free again when it has gone.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, `bytes` 0; RDMA_ALREADY_EXISTS: attached already;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_attach(rdma_mgr_t *mgr,
                            uint64_t bytes);

/**
 * Waits until all that was sent with RDMA_MSG_BUFFERED has gone, driving progress, and forbids more.
 * timeout_ms: RDMA_MSG_FOREVER for none.
 *
 * Threads: any, but not inside a callback.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, a negative timeout; RDMA_DEADLINE_EXCEEDED: it has
 * not gone in time, and the buffer stays attached; RDMA_FAILED_PRECONDITION: none is attached, inside a callback, `mgr`
 * destroyed or in a forked child; RDMA_CANCELLED: `mgr` was destroyed meanwhile; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_detach(rdma_mgr_t *mgr,
                            int64_t timeout_ms);

/**
 * Gives how many bytes of messages may be sent to a peer now before one has to wait: each message counts
 * for its content, if it is small, and some 256 bytes. 0 while messages wait, or there is no connection.
 *
 * Over all providers but shm the number of messages has a bound as well, of which this says nothing before it is reached, and 0
 * then: a peer keeps so many receives ready for a connection as its queue_depth says (RDMA_QP_QUEUE_DEPTH; of it 8 to 4096) over tcp
 * and loopback, 64 over ibverbs. Two of them are kept back, and each message, also of other operations, takes one until
 * the peer has taken it off the connection, and told of that. By default some 1020 messages of no content go to a peer over tcp
 * that looks at nothing, of the 4096 that the bytes would allow.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_bytes` NULL, `peer` 0 or no number of a peer;
 * RDMA_NOT_FOUND: unknown peer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_room(rdma_mgr_t *mgr,
                          rdma_peer_t peer,
                          uint64_t *out_bytes);

/**
 * Calls `room` once, when `bytes` of messages may be sent to a peer without waiting, as rdma_msg_room
 * counts them; connects to it if need be. More than 786432 count as that, since a peer tells of room in
 * steps of a quarter of its 1 MiB. That is room in bytes: of many small messages some may have to wait all the same, as
 * rdma_msg_room tells. It may be called within this. If the peer cannot be reached,
 * or the manager is destroyed, it is called with the code that says so; if there is no room within the manager's timeout_ms,
 * whether the peer takes nothing or is not connected, with RDMA_DEADLINE_EXCEEDED.
 *
 * Threads: any. `room` runs where callbacks run.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `room` NULL, `peer` 0 or no number of a peer, bytes
 * not 1 to 1048576; RDMA_NOT_FOUND: unknown peer; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_msg_on_room(rdma_mgr_t *mgr,
                             rdma_peer_t peer,
                             uint64_t bytes,
                             rdma_msg_room_fn room,
                             void *userdata);

/**
 * Fills in the defaults. `struct_size` is sizeof(rdma_store_options_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_options_init(rdma_store_options_t *options, size_t struct_size);

/**
 * Makes a store in memory, for the threads of this process.
 *
 * A store maps keys, bytes of 1 to RDMA_STORE_MAX_KEY_LEN, to values, bytes of 0 to
 * RDMA_STORE_MAX_VALUE_LEN. Every kind does the same, on bytes that are copied during the call.
 * *out is ended by rdma_store_destroy. `options` NULL: defaults.
 *
 * Threads: any; the handle may be used from any thread at once, and is of no use in a forked child,
 * where every function returns RDMA_FAILED_PRECONDITION for it.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `out` NULL, wrong struct_size, an option that is not allowed;
 * RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_memory(const rdma_store_options_t *options,
                              rdma_store_t **out);

/**
 * Opens a store in the directory `path`, for processes that share a file system; makes the directory if
 * its parent is there. Each key is a file. Writes are atomic, and end or have no effect if a process dies
 * in them; values outlive the processes, but for those under a lease. Hosts that share one have to agree
 * on the time as well as leases need it, and a clock that is set on by two thirds of a ttl may end them; keys may be
 * seen again when it is set back.
 *
 * Threads and `options` as for rdma_store_memory.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `path` or `out` NULL, a path of 0 or more than 4095 bytes or
 * not UTF-8, wrong struct_size or option; RDMA_NOT_FOUND, RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE,
 * RDMA_RESOURCE_EXHAUSTED: by the system; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_file(const char *path,
                            const rdma_store_options_t *options,
                            rdma_store_t **out);

/**
 * Serves a store at `address`, "host:port", IPv6 in brackets, port 0 is any, to those who connect by
 * rdma_store_tcp; this process uses the handle itself. What is in it ends with its last handle. The
 * address bound to is a text output; `bound` NULL with cap 0: not wanted; if that text is cut nothing is
 * served. Beyond loopback it needs options.secret, or options.allow_remote. Who does not keep to the
 * protocol, or has not proved the secret in ten seconds, is disconnected. Nothing is encrypted.
 *
 * Threads and `options` as for rdma_store_memory.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: `bound` is too small; RDMA_INVALID_ARGUMENT: `address` or `out`
 * NULL, malformed address, `bound` NULL with cap above 0, wrong struct_size or option;
 * RDMA_FAILED_PRECONDITION: no secret for an address beyond loopback; RDMA_ALREADY_EXISTS: address in
 * use; RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE, RDMA_RESOURCE_EXHAUSTED: by the system; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_tcp_serve(const char *address,
                                 const rdma_store_options_t *options,
                                 char *bound,
                                 size_t cap,
                                 size_t *out_len,
                                 rdma_store_t **out);

/**
 * Makes a client of the store that somebody serves, or will serve, at `address`. Connects when it is
 * used, and tries again until the operation's deadline. A connection that breaks is made anew, unseen;
 * but rdma_store_add and rdma_store_compare_set return RDMA_UNAVAILABLE then, since it is not known
 * whether they were done. A change that the server was told, and did not confirm before the deadline, may
 * have been done, or be done later, which rdma_last_error says; but not behind what the same process asks
 * next, unless the network holds the end of the earlier connection up.
 *
 * Threads and `options` as for rdma_store_memory.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `address` or `out` NULL, malformed address, no port, wrong
 * struct_size or option; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_tcp(const char *address,
                           const rdma_store_options_t *options,
                           rdma_store_t **out);

/**
 * Makes a client of the Redis server at `address`, "host:port" or "unix:/path"; options.secret is its
 * password. Connects when it is used, as rdma_store_tcp does; but a change that the server was told, and did
 * not confirm before the deadline, may be done later even behind what is asked next. Keys and values are
 * Redis strings of the same names; keys that begin with "rdma-lease:" are refused.
 *
 * Threads and `options` as for rdma_store_memory.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `address` or `out` NULL, malformed address, wrong struct_size
 * or option; RDMA_UNIMPLEMENTED: not in this build; RDMA_RESOURCE_EXHAUSTED: no descriptors;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_store_redis(const char *address,
                             const rdma_store_options_t *options,
                             rdma_store_t **out);

/**
 * Makes a store of functions of the application. What it lacks returns RDMA_UNIMPLEMENTED; it has no
 * leases.
 *
 * Threads and `options` as for rdma_store_memory. `ops` is copied; its functions get `userdata`, run
 * inside the calls that need them, and may call the library, but not rdma_store_destroy.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `ops` or `out` NULL, ops.set or ops.get NULL, wrong struct_size
 * or option; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_custom(const rdma_store_ops_t *ops,
                              void *userdata,
                              const rdma_store_options_t *options,
                              rdma_store_t **out);

/**
 * Makes a view of what lies under a prefix: its key "k" is key "prefix/k" of `store`, which may be a view
 * itself. A view of a leased view shares its lease. It is ended by rdma_store_destroy, and may be used
 * after the end of `store`.
 *
 * Threads: any. The prefix is copied.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store`, `prefix` or `out` NULL, a prefix that is empty or, with
 * those before it, longer than keys may be; RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked
 * child; RDMA_RESOURCE_EXHAUSTED: no descriptors; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_prefix(const rdma_store_t *store,
                              const char *prefix,
                              size_t prefix_len,
                              rdma_store_t **out);

/**
 * Makes a view under a new lease: what is written through it lasts only as long as the lease. A thread of
 * the library renews the lease each third of `ttl_ms`. It ends when the last view that shares it is
 * destroyed, at once; when the process ends without that, after at most ttl_ms; and when it could not be
 * renewed for ttl_ms: then it is lost, and writes through the view return RDMA_FAILED_PRECONDITION from then
 * on.
 *
 * With its end each key whose last write was under it is as if it had been deleted, for everybody, and
 * in a Redis or TCP store it is. Who waits for such a key waits on; a wait that is over is over. A key that
 * was last written by others, with or without a lease of theirs, stays. In a directory the files stay until
 * somebody opens the directory, or begins a lease in it.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` or `out` NULL, ttl_ms not 100 to 86400000;
 * RDMA_UNIMPLEMENTED: a store of the application's; RDMA_DEADLINE_EXCEEDED: the store was not reached, or did
 * not answer; RDMA_PERMISSION_DENIED, RDMA_UNAVAILABLE, RDMA_DATA_LOSS: as rdma_store_set;
 * RDMA_UNAUTHENTICATED; RDMA_CANCELLED, RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked child;
 * RDMA_RESOURCE_EXHAUSTED: no memory, disk, descriptors or threads; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_lease(const rdma_store_t *store,
                             int64_t ttl_ms,
                             rdma_store_t **out);

/**
 * Ends a handle: calls of other threads with it end with RDMA_CANCELLED and have returned when this
 * returns. Server, connections and lease end with the last handle that shares them; to end a lease whose
 * store does not answer takes up to 2 s.
 *
 * Threads: any, at any time of the process's life, but not inside a function of rdma_store_ops_t or
 * another callback, nor where a thread of a store logs. `store` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a
 * callback, destroyed already, or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_destroy(rdma_store_t *store);

/**
 * Sets a key to a value.
 *
 * timeout_ms of this and the other operations: milliseconds, RDMA_STORE_DEFAULT, RDMA_STORE_FOREVER or
 * RDMA_STORE_NOW, which is as RDMA_STORE_DEFAULT for what waits for no keys.
 *
 * Threads: any. `value` NULL is allowed with length 0.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `store` NULL, a key or value of a length that is not allowed, NULL
 * with a length, a timeout that is not allowed. All operations on a store also return
 * RDMA_DEADLINE_EXCEEDED: the store was not reached, or was locked by others, or did not answer: of a change
 * rdma_last_error says then that it may have been done, or be done later; RDMA_CANCELLED: `store` was
 * destroyed meanwhile; RDMA_FAILED_PRECONDITION: `store` destroyed or in a forked child; of writes, its lease
 * was lost; the server refuses; RDMA_UNAUTHENTICATED: by the server; RDMA_RESOURCE_EXHAUSTED: no memory or
 * disk, here or there; RDMA_PERMISSION_DENIED: by the system, or by a Redis server, which may have done a part
 * of it; RDMA_UNAVAILABLE: by the system, or a directory that is gone; RDMA_DATA_LOSS: what is there, or
 * came, is damaged or a stranger's; RDMA_UNIMPLEMENTED: the application's store has no such function; the
 * codes of its functions; RDMA_UNKNOWN: an error of Redis's; RDMA_INTERNAL.
 */
rdma_code_t rdma_store_set(const rdma_store_t *store,
                           const char *key,
                           size_t key_len,
                           const void *value,
                           size_t value_len,
                           int64_t timeout_ms);

/**
 * Sets several keys, values[i] of keys[i]. Others may see some of them before the rest.
 *
 * Threads: any.
 *
 * Returns what rdma_store_set returns; RDMA_INVALID_ARGUMENT also: `keys` or `values` NULL, count not 1 to
 * RDMA_STORE_MAX_KEYS. After an error some may have been set.
 */
rdma_code_t rdma_store_multi_set(const rdma_store_t *store,
                                 const rdma_bytes_t *keys,
                                 const rdma_bytes_t *values,
                                 size_t count,
                                 int64_t timeout_ms);

/**
 * Gives the value of a key, once it is there: all of it and its length, or, with RDMA_OUT_OF_RANGE, only
 * the length. `buf` NULL with cap 0 asks for the length.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_NOT_FOUND: it is not there, with
 * RDMA_STORE_NOW; RDMA_DEADLINE_EXCEEDED: it did not come in time; RDMA_INVALID_ARGUMENT also: `out_len`
 * NULL, `buf` NULL with cap above 0; otherwise as rdma_store_set.
 */
rdma_code_t rdma_store_get(const rdma_store_t *store,
                           const char *key,
                           size_t key_len,
                           int64_t timeout_ms,
                           void *buf,
                           size_t cap,
                           size_t *out_len);

/**
 * Gives the values of several keys, once they are all there: that of keys[i] goes to buffers[i].data, and its
 * length to buffers[i].len. If one does not fit, RDMA_OUT_OF_RANGE: then the lengths alone are written.
 *
 * Threads: any.
 *
 * Returns what rdma_store_get returns; RDMA_INVALID_ARGUMENT also: `keys` or `buffers` NULL, count not 1 to
 * RDMA_STORE_MAX_KEYS.
 */
rdma_code_t rdma_store_multi_get(const rdma_store_t *store,
                                 const rdma_bytes_t *keys,
                                 rdma_bytes_out_t *buffers,
                                 size_t count,
                                 int64_t timeout_ms);

/**
 * Waits until each of the keys has been there. With RDMA_STORE_NOW: one look.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: some are missing, and rdma_last_error names them;
 * RDMA_INVALID_ARGUMENT also: `keys` NULL, count not 1 to RDMA_STORE_MAX_KEYS; otherwise as rdma_store_set.
 */
rdma_code_t rdma_store_wait(const rdma_store_t *store,
                            const rdma_bytes_t *keys,
                            size_t count,
                            int64_t timeout_ms);

/**
 * Tells whether all of the keys are there, at one look.
 *
 * Threads: any.
 *
 * Returns what rdma_store_set returns; RDMA_INVALID_ARGUMENT also: `keys` or `out_all` NULL, count not 1 to
 * RDMA_STORE_MAX_KEYS.
 */
rdma_code_t rdma_store_check(const rdma_store_t *store,
                             const rdma_bytes_t *keys,
                             size_t count,
                             int64_t timeout_ms,
                             bool *out_all);

/**
 * Adds `delta` to a value that is a decimal number, where nothing counts as 0, and gives the sum. The
 * value is the sum as text: rdma_store_get gives "5".
 *
 * Threads: any.
 *
 * Returns what rdma_store_set returns; RDMA_FAILED_PRECONDITION also: the value is no number;
 * RDMA_OUT_OF_RANGE: the sum does not fit into 64 bits; RDMA_UNAVAILABLE: the connection broke, and it is
 * not known whether it was done; RDMA_INVALID_ARGUMENT also: `out_sum` NULL.
 */
rdma_code_t rdma_store_add(const rdma_store_t *store,
                           const char *key,
                           size_t key_len,
                           int64_t delta,
                           int64_t timeout_ms,
                           int64_t *out_sum);

/**
 * Sets a key to `desired` if its value is `expected`; `expected` NULL: if it is not there. *out_result is
 * RDMA_STORE_SET, RDMA_STORE_DIFFERS or RDMA_STORE_ABSENT. With RDMA_STORE_DIFFERS the value that is there
 * goes to `buf`, as in rdma_store_get; `buf` NULL with cap 0 and `out_len` NULL: not wanted.
 *
 * Threads: any.
 *
 * Returns what rdma_store_set returns; RDMA_OUT_OF_RANGE: the value that is there does not fit; nothing was
 * changed, and *out_result is written; RDMA_UNAVAILABLE: the connection broke, and it is not known whether it
 * was done; RDMA_INVALID_ARGUMENT also: `out_result` NULL, `buf` NULL with cap above 0.
 */
rdma_code_t rdma_store_compare_set(const rdma_store_t *store,
                                   const char *key,
                                   size_t key_len,
                                   const void *expected,
                                   size_t expected_len,
                                   const void *desired,
                                   size_t desired_len,
                                   int64_t timeout_ms,
                                   int32_t *out_result,
                                   void *buf,
                                   size_t cap,
                                   size_t *out_len);

/**
 * Deletes a key. *out_was_there tells whether it was there; `out_was_there` NULL: not wanted.
 *
 * Threads: any.
 *
 * Returns what rdma_store_set returns. After a connection broke and was made anew, *out_was_there may be
 * false for a key that this call deleted.
 */
rdma_code_t rdma_store_delete(const rdma_store_t *store,
                              const char *key,
                              size_t key_len,
                              int64_t timeout_ms,
                              bool *out_was_there);

/**
 * Makes one end of a pair, towards `rank`: a connection whose buffers are addressed by slot. `rank` is
 * the application's, for errors and rdma_pair_info. A send waits `timeout_ms` (0: the manager's;
 * RDMA_MSG_FOREVER: none) for the other end to open its slot.
 *
 * Threads: any. Close it with rdma_pair_close; rdma_mgr_destroy closes what is left.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_pair` NULL, wrong timeout;
 * RDMA_RESOURCE_EXHAUSTED: too many pairs, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
 * forked child; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_pair_create(rdma_mgr_t *mgr,
                             uint64_t rank,
                             int64_t timeout_ms,
                             rdma_pair_t *out_pair);

/**
 * Gives the address of this end, bytes for the other end's rdma_pair_connect: at most
 * RDMA_PAIR_ADDRESS_MAX. It travels over the runtime's own control plane, a store for instance, and
 * whoever has it may connect. Listens if the manager does not yet. Writes all of it and its length, or,
 * with RDMA_OUT_OF_RANGE, only the length needed; `address` NULL with cap 0 asks for the length.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: cap is too small; RDMA_INVALID_ARGUMENT: `mgr` or `out_len` NULL,
 * `address` NULL with cap above 0; RDMA_NOT_FOUND: unknown pair; RDMA_FAILED_PRECONDITION: `mgr`
 * destroyed or in a forked child; as rdma_mgr_listen if it has to listen; RDMA_INTERNAL.
 */
rdma_code_t rdma_pair_address(rdma_mgr_t *mgr,
                              rdma_pair_t pair,
                              uint8_t *address,
                              size_t cap,
                              size_t *out_len);

/**
 * Connects this end to the one whose address is given, by rdma_pair_address of another manager, and
 * waits at most `timeout_ms` until that one is connected to this one. With 0 it only begins to: buffers
 * can be made and sent from at once, and rdma_pair_info tells. Both ends have to call it, in any order.
 * That whose manager's name is higher (by bytes) leaves it to the other to dial: for 20 ms, or half of
 * `timeout_ms` if that is less, unless something else wants the connection.
 * Again with the same address is the same wait. The other end's manager is known from then on, as by
 * rdma_mgr_add_peer.
 *
 * Threads: any. Drives progress while it waits. `address` is copied; it is checked, and may come from
 * anywhere.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: not yet, it goes on; RDMA_UNAVAILABLE: the other end is gone,
 * or cannot be reached; RDMA_UNAUTHENTICATED: wrong secret; RDMA_INVALID_ARGUMENT: `mgr` or `address`
 * NULL, malformed, this manager's own, wrong timeout; RDMA_NOT_FOUND: unknown pair, or
 * closed meanwhile; RDMA_FAILED_PRECONDITION: connected elsewhere, no provider in common, inside a callback
 * with a timeout, `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED: too many peers, a buffer
 * that cannot be registered; RDMA_CANCELLED: `mgr` is being destroyed; RDMA_INTERNAL; and what else rdma_mgr_connect returns.
 */
rdma_code_t rdma_pair_connect(rdma_mgr_t *mgr,
                              rdma_pair_t pair,
                              const uint8_t *address,
                              size_t len,
                              int64_t timeout_ms);

/**
 * Tells what is known of a pair. Why one is broken is left to rdma_last_error.
 *
 * Threads: any. Set out->struct_size first.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, wrong struct_size; RDMA_NOT_FOUND: unknown
 * pair; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_pair_info(rdma_mgr_t *mgr,
                           rdma_pair_t pair,
                           rdma_pair_info_t *out);

/**
 * Closes this end of a pair and destroys its buffers, as rdma_buffer_destroy: that takes up to 2 seconds where the other end
 * stands still in the middle of a transfer. The other end hears of it: what waits there fails with RDMA_UNAVAILABLE.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown pair;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_pair_close(rdma_mgr_t *mgr,
                            rdma_pair_t pair);

/**
 * Makes a buffer from which rdma_buffer_send sends to the receive buffer of the same slot at the other
 * end. Several of one slot are allowed. With `event` its sends are told there; without, to
 * rdma_buffer_wait_send.
 *
 * Threads: any. The memory is the application's, of the host, and stays valid until rdma_buffer_destroy
 * or rdma_pair_close has returned; what is being sent stays unchanged. `addr` NULL is allowed with len 0:
 * for notices without content. `event` NULL is allowed.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
 * beyond the address space; RDMA_NOT_FOUND: unknown pair; RDMA_RESOURCE_EXHAUSTED: too many buffers, no
 * memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; why the pair is broken;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_create_send(rdma_mgr_t *mgr,
                                    rdma_pair_t pair,
                                    uint64_t slot,
                                    void *addr,
                                    size_t len,
                                    rdma_buffer_fn event,
                                    void *userdata,
                                    rdma_buffer_t *out_buffer);

/**
 * Makes a buffer that the other end writes to by its sends to this slot: its memory is opened to it, now
 * or as soon as the pair is connected, and until it is destroyed. One of each slot of a pair is allowed.
 * With `event` arrivals are told there; without, to rdma_buffer_wait_recv. An arrival means that the
 * content of that send, and of all that the other end posted before it, is in its place.
 *
 * Threads: any. The memory is the application's, of the host, and stays valid until rdma_buffer_destroy
 * or rdma_pair_close has returned. `addr` NULL is allowed with len 0: for notices without content.
 * `event` NULL is allowed.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
 * beyond the address space; RDMA_NOT_FOUND: unknown pair; RDMA_ALREADY_EXISTS: the slot has a receive
 * buffer; RDMA_RESOURCE_EXHAUSTED: too many buffers (65,536 of a pair that are written
 * to), memory that cannot be registered, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed
 * or in a forked child; why the pair is broken; RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_create_recv(rdma_mgr_t *mgr,
                                    rdma_pair_t pair,
                                    uint64_t slot,
                                    void *addr,
                                    size_t len,
                                    rdma_buffer_fn event,
                                    void *userdata,
                                    rdma_buffer_t *out_buffer);

/**
 * Begins to send `len` bytes at `offset` of a send buffer, to `remote_offset` of the receive buffer of
 * its slot at the other end: by one WRITE WITH IMMEDIATE, or several WRITEs where it is long. It waits
 * for that buffer to be made there, and any number may be under way (65,536 of a pair, with those that
 * failed and were not waited for). `len` 0 is a notice without content.
 *
 * Sends of one slot take effect in the order of the calls; those of a pair, too, but for sends that wait
 * for their slot. Once its slot is open a send has no deadline: it ends, or its connection does. A send
 * that meets a receive buffer which is being destroyed ends with RDMA_PERMISSION_DENIED, or waits for the
 * next one of its slot: whichever comes first. Nothing keeps a send from writing over what the receiver has
 * not read: that is the application's to agree upon.
 *
 * The memory stays unchanged until the send has ended, or until rdma_pair_info tells that no send of the
 * pair reads any (`reading`), which is sooner over TCP.
 *
 * Threads: any.
 *
 * Returns RDMA_OK: it has begun, and ends once, told to the buffer's callback or rdma_buffer_wait_send;
 * RDMA_OUT_OF_RANGE: not within the buffer, or within the other end's, if that is known already;
 * RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer; RDMA_RESOURCE_EXHAUSTED: too many
 * sends, no memory; RDMA_FAILED_PRECONDITION: a receive buffer, `mgr` destroyed or in a forked child; why
 * the pair is broken; RDMA_INTERNAL.
 * The end is RDMA_OK: the content is in its place; RDMA_OUT_OF_RANGE; RDMA_DEADLINE_EXCEEDED: the other
 * end did not open the slot; RDMA_PERMISSION_DENIED: it destroyed its buffer meanwhile;
 * RDMA_FAILED_PRECONDITION: the memory at the one end or the other was unmapped or protected meanwhile (over shm, where the system
 * copies between the processes: long content), of which the other end hears nothing; what a process copies itself it faults at, as at
 * any access of its own; RDMA_RESOURCE_EXHAUSTED: the memory cannot be registered; RDMA_INTERNAL; why the pair is broken:
 * RDMA_UNAVAILABLE: the other end is gone, and perhaps has heard of the content before; RDMA_DATA_LOSS; and why it did
 * not connect, as rdma_pair_connect tells.
 */
rdma_code_t rdma_buffer_send(rdma_mgr_t *mgr,
                             rdma_buffer_t buffer,
                             size_t offset,
                             size_t len,
                             uint64_t remote_offset);

/**
 * Waits until a send of the buffer has ended, and takes its end: as many calls as sends, in the order in
 * which these ended. Of a buffer without callback. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none.
 *
 * Threads: any. Drives progress while it waits.
 *
 * Returns RDMA_OK; how the send ended, as rdma_buffer_send tells; RDMA_DEADLINE_EXCEEDED: none has ended
 * (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout; RDMA_NOT_FOUND: unknown
 * buffer; RDMA_FAILED_PRECONDITION: no send is under way, a receive buffer, a buffer with a callback,
 * inside a callback, `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being destroyed;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_wait_send(rdma_mgr_t *mgr,
                                  rdma_buffer_t buffer,
                                  int64_t timeout_ms);

/**
 * Waits until content has arrived in the buffer, and takes that arrival: as many calls as the other end
 * has sent. Of a buffer without callback. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none.
 *
 * Threads: any. Drives progress while it waits.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: nothing has arrived (nothing is changed by that); why the pair
 * is broken, after all arrivals were taken: RDMA_UNAVAILABLE, RDMA_DATA_LOSS, RDMA_CANCELLED, and why it did
 * not connect, as rdma_pair_connect tells;
 * RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: a send buffer, a buffer with a callback, inside a callback, `mgr` destroyed or
 * in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_wait_recv(rdma_mgr_t *mgr,
                                  rdma_buffer_t buffer,
                                  int64_t timeout_ms);

/**
 * Tells how many ends of sends and how many arrivals of a buffer could be taken at once. Drives progress
 * once if there are none. `out_sent` or `out_received` NULL: not wanted. Of a receive buffer in which nothing
 * will arrive any more it tells why, once all arrivals were taken; inside a callback rdma_pair_info does.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; why the pair is broken, as rdma_buffer_wait_recv; RDMA_INVALID_ARGUMENT: `mgr` NULL;
 * RDMA_NOT_FOUND: unknown buffer; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_test(rdma_mgr_t *mgr,
                             rdma_buffer_t buffer,
                             uint64_t *out_sent,
                             uint64_t *out_received);

/**
 * Destroys a buffer. Its sends that wait are dropped, those under way end; nobody is told. When this
 * returns, neither the library nor the other end reads or writes its memory any more, and its callback
 * does not run. Where the other end is slow that takes up to 2 seconds; then the connection to it ends,
 * and with it its pairs. What the other end sends to the slot once it has heard of this waits for the next
 * receive buffer of it; a send that it begins before it has, which takes a message's time, ends with
 * RDMA_PERMISSION_DENIED, and is not done, a notice without content as any (over ibverbs this returns when the other end has heard,
 * and what is sent until then may have been done, and is gone with the buffer). Over shm a process that was stopped in the middle of a transfer
 * may read the memory of a send buffer once more when it goes on; what it read counts for nothing. Who waits
 * for the buffer gets RDMA_NOT_FOUND.
 *
 * Threads: any. Inside a callback of `mgr`, connections end at once rather than be waited for, and a
 * callback of the buffer that runs is not waited for.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_buffer_destroy(rdma_mgr_t *mgr,
                                rdma_buffer_t buffer);

/**
 * Makes a buffer whose content goes to any peer, and comes from any, by slot. A slot is a tag, and the
 * communicator the buffer's: its sends meet receives of other unbound buffers and rdma_msg_irecv there,
 * its receives what unbound buffers and rdma_msg_isend send. Any number of operations may be under way.
 *
 * Threads: any. The memory is the application's, of the host, and stays valid until rdma_unbound_destroy
 * has returned RDMA_OK, or rdma_mgr_destroy has. `addr` NULL is allowed with len 0.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `out_buffer` NULL, `addr` NULL with a length, len
 * beyond the address space; RDMA_RESOURCE_EXHAUSTED: no memory, or 1,048,576 are there;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_create(rdma_mgr_t *mgr,
                                uint32_t comm,
                                void *addr,
                                size_t len,
                                rdma_unbound_t *out_buffer);

/**
 * Begins to send `len` bytes at `offset` of the buffer to `slot` of a peer. `timeout_ms` 0: the manager's;
 * RDMA_MSG_FOREVER: none. Sends to one peer and slot arrive in the order of the calls.
 *
 * Threads: any. What is being sent stays unchanged until the send has ended.
 *
 * Returns RDMA_OK: it has begun, and its end is one that rdma_unbound_wait_send takes;
 * RDMA_OUT_OF_RANGE: not within the buffer; RDMA_INVALID_ARGUMENT: `mgr` NULL, `peer` 0 or no number of a
 * peer, wrong timeout; RDMA_NOT_FOUND: unknown buffer or peer; RDMA_RESOURCE_EXHAUSTED: too many
 * operations, no memory; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED:
 * `mgr` is being destroyed; RDMA_INTERNAL.
 * The end is as of rdma_msg_isend.
 */
rdma_code_t rdma_unbound_send(rdma_mgr_t *mgr,
                              rdma_unbound_t buffer,
                              rdma_peer_t peer,
                              uint64_t slot,
                              size_t offset,
                              size_t len,
                              int64_t timeout_ms);

/**
 * The same in synchronous mode: the send ends once a receive has met it, or as rdma_unbound_send does when none does. For a runtime
 * whose sender is to notice that its peer does not receive, as over Gloo's tcp. It costs a word back for each send. Of ABI version 9.
 *
 * Threads, memory and results as of rdma_unbound_send.
 */
rdma_code_t rdma_unbound_ssend(rdma_mgr_t *mgr,
                               rdma_unbound_t buffer,
                               rdma_peer_t peer,
                               uint64_t slot,
                               size_t offset,
                               size_t len,
                               int64_t timeout_ms);

/**
 * Begins to receive into `len` bytes at `offset` of the buffer what comes first to `slot` from one of the
 * `n` peers at `sources`; with `n` 0, or 1 and RDMA_PEER_ANY, from any peer. A longer message ends it with RDMA_OUT_OF_RANGE, and
 * is gone. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none. That a peer is gone ends no receive, since
 * it may come back.
 *
 * Threads: any. `sources` is copied, each may be named several times, NULL is allowed with `n` 0. The part
 * of the buffer is written until the receive has ended.
 *
 * Returns RDMA_OK: it has begun, and its end is one that rdma_unbound_wait_recv takes;
 * RDMA_OUT_OF_RANGE: not within the buffer; RDMA_INVALID_ARGUMENT: `mgr` NULL, `sources` NULL with `n`
 * above 0, `n` above RDMA_UNBOUND_MAX_SOURCES, one of several sources RDMA_PEER_ANY, no number of a peer, wrong timeout;
 * RDMA_NOT_FOUND: unknown buffer or peer; RDMA_RESOURCE_EXHAUSTED: too many operations, no memory;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 * The end is as of rdma_msg_irecv.
 */
rdma_code_t rdma_unbound_recv(rdma_mgr_t *mgr,
                              rdma_unbound_t buffer,
                              const rdma_peer_t *sources,
                              size_t n,
                              uint64_t slot,
                              size_t offset,
                              size_t len,
                              int64_t timeout_ms);

/**
 * Waits until a send of the buffer has ended, and takes its end: in the order in which they ended, but those to one peer and
 * slot in the order of the calls, as long as they end well; as many calls as sends. It also waits where none is under way, for what another thread begins. `timeout_ms` 0: the manager's; RDMA_MSG_FOREVER: none. *out_status tells of the
 * send: its peer, its slot as the tag, its length, and as its code what is returned. If none was taken,
 * its peer is 0 and its code RDMA_OK, whatever is returned. NULL: not wanted.
 *
 * Threads: any; several may wait. Drives progress while it waits. Set out_status->struct_size first.
 *
 * Returns RDMA_OK; how the send ended, as of rdma_msg_isend; RDMA_CANCELLED: none was taken because of
 * rdma_unbound_abort_wait_send, or `mgr` is being destroyed; RDMA_DEADLINE_EXCEEDED: none has
 * ended (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout or struct_size;
 * RDMA_NOT_FOUND: unknown buffer, or destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_wait_send(rdma_mgr_t *mgr,
                                   rdma_unbound_t buffer,
                                   int64_t timeout_ms,
                                   rdma_msg_status_t *out_status);

/**
 * Waits until a receive of the buffer has ended, and takes its end, as rdma_unbound_wait_send.
 * out_status->peer is who sent the message; where none came, from whom it was to come, or 0 if several;
 * bytes its length, also where it was too long. Of several receives of one slot that a message may meet
 * it meets the one that was called first; where they name the same peers, their ends are taken in the order of the
 * calls, too, as long as they end well. One that ends while its message is on its way (by its deadline,
 * say) may have written part of its memory, and the message is gone.
 *
 * Threads: any; several may wait. Drives progress while it waits. Set out_status->struct_size first.
 *
 * Returns RDMA_OK; how the receive ended, as of rdma_msg_irecv; RDMA_CANCELLED: none was taken because of
 * rdma_unbound_abort_wait_recv, or `mgr` is being destroyed; RDMA_DEADLINE_EXCEEDED: none has ended
 * (nothing is changed by that); RDMA_INVALID_ARGUMENT: `mgr` NULL, wrong timeout or struct_size;
 * RDMA_NOT_FOUND: unknown buffer, or destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_wait_recv(rdma_mgr_t *mgr,
                                   rdma_unbound_t buffer,
                                   int64_t timeout_ms,
                                   rdma_msg_status_t *out_status);

/**
 * Tells how many ends of sends and of receives of a buffer could be taken at once. Drives progress once if
 * there are none. `out_sent` or `out_received` NULL: not wanted.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_test(rdma_mgr_t *mgr,
                              rdma_unbound_t buffer,
                              uint64_t *out_sent,
                              uint64_t *out_received);

/**
 * Asks for the end of all that is under way in the buffer: each send and receive ends with RDMA_CANCELLED, or as it would have, once
 * nothing reads or writes its part any more (at once as a rule; where the other end stands still 2 s after it was last heard, which may be
 * up to 4 s later, and the connection ends with it), and its end
 * is taken as any. The buffer stays. It is for who gives up, after a wait that took too long, and does not want to wait in
 * rdma_unbound_destroy. Of ABI version 11.
 *
 * Threads: any, also inside a callback: it waits for nobody.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_cancel(rdma_mgr_t *mgr,
                                rdma_unbound_t buffer);

/**
 * Makes one wait for a send of the buffer return RDMA_CANCELLED, before it takes an end: of those that are
 * under way the first for which no abort has come yet, even if another wait begins meanwhile; where there is none, the
 * next that begins. The sends go on.
 *
 * Threads: any, also inside a callback.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_abort_wait_send(rdma_mgr_t *mgr,
                                         rdma_unbound_t buffer);

/**
 * Makes one wait for a receive of the buffer return RDMA_CANCELLED, before it takes an end: of those that are
 * under way the first for which no abort has come yet, even if another wait begins meanwhile; where there is none, the
 * next that begins. The receives go on.
 *
 * Threads: any, also inside a callback.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_abort_wait_recv(rdma_mgr_t *mgr,
                                         rdma_unbound_t buffer);

/**
 * Destroys an unbound buffer: cancels what is under way, and waits for its end, which nobody is told. When
 * this returns, its memory is the application's. Who waits for the buffer gets RDMA_NOT_FOUND.
 *
 * Threads: any, but not inside a callback. Drives progress while it waits: where a peer is slow, for up to
 * 4 seconds, or 8 while content is on its way to it; then the connection to it ends.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_NOT_FOUND: unknown buffer;
 * RDMA_FAILED_PRECONDITION: inside a callback, `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_unbound_destroy(rdma_mgr_t *mgr,
                                 rdma_unbound_t buffer);

/**
 * Fills in the defaults. `struct_size` is sizeof(rdma_mesh_options_t). Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `options` NULL, wrong size; RDMA_INTERNAL.
 */
rdma_code_t rdma_mesh_options_init(rdma_mesh_options_t *options, size_t struct_size);

/**
 * Meets the managers of all ranks, 0 to size - 1, of which this one is `rank`, through a store in which
 * each publishes its address. Give each job, or each mesh of a job, a prefix of its own. Every rank calls
 * it, in any order; it returns when all have. What earlier jobs have left under the same prefix, well or
 * killed, is not taken for this one's. Called again with the same manager, within options.keep_ms, it meets
 * the same ranks at once.
 *
 * The managers' names have to differ; a manager that does not listen yet begins to, on loopback:
 * rdma_mgr_listen first where ranks are on several hosts. The ranks become peers of `mgr`, as by
 * rdma_mgr_import_address, and connect on first use, or now with options.full: then managers that the
 * application drives have to be driven until all ranks have returned. The mesh itself is a table: it needs
 * neither the store nor the manager any more, and is ended by rdma_mesh_destroy.
 *
 * Threads: any; with options.full it drives progress, so not inside a callback. `options` NULL: defaults.
 *
 * Returns RDMA_OK; RDMA_DEADLINE_EXCEEDED: ranks did not come, or were not connected, in time, and
 * rdma_last_error names them, or rank 0, for which the others wait first; RDMA_INVALID_ARGUMENT: `mgr`,
 * `store` or `out` NULL, `rank` not below `size`, size not 1 to RDMA_MESH_MAX_RANKS, wrong struct_size or
 * option; ranks that say another size, or have the same name, which all that have come hear within seconds; RDMA_ABORTED: another
 * manager came as the same rank, and has its place; RDMA_DATA_LOSS: a value in the store is no rank's; RDMA_FAILED_PRECONDITION: inside a
 * callback, `mgr` or `store` destroyed or in a forked child; RDMA_CANCELLED: `mgr` or `store` was
 * destroyed meanwhile; RDMA_RESOURCE_EXHAUSTED: too many peers; as rdma_store_set and
 * rdma_mgr_export_address; with options.full why a rank cannot be connected, as rdma_mgr_connect tells:
 * RDMA_UNAVAILABLE where one ended meanwhile (called again by all, they meet whoever has come in its place). One that ends as soon as its
 * own call has returned may be gone for another, which hears RDMA_UNAVAILABLE some seconds later, or, if it had not seen the connection by
 * then, waits for it until RDMA_DEADLINE_EXCEEDED: let all of them have returned, as by a barrier, before one ends; RDMA_INTERNAL.
 */
rdma_code_t rdma_mesh_connect(rdma_mgr_t *mgr,
                              const rdma_store_t *store,
                              uint32_t rank,
                              uint32_t size,
                              const rdma_mesh_options_t *options,
                              rdma_mesh_t **out);

/**
 * Gives the peer that is `rank`, for rdma_msg_isend and the like; rdma_peer_name gives its name. It is the
 * same for as long as the manager knows the peer. One's own rank gives a number, too.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` or `out_peer` NULL, no such rank; RDMA_FAILED_PRECONDITION:
 * `mesh` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mesh_peer(const rdma_mesh_t *mesh,
                           uint32_t rank,
                           rdma_peer_t *out_peer);

/**
 * Gives the rank that a peer is: of the sender of a message, for instance.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` or `out_rank` NULL, `peer` 0 or no number of a peer;
 * RDMA_NOT_FOUND: it is no rank; RDMA_FAILED_PRECONDITION: `mesh` destroyed or in a forked child;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_mesh_rank(const rdma_mesh_t *mesh,
                           rdma_peer_t peer,
                           uint32_t *out_rank);

/**
 * Ends a mesh. Its peers stay known to the manager, and connected.
 *
 * Threads: any, but not inside a callback. `mesh` NULL is an error.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mesh` NULL or no handle; RDMA_FAILED_PRECONDITION: inside a
 * callback, destroyed already, or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mesh_destroy(rdma_mesh_t *mesh);

/**
 * Takes a key of TensorFlow apart: `src_device;src_incarnation;dst_device;edge_name;frame:iter`,
 * the incarnation in hexadecimal. Set out->struct_size first. The library itself treats keys as
 * bytes; this is for runtimes which name tensors so.
 *
 * Threads: any. The texts of *out point into `key`.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: an argument NULL, wrong struct_size, key_len not 1 to
 * 65536, or a malformed key, with the part that is wrong; RDMA_INTERNAL.
 */
rdma_code_t rdma_key_parse(const char *key, size_t key_len, rdma_parsed_key_t *out);

/**
 * Puts a key together, as TensorFlow does; the inverse of rdma_key_parse. Text output.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `parts` or one of
 * its texts NULL, wrong struct_size, a part that would not parse again, key longer than 65536
 * bytes, bytes that are not UTF-8, `buf` NULL with cap above 0, or with `out_len` NULL;
 * RDMA_INTERNAL.
 */
rdma_code_t rdma_key_build(const rdma_parsed_key_t *parts, char *buf, size_t cap, size_t *out_len);

/**
 * Sets the function that is asked for keys which the local table lacks, when a peer requests
 * them. `source` NULL: none, requests wait for rdma_send. Requests that wait already stay with
 * what was set when they came: with options.listen set it in the options instead, where no request
 * can come before it.
 *
 * Threads: any. `userdata` (NULL is allowed) is passed on with requests that came before another
 * source was set, perhaps after this has returned: it must live until rdma_mgr_destroy has returned.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or
 * in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_set_source(rdma_mgr_t *mgr,
                                rdma_source_fn source,
                                void *userdata);

/**
 * Answers a request that came to the source function with a tensor.
 *
 * Threads: any, also inside the source function. Struct and dimensions are copied; the content is
 * borrowed until `done` runs, once. `done` NULL: not wanted, the content must then live until
 * rdma_mgr_destroy has returned. On a code other than RDMA_OK `done` never runs, and except for
 * RDMA_INVALID_ARGUMENT the response is over.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `tensor` NULL, response 0, and as for
 * rdma_send; RDMA_NOT_FOUND: answered already, never made, or the request has ended meanwhile; unknown device;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_CANCELLED: `mgr` is being
 * destroyed; RDMA_INTERNAL.
 */
rdma_code_t rdma_response_send(rdma_mgr_t *mgr,
                               rdma_response_t response,
                               const rdma_tensor_t *tensor,
                               rdma_send_done_fn done,
                               void *userdata);

/**
 * Answers a request that came to the source function with an error, which ends the peer's receive.
 *
 * Threads: any, also inside the source function. The text is copied; bytes that are not UTF-8 are
 * replaced. `message` NULL with length 0: none. A peer hears the first 4096 bytes of it, or 64 where many messages to it
 * wait; a text that was cut ends with "...".
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL, response 0, code RDMA_OK or unknown,
 * `message` NULL with a length, or longer than 65535 bytes; RDMA_NOT_FOUND: answered already,
 * never made, or the request has ended meanwhile; RDMA_RESOURCE_EXHAUSTED: no memory;
 * RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_response_fail(rdma_mgr_t *mgr,
                               rdma_response_t response,
                               rdma_code_t code,
                               const char *message,
                               size_t message_len);

/**
 * Statistics as a JSON object: per peer and provider bytes, requests, completions by code,
 * protocols, connections, and latencies of receives. Text output.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `buf`
 * NULL with cap above 0, or with `out_len` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
 * forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_stats_json(const rdma_mgr_t *mgr, char *buf, size_t cap, size_t *out_len);

/**
 * The same in Prometheus' text format, to be served by the application. Text output.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_OUT_OF_RANGE: the text was cut; RDMA_INVALID_ARGUMENT: `mgr` NULL, `buf`
 * NULL with cap above 0, or with `out_len` NULL; RDMA_FAILED_PRECONDITION: `mgr` destroyed or in a
 * forked child; RDMA_INTERNAL.
 */
rdma_code_t rdma_mgr_metrics(const rdma_mgr_t *mgr, char *buf, size_t cap, size_t *out_len);

/**
 * Starts to write transfers to the file `path` as Chrome's trace events, which
 * Perfetto opens. An existing file is replaced; "%p" in the path becomes the process id, "%n" the
 * manager's name. Environment: RDMA_TRACE.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` or `path` NULL, not UTF-8, longer than 4095 bytes, a FIFO, socket or terminal;
 * RDMA_FAILED_PRECONDITION: a trace is running, another manager's is written to that file, `mgr` destroyed or in a forked child;
 * RDMA_NOT_FOUND, RDMA_PERMISSION_DENIED, RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE: the file
 * cannot be written; RDMA_INTERNAL.
 */
rdma_code_t rdma_trace_start(rdma_mgr_t *mgr,
                             const char *path);

/**
 * Completes the trace's file and closes it.
 *
 * Threads: any.
 *
 * Returns RDMA_OK; RDMA_INVALID_ARGUMENT: `mgr` NULL; RDMA_FAILED_PRECONDITION: no trace is
 * running, `mgr` destroyed or in a forked child; RDMA_RESOURCE_EXHAUSTED, RDMA_UNAVAILABLE: the
 * file could not be written; RDMA_INTERNAL.
 */
rdma_code_t rdma_trace_stop(rdma_mgr_t *mgr);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RDMA_TRANSPORT_H */

#ifdef RDMA_TRANSPORT_DIAGNOSTICS_PUSHED
#undef RDMA_TRANSPORT_DIAGNOSTICS_PUSHED
#pragma GCC diagnostic pop
#endif
