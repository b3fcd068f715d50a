/* Peers that are processes of their own: killed, stopped, restarted, late. */
#include "harness.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static char child_address[256];
static const char *peer_mode = ""; /* the peer's progress; "": as ours */
static int64_t silence_ms = 10000; /* peer_timeout_ms of both: no process of a loaded machine is silent for so long */

static proc *start_peer(const char *name, const char *address) {
  char silence[32];
  snprintf(silence, sizeof silence, "%lld", (long long)silence_ms);
  proc *p = proc_start("peer", (const char *const[]){name, address, silence, peer_mode, NULL});
  snprintf(child_address, sizeof child_address, "%s", proc_expect(p, "addr "));
  return p;
}
static const char *any_address(void) {
  static char any[80];
  snprintf(any, sizeof any, strchr(peer_host(), ':') ? "[%s]:0" : "%s:0", peer_host());
  return any;
}
/* An address to listen at again. A port that the system gave may become anybody's as soon as nobody listens there: this one
 * lies below those that it gives, and other tests keep away from it, by a socket's name (conftest.py has it, too). */
static const char *own_address(void) {
  static char own[96];
  enum { FIRST = 20000, COUNT = 8000 };
  int given = 0;
  FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
  if (!range || fscanf(range, "%d", &given) != 1) given = 0;
  if (range) fclose(range);
  for (int i = 0; i < COUNT && given >= FIRST + COUNT; i++) {
    int port = FIRST + (getpid() + i) % COUNT, yes = 1;
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* abstract */
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "rdma-tensorflow-test-port-%d", port);
    int lock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK(s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    bool free = bind(lock, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0 &&
                bind(s, (struct sockaddr *)&at, sizeof at) == 0;
    close(s);
    snprintf(own, sizeof own, strchr(peer_host(), ':') ? "[%s]:%d" : "%s:%d", peer_host(), port);
    if (free) return own; /* the name is held until the case ends */
    close(lock);
  }
  return any_address();
}
static proc *start_beta(rdma_mgr_t *m) {
  proc *p = start_peer("beta", any_address());
  CHECK_OK(rdma_mgr_add_peer(m, "beta", child_address));
  return p;
}
static void quick(rdma_mgr_options_t *o) { o->peer_timeout_ms = silence_ms; }
static rdma_mgr_t *alpha(void) {
  if (is_provider("loopback")) skip("loopback does not leave the process");
  return mgr_new("alpha", quick);
}
static void expect_sent(proc *p, const char *key, int64_t step, size_t n, unsigned seed) {
  proc_say(p, "send %s %lld %zu %u", key, (long long)step, n, seed);
  proc_expect(p, "sent");
}

static void check_gone(op *o, int64_t since) {
  CHECK_MSG(pump_until(op_ended_fn, o, 20000), "%s never ends", o->what);
  CHECK_MSG(o->code == RDMA_UNAVAILABLE, "%s: %s (%s)", o->what, rdma_code_name(o->code), o->message);
  CHECK_MSG(o->info.reason == RDMA_REASON_PEER_GONE || o->info.reason == RDMA_REASON_PEER_STALLED ||
            o->info.reason == RDMA_REASON_PEER_RESTARTED, "reason %u", o->info.reason);
  printf("    %s ended after %lld ms: %s\n", o->what, (long long)(lived_ms() - since), o->message);
}

static void talk(void) {
  rdma_mgr_t *m = alpha();
  char own[256];
  proc *p = start_beta(m);
  for (int64_t i = 0; i < 10; i++) {
    size_t n = i % 3 == 2 ? 9 * MIB : i % 3 ? 100000 : 30;
    op *r = op_recv(m, "beta", "talk", i, 5, NULL);
    expect_sent(p, "talk", i, n, 5);
    op_wait(r, RDMA_OK);
    CHECK_INT(n, r->tensor.nbytes);
  }
  mgr_listen(m, own);
  proc_say(p, "peer alpha %s", own);
  proc_expect(p, "ok");
  rdma_tensor_t t = tensor_of(NULL, MIB, 8);
  op *s = op_send(m, "back", 1, &t);
  proc_say(p, "recv alpha back 1 8");
  proc_expect(p, "asked");
  op_wait(s, RDMA_OK);
  proc_say(p, "wait back");
  CHECK_STR("OK", proc_expect(p, "ended "));
  CHECK_INT(0, proc_finish(p));
}

static void killed_before_the_request(void) {
  rdma_mgr_t *m = alpha();
  proc *p = start_beta(m);
  op *first = op_recv(m, "beta", "k", 0, 1, NULL);
  expect_sent(p, "k", 0, 100, 1);
  op_wait(first, RDMA_OK);
  op *pending = op_recv(m, "beta", "pending", 0, 1, NULL);
  pump_for(50);
  int64_t t0 = lived_ms();
  proc_kill(p);
  check_gone(pending, t0);
  CHECK_MSG(lived_ms() - t0 < patience(2000), "a killed peer is noticed only after %lld ms", (long long)(lived_ms() - t0));
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 700;
  op *later = op_recv(m, "beta", "later", 0, 1, &o);
  CHECK(pump_until(op_ended_fn, later, 20000));
  CHECK_MSG(later->code == RDMA_UNAVAILABLE || later->code == RDMA_DEADLINE_EXCEEDED, "%s", rdma_code_name(later->code));
}

static proc *victim;
static void *kill_then_allocate(const rdma_tensor_t *meta, void *userdata) {
  (void)userdata;
  if (victim) proc_kill(victim);
  victim = NULL;
  return scratch(meta->nbytes);
}

static void killed_after_the_metadata(void) {
  rdma_mgr_t *m = alpha();
  victim = start_beta(m);
  rdma_recv_options_t o = recv_options();
  o.alloc = kill_then_allocate;
  expect_sent(victim, "k", 0, 30 * MIB, 1);
  int64_t t0 = lived_ms();
  op *r = op_recv(m, "beta", "k", 0, 1, &o);
  check_gone(r, t0);
  CHECK(!r->had_tensor);
}

/* ---- killed in the middle of 1 GiB ----
 * Of a quarter where the device is software, emulated as well: that takes as long. */
static size_t huge(void) {
  size_t n = is_provider("ibverbs") ? GIB / 4 : GIB;
  if (mem_available() < 3 * n) skip("less than three times the tensor's memory");
  return n;
}
static volatile unsigned char *watched;
static _Atomic bool watch_stop;
static void *kill_when_bytes_land(void *arg) {
  proc *p = arg;
  while (!watched[16 * MIB] && !atomic_load(&watch_stop)) usleep(50); /* a spinning thread is in the way of what it watches */
  if (!atomic_load(&watch_stop)) kill(p->pid, SIGKILL);
  return NULL;
}

static void killed_in_the_middle_of_a_write(void) {
  rdma_mgr_t *m = alpha();
  pthread_t thread;
  size_t n = huge();
  unsigned char *dst = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(dst != MAP_FAILED);
  proc *p = start_beta(m);
  expect_sent(p, "huge", 0, n, 3);
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  watched = dst;
  CHECK(pthread_create(&thread, NULL, kill_when_bytes_land, p) == 0);
  op *r = op_recv(m, "beta", "huge", 0, 3, &o);
  int64_t t0 = lived_ms();
  CHECK(pump_until(op_ended_fn, r, 40000));
  atomic_store(&watch_stop, true);
  CHECK(pthread_join(thread, NULL) == 0);
  if (r->code == RDMA_OK) printf("    the transfer was faster than the signal: all bytes are right\n");
  else check_gone(r, t0);
  uint64_t before, after; /* nothing comes after the end */
  memcpy(&before, dst + n - 8, 8);
  pump_for(100);
  memcpy(&after, dst + n - 8, 8);
  CHECK(before == after);
  proc_kill(p); /* if it still lives */
  proc *again = start_beta(m); /* the manager goes on */
  op *next = op_recv(m, "beta", "next", 1, 4, NULL);
  expect_sent(again, "next", 1, 5 * MIB, 4);
  op_wait(next, RDMA_OK);
  CHECK_INT(0, proc_finish(again));
  munmap(dst, n);
}

/* Whoever registers a gigabyte with an emulated device is silent meanwhile, on both sides. */
static const int64_t patience_ms = 20000;
static int doomed_role(int argc, char **argv) { /* receives from alpha at argv[0], and is killed once bytes land */
  static proc self;
  pthread_t thread;
  if (argc < 1) return 2;
  size_t n = huge();
  unsigned char *dst = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(dst != MAP_FAILED);
  self.pid = getpid();
  silence_ms = patience_ms;
  watched = dst;
  CHECK(pthread_create(&thread, NULL, kill_when_bytes_land, &self) == 0);
  rdma_mgr_t *m = mgr_new("beta", quick);
  CHECK_OK(rdma_mgr_add_peer(m, "alpha", argv[0]));
  rdma_recv_options_t o = recv_options();
  o.dst = dst;
  o.dst_len = n;
  op_wait(op_recv(m, "alpha", "huge", 1, 6, &o), RDMA_OK);
  for (;;) pump_for(1000); /* faster than the signal */
}

static bool died(void *arg) {
  siginfo_t info = {0};
  CHECK(waitid(P_PID, (id_t)((proc *)arg)->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
  if (info.si_pid) CHECK_INT(SIGKILL, info.si_status);
  return info.si_pid != 0;
}

static void receiver_killed_in_the_middle(void) {
  silence_ms = patience_ms;
  rdma_mgr_t *m = alpha();
  char own[256];
  size_t n = huge();
  mgr_listen(m, own);
  rdma_tensor_t t = tensor_of(NULL, n, 6);
  op *s = op_send(m, "huge", 1, &t);
  proc *p = proc_start("doomed", (const char *const[]){own, NULL});
  CHECK_MSG(pump_until(died, p, 60000), "no bytes reach the receiver");
  int64_t t0 = lived_ms();
  proc_kill(p);
  CHECK_MSG(pump_until(op_ended_fn, s, 20000), "the send to a killed receiver never ends");
  if (s->code == RDMA_OK) printf("    the transfer was faster than the signal\n");
  else check_gone(s, t0);
}

/* ---- handshakes that stop half way ---- */
/* A socket at "host:port" or "[host]:port", numbers both: listening there, or connected to it. */
static int socket_at(const char *address, bool listening) {
  char host[128];
  const char *colon = strrchr(address, ':');
  bool v6 = address[0] == '[';
  struct addrinfo hint = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *a = NULL;
  snprintf(host, sizeof host, "%.*s", (int)(colon - address - (v6 ? 2 : 0)), address + (v6 ? 1 : 0));
  CHECK_MSG(getaddrinfo(host, colon + 1, &hint, &a) == 0, "%s is no address", address);
  int s = socket(a->ai_family, SOCK_STREAM, 0);
  int r = listening ? bind(s, a->ai_addr, a->ai_addrlen) || listen(s, 5) : connect(s, a->ai_addr, a->ai_addrlen);
  CHECK_MSG(r == 0, "%s: %s", address, strerror(errno));
  freeaddrinfo(a);
  return s;
}

static int silent_role(int argc, char **argv) { /* accepts at argv[0], reads, never answers */
  struct sockaddr_storage at;
  socklen_t len = sizeof at;
  char buf[512], port[8];
  if (argc < 1) return 2;
  int s = socket_at(argv[0], true);
  if (getsockname(s, (struct sockaddr *)&at, &len)) return 1;
  if (getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof port, NI_NUMERICSERV)) return 1;
  printf("addr %.*s:%s\n", (int)(strrchr(argv[0], ':') - argv[0]), argv[0], port);
  fflush(stdout);
  int c = TEMP_FAILURE_RETRY(accept(s, NULL, NULL));
  printf("accepted\n");
  fflush(stdout);
  while (TEMP_FAILURE_RETRY(read(c, buf, sizeof buf)) > 0) {
  }
  return 0;
}

static int half_role(int argc, char **argv) { /* says argv[1] bytes to the listener at argv[0] and stays */
  char line[16], junk[64];
  if (argc < 2) return 2;
  size_t n = (size_t)atoi(argv[1]);
  int s = socket_at(argv[0], false);
  memset(junk, n % 2 ? 0xff : 'G', sizeof junk);
  if (write(s, junk, n) < 0) return 1;
  printf("said\n");
  fflush(stdout);
  return next_line(line, sizeof line) ? 0 : 1;
}

static void killed_during_the_handshake(void) {
  rdma_mgr_t *m = alpha();
  proc *p = proc_start("silent", (const char *const[]){any_address(), NULL});
  CHECK_OK(rdma_mgr_add_peer(m, "beta", proc_expect(p, "addr ")));
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = 3000;
  op *r = op_recv(m, "beta", "k", 1, 0, &o);
  proc_expect(p, "accepted");
  pump_for(50);
  CHECK(!op_ended(r));
  proc_kill(p);
  CHECK_MSG(pump_until(op_ended_fn, r, 20000), "a receive from a peer killed in its handshake never ends");
  CHECK_MSG(r->code == RDMA_UNAVAILABLE || r->code == RDMA_DEADLINE_EXCEEDED, "%s", rdma_code_name(r->code));
}

static void strangers_at_the_listener(void) {
  rdma_mgr_t *m = alpha();
  char own[256], n[16];
  mgr_listen(m, own);
  for (int i = 0; i < 12; i++) {
    snprintf(n, sizeof n, "%d", i * 5);
    proc *p = proc_start("half", (const char *const[]){own, n, NULL});
    proc_expect(p, "said");
    pump_for(5);
    if (i % 2) proc_kill(p);
  }
  proc *p = start_beta(m);
  proc_say(p, "peer alpha %s", own);
  proc_expect(p, "ok");
  rdma_tensor_t t = tensor_of(NULL, 1000, 8);
  op *s = op_send(m, "real", 1, &t);
  proc_say(p, "recv alpha real 1 8");
  proc_expect(p, "asked");
  op_wait(s, RDMA_OK);
  CHECK_INT(0, proc_finish(p));
}

static void stopped_and_continued(void) {
  silence_ms = 6000; /* the short stop stays short on a loaded machine */
  rdma_mgr_t *m = alpha();
  peer_mode = "thread"; /* one that drives progress itself may be silent for long: see the next case */
  proc *p = start_beta(m);
  op *r = op_recv(m, "beta", "k", 0, 1, NULL);
  expect_sent(p, "k", 0, 100000, 1);
  op_wait(r, RDMA_OK);
  /* A short stop is nobody's business. */
  expect_sent(p, "short", 1, 4 * MIB, 2);
  proc_signal(p, SIGSTOP);
  op *brief = op_recv(m, "beta", "short", 1, 2, NULL);
  pump_for(300);
  proc_signal(p, SIGCONT);
  op_wait(brief, RDMA_OK);
  /* A long one is a stalled peer, which is not a dead one. */
  op *pending = op_recv(m, "beta", "long", 2, 3, NULL);
  pump_for(50);
  proc_signal(p, SIGSTOP);
  int64_t t0 = lived_ms();
  check_gone(pending, t0);
  CHECK_INT(RDMA_REASON_PEER_STALLED, pending->info.reason);
  proc_signal(p, SIGCONT);
  op *again = op_recv(m, "beta", "again", 3, 4, NULL);
  expect_sent(p, "again", 3, 3 * MIB, 4);
  op_wait(again, RDMA_OK);
  CHECK_INT(0, proc_finish(p));
}

/* With peer_timeout_ms 0 silence ends nothing, however long: a connection that ends does, at once. */
static void r22_stopped_peer_is_waited_for(void) {
  silence_ms = 0;
  rdma_mgr_t *m = alpha();
  peer_mode = "thread";
  proc *p = start_beta(m);
  op *r = op_recv(m, "beta", "k", 0, 1, NULL);
  expect_sent(p, "k", 0, 100000, 1);
  op_wait(r, RDMA_OK);
  expect_sent(p, "late", 1, 4 * MIB, 2);
  proc_signal(p, SIGSTOP);
  op *late = op_recv(m, "beta", "late", 1, 2, NULL);
  pump_for(3000); /* six rounds of keep-alive */
  CHECK_MSG(!op_ended(late), "%s: %s", late->what, late->message);
  proc_signal(p, SIGCONT);
  op_wait(late, RDMA_OK);
  op *never = op_recv(m, "beta", "never", 2, 3, NULL);
  proc_signal(p, SIGSTOP);
  pump_for(300);
  int64_t t0 = now_ms();
  proc_kill(p);
  check_gone(never, t0);
}

/* A peer without a progress thread is silent as long as it computes: the deadline decides. */
static void stopped_without_a_progress_thread(void) {
  silence_ms = is_provider("ibverbs") ? 5000 : 3000; /* less than it is stopped for; an emulated machine is slow */
  rdma_mgr_t *m = alpha();
  peer_mode = "manual";
  proc *p = start_beta(m);
  op *r = op_recv(m, "beta", "k", 0, 1, NULL);
  expect_sent(p, "k", 0, 100000, 1);
  op_wait(r, RDMA_OK);
  proc_signal(p, SIGSTOP);
  rdma_recv_options_t o = recv_options();
  o.timeout_ms = silence_ms + 1000;
  op *pending = op_recv(m, "beta", "pending", 1, 2, &o);
  op *patient = op_recv(m, "beta", "patient", 1, 2, NULL);
  op_wait(pending, RDMA_DEADLINE_EXCEEDED);
  CHECK_INT(RDMA_REASON_DEADLINE, pending->info.reason);
  proc_signal(p, SIGCONT);
  expect_sent(p, "patient", 1, 100000, 2);
  op_wait(patient, RDMA_OK);
  CHECK_INT(0, proc_finish(p));
}

static void incarnation(rdma_mgr_t *m, uint8_t out[16]) {
  rdma_peer_info_t i;
  i.struct_size = sizeof i;
  CHECK_OK(rdma_mgr_peer_info(m, "beta", &i));
  memcpy(out, i.incarnation, 16);
}

static void restarted(void) {
  rdma_mgr_t *m = alpha();
  uint8_t was[16], is[16];
  char address[256];
  proc *p = start_peer("beta", own_address());
  snprintf(address, sizeof address, "%s", child_address);
  CHECK_OK(rdma_mgr_add_peer(m, "beta", address));
  for (int64_t round = 0; round < 4; round++) {
    op *r = op_recv(m, "beta", "k", round, 1, NULL);
    expect_sent(p, "k", round, 2 * MIB, 1);
    op_wait(r, RDMA_OK);
    incarnation(m, was);
    op *pending = op_recv(m, "beta", "pending", round, 1, NULL);
    pump_for(20);
    proc_kill(p);
    p = start_peer("beta", address);
    check_gone(pending, lived_ms());
    op *fresh = op_recv(m, "beta", "fresh", round, 2, NULL);
    expect_sent(p, "fresh", round, 1000, 2);
    op_wait(fresh, RDMA_OK);
    incarnation(m, is);
    CHECK_MSG(memcmp(was, is, 16) != 0, "the incarnation stays the same over a restart");
  }
  CHECK_INT(0, proc_finish(p));
}

static void connect_before_it_listens(void) {
  rdma_mgr_t *m = alpha();
  proc *p = start_peer("beta", own_address()); /* only to learn a free address */
  char address[256];
  snprintf(address, sizeof address, "%s", child_address);
  CHECK_INT(0, proc_finish(p));
  CHECK_OK(rdma_mgr_add_peer(m, "beta", address));
  CHECK_OK(rdma_mgr_connect(m, "beta", 0));
  op *r = op_recv(m, "beta", "early", 1, 6, NULL);
  pump_for(400);
  CHECK(!op_ended(r));
  p = start_peer("beta", address);
  expect_sent(p, "early", 1, 70000, 6);
  op_wait(r, RDMA_OK);
  CHECK_INT(0, proc_finish(p));
}

static void many_processes(void) {
  enum { N = 8 };
  rdma_mgr_t *m = alpha();
  proc *p[N];
  char name[32];
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "peer%d", i);
    p[i] = start_peer(name, any_address());
    CHECK_OK(rdma_mgr_add_peer(m, name, child_address));
  }
  for (int64_t step = 0; step < 5; step++) {
    op *r[N];
    for (int i = 0; i < N; i++) {
      snprintf(name, sizeof name, "peer%d", i);
      r[i] = op_recv(m, name, "w", step, (uint64_t)i, NULL);
      expect_sent(p[i], "w", step, 300000, (unsigned)i);
    }
    for (int i = 0; i < N; i++) op_wait(r[i], RDMA_OK);
  }
  for (int i = 0; i < N; i += 2) proc_kill(p[i]);
  for (int i = 1; i < N; i += 2) CHECK_INT(0, proc_finish(p[i]));
}

static const test_case cases[] = {
    CASE(talk), CASE(killed_before_the_request), CASE(killed_after_the_metadata),
    SLOW(killed_in_the_middle_of_a_write, 120), SLOW(receiver_killed_in_the_middle, 120),
    CASE(killed_during_the_handshake), CASE(strangers_at_the_listener), CASE(stopped_and_continued),
    CASE(r22_stopped_peer_is_waited_for), CASE(stopped_without_a_progress_thread),
    SLOW(restarted, 120), CASE(connect_before_it_listens), CASE(many_processes),
};
static const test_role roles[] = {{"peer", serve_role}, {"silent", silent_role}, {"half", half_role}, {"doomed", doomed_role}};
TEST_MAIN_ROLES(cases, roles)
