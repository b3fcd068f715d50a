/* Two processes: one has a tensor for whoever asks, the other asks and takes the time. The parent has no manager, since a
 * manager does not survive a fork. */
#include "tune.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *memory_of[MEMORIES]; /* of this process */

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static bool all(ssize_t (*io)(int, void *, size_t), int fd, void *bytes, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = io(fd, (char *)bytes + done, n - done);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    done += (size_t)k;
  }
  return true;
}
static ssize_t write_some(int fd, void *bytes, size_t n) { return write(fd, bytes, n); }
static bool read_all(int fd, void *bytes, size_t n) { return all(read, fd, bytes, n); }
static bool write_all(int fd, const void *bytes, size_t n) { return all(write_some, fd, (void *)(uintptr_t)bytes, n); }

/* What a child says first. */
typedef struct hello {
  char address[256];
  uint64_t eager_max;
  char why[512];
} hello;

static _Noreturn void give_up(int out, const char *what) {
  hello h;
  char text[400] = "";
  memset(&h, 0, sizeof h);
  rdma_last_error(text, sizeof text);
  snprintf(h.why, sizeof h.why, "%s: %s", what, text);
  write_all(out, &h, sizeof h);
  _exit(1);
}
#define MUST(out, call) ((call) == RDMA_OK ? (void)0 : give_up(out, #call))

/* What the user has set is not what is measured. */
static void only(const char *provider, const char *protocol) {
  extern char **environ;
  for (char **e = environ; *e;) {
    char name[64] = "";
    if (strncmp(*e, "RDMA_", 5) == 0) snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
    bool keep = !name[0] || !strncmp(name, "RDMA_DEVICE", 11) || !strncmp(name, "RDMA_GID", 8) ||
                !strncmp(name, "RDMA_QP_", 8);
    if (keep || unsetenv(name) != 0) e++;
    else e = environ; /* they have moved */
  }
  setenv("RDMA_TUNING", "/dev/null", 1);
  setenv("RDMA_PROVIDER", provider, 1);
  setenv("RDMA_PROTOCOL", protocol, 1);
}

static rdma_mgr_t *manager(int out, const char *name) {
  rdma_mgr_options_t o;
  rdma_mgr_t *mgr;
  MUST(out, rdma_mgr_options_init(&o, sizeof o));
  o.name = name;
  MUST(out, rdma_mgr_create(&o, &mgr));
  memory_of[ORDINARY] = aligned_alloc(4096, (size_t)MAX_CONTENT * MAX_WINDOW);
  if (!memory_of[ORDINARY]) give_up(out, "memory");
  MUST(out, rdma_mem_alloc(mgr, (size_t)MAX_CONTENT * MAX_WINDOW, &memory_of[POOL]));
  for (int m = 0; m < MEMORIES; m++) memset(memory_of[m], 1 + m, (size_t)MAX_CONTENT * MAX_WINDOW);
  return mgr;
}

/* The key says what is wanted: kind of memory, number within the window, length. */
static void send_it(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, size_t peer_len, const char *key,
                    size_t key_len, int64_t step, void *userdata) {
  unsigned memory = 0, slot = 0, nbytes = 0;
  char text[64];
  rdma_tensor_t t;
  (void)peer, (void)peer_len, (void)step, (void)userdata;
  snprintf(text, sizeof text, "%.*s", (int)key_len, key);
  if (sscanf(text, "%u/%u/%u", &memory, &slot, &nbytes) != 3 || memory >= MEMORIES || slot >= MAX_WINDOW ||
      nbytes > MAX_CONTENT) {
    rdma_response_fail(mgr, response, RDMA_NOT_FOUND, NULL, 0);
    return;
  }
  rdma_tensor_init(&t, sizeof t);
  t.data = (char *)memory_of[memory] + (size_t)slot * MAX_CONTENT;
  t.nbytes = nbytes;
  if (rdma_response_send(mgr, response, &t, NULL, NULL) != RDMA_OK)
    rdma_response_fail(mgr, response, RDMA_UNAVAILABLE, NULL, 0);
}

static _Noreturn void be_sender(int out, int until) {
  hello h;
  char c;
  memset(&h, 0, sizeof h);
  rdma_mgr_t *mgr = manager(out, "rdma-tune-sender");
  MUST(out, rdma_mgr_set_source(mgr, send_it, NULL));
  MUST(out, rdma_mgr_listen(mgr, "127.0.0.1:0", h.address, sizeof h.address, NULL));
  if (!write_all(out, &h, sizeof h)) _exit(1);
  read_all(until, &c, 1);
  rdma_mgr_destroy(mgr);
  _exit(0);
}

/* ---- the receiver ---- */
static _Atomic uint32_t ended;
static _Atomic int32_t worst;
static _Atomic uint32_t carried;

static void received(rdma_code_t code, const char *message, size_t message_len, const rdma_tensor_t *tensor,
                     const rdma_transfer_info_t *info, void *userdata) {
  (void)message, (void)message_len, (void)tensor, (void)userdata;
  if (code != RDMA_OK) atomic_store(&worst, code);
  atomic_store(&carried, info->protocol);
  atomic_fetch_add(&ended, 1);
}

