/* The C tests' own harness: cases in processes of their own, checks that name values, operations
 * that must end exactly once. */
#ifndef RT_HARNESS_H
#define RT_HARNESS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <rdma_transport.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
/* Where something changes at a length. */
#define AROUND(n) (n) - 1, (n), (n) + 1

/* ---- cases ---- */
typedef struct test_case {
  const char *name;
  void (*run)(void);
  unsigned seconds; /* watchdog; 0: 60 */
} test_case;
typedef struct test_role { /* what a child process of a test does */
  const char *name;
  int (*run)(int argc, char **argv);
} test_role;
#define CASE(f) {#f, f, 0}
#define SLOW(f, s) {#f, f, s}

/* Runs every case (or those named on the command line) in a process of its own. */
int test_main(int argc, char **argv, const test_case *cases, size_t ncases, const test_role *roles,
              size_t nroles);
#define TEST_MAIN(cases)                                                       \
  int main(int argc, char **argv) {                                            \
    return test_main(argc, argv, cases, COUNT_OF(cases), NULL, 0);             \
  }
#define TEST_MAIN_ROLES(cases, roles)                                          \
  int main(int argc, char **argv) {                                            \
    return test_main(argc, argv, cases, COUNT_OF(cases), roles,                \
                     COUNT_OF(roles));                                         \
  }

/* What the command line and the environment chose. */
typedef struct test_env {
  const char *provider; /* "loopback", "shm", "tcp", "ibverbs", "auto" */
  const char *host;     /* address to listen on, "127.0.0.1" */
  const char *peer_host; /* the same for peer processes: RDMA_TEST_PEER_HOST, or as ours */
  const char *peer_exec; /* command that runs them, such as "ip netns exec b": RDMA_TEST_PEER_EXEC, or "" */
  int32_t progress;     /* RDMA_PROGRESS_* */
  int32_t protocol;     /* RDMA_PROTOCOL_* */
} test_env;
extern test_env env;
bool is_provider(const char *name);
bool is_manual(void);

/* ---- checks: a failed one prints the place and the values and ends the case ---- */
void fail_at(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* Path of this program, as tools that run programs (valgrind) understand it. */
char *own_program(void);
void skip(const char *why) __attribute__((noreturn));
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(cond) ((cond) ? (void)0 : fail_at(__FILE__, __LINE__, "false: %s", #cond))
#define CHECK_MSG(cond, ...) ((cond) ? (void)0 : fail_at(__FILE__, __LINE__, __VA_ARGS__))
#define CHECK_CODE(want, expr) check_code(__FILE__, __LINE__, (want), (expr), #expr)
#define CHECK_OK(expr) CHECK_CODE(RDMA_OK, expr)
#define CHECK_INT(want, expr) check_int(__FILE__, __LINE__, (long long)(want), (long long)(expr), #expr)
#define CHECK_STR(want, expr) check_str(__FILE__, __LINE__, (want), (expr), #expr)
#define CHECK_HAS(text, part) check_has(__FILE__, __LINE__, (text), (part))
/* The text in rdma_last_error has this in it. */
#define error_has(part) error_has_at(__FILE__, __LINE__, (part))
void error_has_at(const char *file, int line, const char *part);
/* The call fails with this code and leaves a text in rdma_last_error. */
#define CHECK_BAD(want, expr) (other_error(), check_bad(__FILE__, __LINE__, (want), (expr), #expr))
void check_code(const char *f, int l, rdma_code_t want, rdma_code_t got, const char *expr);
void check_int(const char *f, int l, long long want, long long got, const char *expr);
void check_str(const char *f, int l, const char *want, const char *got, const char *expr);
void check_has(const char *f, int l, const char *text, const char *part);
void check_bad(const char *f, int l, rdma_code_t want, rdma_code_t got, const char *expr);
void other_error(void); /* leaves a text that no call under test leaves */

/* ---- content ---- */
void fill(void *memory, size_t n, uint64_t seed);
long long mismatch(const void *memory, size_t n, uint64_t seed); /* first wrong byte or -1 */
void *scratch(size_t n);                                           /* freed after the case */
/* A one-dimensional tensor over this memory (NULL: fresh memory), filled with the seed. */
rdma_tensor_t tensor_of(void *memory, size_t n, uint64_t seed);

/* ---- managers ---- */
typedef void (*tweak_fn)(rdma_mgr_options_t *options);
rdma_mgr_t *mgr_new(const char *name, tweak_fn tweak);
rdma_code_t mgr_try(const char *name, tweak_fn tweak, rdma_mgr_t **out);
void mgr_end(rdma_mgr_t *mgr); /* checked destroy */
void mgr_listen(rdma_mgr_t *mgr, char address[256]);
void drive(rdma_mgr_t *mgr);   /* manual mode: a thread drives this manager from now on */
void drive_stop(rdma_mgr_t *mgr);
typedef struct pair {
  rdma_mgr_t *a, *b; /* "alpha" and "beta", each with the other's address */
  char a_address[256], b_address[256];
} pair;
pair pair_new(tweak_fn tweak);
void pair_end(pair *p);

/* ---- waiting ---- */
typedef bool (*condition_fn)(void *arg);
bool pump_until(condition_fn condition, void *arg, int64_t ms); /* false: did not come true, however patient */
void pump_for(int64_t ms);
bool count_reached(_Atomic int *counter, int target, int64_t ms);
int64_t now_ms(void);
/* The same without the time in which the machine did not let this process run: for checks of how long something took. */
int64_t lived_ms(void);
int64_t patience(int64_t ms); /* so much time, times RDMA_TEST_PATIENCE */
#define CONNECT_MS patience(120000) /* a connection that has to come about; a machine may stand still meanwhile */

/* ---- operations, each checked after the case to have ended exactly once ---- */
typedef struct op {
  struct op *next;
  char what[160];
  rdma_code_t rc;     /* what the call returned */
  _Atomic int ended;  /* callbacks so far */
  _Atomic bool returned;
  rdma_code_t code;   /* from here: valid once ended */
  char message[400];
  char provider[32], peer[256];
  rdma_transfer_info_t info;
  rdma_tensor_t tensor; /* dims points to dims below */
  int64_t dims[RDMA_MAX_DIMS];
  bool had_tensor;
  long long wrong_at; /* first wrong byte of the content, -1 none */
  const void *data;
  uint64_t seed;
  bool check_content;
  rdma_request_t request;
  void (*also)(struct op *, void *); /* called last in the callback */
  void *also_arg;
} op;
op *op_send(rdma_mgr_t *mgr, const char *key, int64_t step, const rdma_tensor_t *tensor);
op *op_send_opt(rdma_mgr_t *mgr, const char *key, size_t key_len, int64_t step,
                const rdma_tensor_t *tensor, const rdma_send_options_t *options);
/* Checks the content against the seed inside the callback. */
op *op_recv(rdma_mgr_t *mgr, const char *peer, const char *key, int64_t step, uint64_t seed,
            const rdma_recv_options_t *options);
typedef struct recv_call {
  rdma_mgr_t *mgr;
  const char *peer, *key;
  size_t key_len; /* 0: strlen */
  int64_t step;
  const rdma_recv_options_t *options;
  bool check_content;
  uint64_t seed;
  bool keep; /* ask for a request id; op->request */
  void (*also)(op *, void *);
  void *also_arg;
} recv_call;
op *op_recv_call(const recv_call *call);
rdma_recv_options_t recv_options(void);
void op_wait(op *o, rdma_code_t want); /* 30 s at most */
bool op_ended(op *o);
bool op_ended_fn(void *o); /* the same as a condition */
op *op_adopt(const char *what); /* for calls that the helpers do not make; set rc by hand */
void op_send_done(rdma_code_t code, const char *message, size_t message_len,
                  const rdma_transfer_info_t *info, void *userdata);
void op_recv_done(rdma_code_t code, const char *message, size_t message_len,
                  const rdma_tensor_t *tensor, const rdma_transfer_info_t *info, void *userdata);

/* ---- child processes ---- */
typedef struct proc {
  pid_t pid;
  int in, out; /* our ends */
  char buffer[4096];
  size_t have;
} proc;
const char *peer_host(void);
proc *proc_start(const char *role, const char *const *args); /* NULL-terminated */
void proc_say(proc *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *proc_line(proc *p);                /* next line of its output; drives managers */
const char *proc_expect(proc *p, const char *prefix); /* the rest of a line that begins so */
void proc_signal(proc *p, int sig);
void proc_kill(proc *p); /* SIGKILL and reap */
int proc_finish(proc *p); /* say "quit", wait for the exit status */
int serve_role(int argc, char **argv); /* a peer under command: see proc.c */
bool next_line(char *line, int size); /* of stdin, in a child process; false: there is none any more */

/* ---- tagged messages ---- */
rdma_peer_t number_of(rdma_mgr_t *mgr, const char *name);
/* The end of a request, driving managers until then; `at_once` if it is none (NULL: it is one). */
rdma_msg_status_t end_of(rdma_mgr_t *mgr, rdma_msg_request_t request, const rdma_msg_status_t *at_once);

/* ---- /proc/self ---- */
int count_fds(void);
int count_threads(void);
int count_threads_named(const char *name);
int count_maps(void);
bool is_sanitized(void); /* built with a sanitizer, which needs memory of its own */
size_t rss_bytes(void);
size_t mem_available(void);

/* ---- JSON ---- */
const char *json_check(const char *text, size_t len); /* NULL: valid; else what is wrong */

#endif