static void begin(rdma_mgr_t *mgr, const task *t, uint32_t i) {
  static int64_t step;
  rdma_recv_options_t o;
  char key[64];
  uint32_t slot = i % t->window;
  int len = snprintf(key, sizeof key, "%u/%u/%u", t->memory, slot, t->nbytes);
  rdma_recv_options_init(&o, sizeof o);
  o.dst = (char *)memory_of[t->memory] + (size_t)slot * MAX_CONTENT;
  o.dst_len = t->nbytes;
  rdma_code_t code =
      rdma_recv_async(mgr, "rdma-tune-sender", key, (size_t)len, step++, &o, received, NULL, NULL);
  if (code != RDMA_OK) {
    atomic_store(&worst, code);
    atomic_fetch_add(&ended, 1);
  }
}

static took measure(rdma_mgr_t *mgr, const task *t) {
  took r = {0};
  uint32_t begun = 0;
  atomic_store(&ended, 0);
  atomic_store(&worst, RDMA_OK);
  double start = now_us();
  for (uint32_t done; (done = atomic_load(&ended)) < t->count;) {
    while (begun < t->count && begun - done < t->window) begin(mgr, t, begun++);
    if (atomic_load(&ended) == done && rdma_mgr_wait(mgr, 1000) != RDMA_OK) {
      r.failed = RDMA_INTERNAL;
      return r;
    }
  }
  r.us = (now_us() - start) / t->count;
  r.protocol = atomic_load(&carried);
  r.failed = atomic_load(&worst);
  return r;
}

static _Noreturn void be_receiver(const char *address, int in, int out) {
  hello h;
  task t;
  rdma_peer_info_t info;
  memset(&h, 0, sizeof h);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  rdma_mgr_t *mgr = manager(out, "rdma-tune-receiver");
  MUST(out, rdma_mgr_add_peer(mgr, "rdma-tune-sender", address));
  MUST(out, rdma_mgr_connect(mgr, "rdma-tune-sender", 10000));
  MUST(out, rdma_mgr_peer_info(mgr, "rdma-tune-sender", &info));
  h.eager_max = info.eager_max;
  if (!write_all(out, &h, sizeof h)) _exit(1);
  while (read_all(in, &t, sizeof t) && t.count > 0) {
    took r = measure(mgr, &t);
    if (!write_all(out, &r, sizeof r)) break;
  }
  rdma_mgr_destroy(mgr);
  _exit(0);
}

/* ---- the parent ---- */
/* A child, or in it; the pipes are the parent's ends. */
static pid_t child(int *ask, int *answer, int *in, int *out) {
  int to[2], from[2];
  if (pipe(to) != 0 || pipe(from) != 0) die("pipe: %s", strerror(errno));
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) die("fork: %s", strerror(errno));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to[1]), close(from[0]);
    *in = to[0], *out = from[1];
  } else {
    close(to[0]), close(from[1]);
    *ask = to[1], *answer = from[0];
  }
  return pid;
}

static bool greeted(int fd, hello *h) {
  if (!read_all(fd, h, sizeof *h)) snprintf(h->why, sizeof h->why, "a process ended early");
  return !h->why[0];
}

bool sides_start(sides *s, const char *provider, const char *protocol) {
  int in, out, first = -1;
  hello h;
  memset(s, 0, sizeof *s);
  memset(&h, 0, sizeof h);
  s->ask = s->answer = -1;
  s->sender = child(&s->until, &first, &in, &out);
  if (s->sender == 0) {
    only(provider, protocol);
    be_sender(out, in);
  }
  bool good = greeted(first, &h);
  close(first);
  if (good) {
    char address[256];
    memcpy(address, h.address, sizeof address);
    s->receiver = child(&s->ask, &s->answer, &in, &out);
    if (s->receiver == 0) {
      only(provider, protocol);
      be_receiver(address, in, out);
    }
    memset(&h, 0, sizeof h);
    good = greeted(s->answer, &h);
    s->eager_max = h.eager_max;
  }
  if (!good) {
    snprintf(s->why, sizeof s->why, "%s", h.why);
    sides_end(s);
  }
  return good;
}

/* They are told: a pipe that is closed here may be open in a child that was forked later. */
void sides_end(sides *s) {
  task none = {0};
  if (s->receiver > 0) {
    write_all(s->ask, &none, sizeof none);
    close(s->ask), close(s->answer);
    waitpid(s->receiver, NULL, 0);
  }
  write_all(s->until, "", 1);
  close(s->until);
  waitpid(s->sender, NULL, 0);
}

took sides_measure(sides *s, task t) {
  took r = {0};
  if (!write_all(s->ask, &t, sizeof t) || !read_all(s->answer, &r, sizeof r)) die("a measuring process has ended");
  if (r.failed != RDMA_OK) die("a transfer of %u bytes failed: %s", t.nbytes, rdma_code_name(r.failed));
  return r;
}
