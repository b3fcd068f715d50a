/* Threads and the life of a process: stacks, descriptors, forks, ends, while every front end is in use. */
#include "tour.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- stacks ---- */
enum { PAINT = 0x5a };

typedef struct painted {
  void (*run)(void *);
  void *arg;
  pthread_barrier_t ready, go;
} painted;

static void *run_painted(void *arg) {
  painted *p = arg;
  pthread_barrier_wait(&p->ready);
  pthread_barrier_wait(&p->go);
  p->run(p->arg);
  return NULL;
}

/* Runs on a thread with a stack of so many bytes; how much of it that used, beyond what any thread does. */
static size_t stack_of(void (*run)(void *), void *arg, size_t size) {
  pthread_attr_t attr;
  pthread_t thread;
  painted p = {.run = run, .arg = arg};
  unsigned char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED);
  memset(stack, PAINT, size);
  pthread_barrier_init(&p.ready, NULL, 2), pthread_barrier_init(&p.go, NULL, 2);
  CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, size) == 0);
  CHECK(pthread_create(&thread, &attr, run_painted, &p) == 0);
  pthread_barrier_wait(&p.ready);
  size_t before = 0, after = 0;
  while (before < size && stack[before] == PAINT) before++;
  pthread_barrier_wait(&p.go);
  CHECK(pthread_join(thread, NULL) == 0);
  while (after < size && stack[after] == PAINT) after++;
  CHECK_MSG(after > 0, "the stack of %zu bytes is full", size);
  munmap(stack, size);
  return before - after;
}

static void whole_tour(void *arg) {
  tour_ends *e = arg;
  rdma_code_t code = tour_together(e, tour_deadline_ms, 6);
  for (int round = 0; code == RDMA_OK && round < 6; round++) code = tour_round(&e->t, round);
  CHECK_TOUR(e, code);
  tour_apart(e);
  CHECK_INT(0, tour_finish(e->child)); /* it ends with the thread that began it */
}

static void stacks_are_small(void) {
  tour_ends e;
  size_t used = stack_of(whole_tour, &e, MIB);
  printf("    %zu bytes of stack\n", used);
  if (!is_sanitized()) CHECK(used < 48 * KIB);
}

static void a_thread_with_little_stack(void) {
  tour_ends e;
  if (is_sanitized()) skip("a sanitizer needs more stack");
  (void)stack_of(whole_tour, &e, 64 * KIB);
}

/* ---- descriptors ---- */
static void none_is_left_to_another_program(void) {
  bool before[1024];
  tour_ends e;
  for (int fd = 0; fd < 1024; fd++) before[fd] = fcntl(fd, F_GETFD) >= 0;
  rdma_code_t code = tour_together(&e, tour_deadline_ms, 2);
  for (int round = 0; code == RDMA_OK && round < 2; round++) code = tour_round(&e.t, round);
  CHECK_TOUR(&e, code);
  int seen = 0;
  for (int fd = 0; fd < 1024; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || before[fd] || fd == e.child->in || fd == e.child->out) continue;
    seen++;
    CHECK_MSG(flags & FD_CLOEXEC, "descriptor %d would be another program's", fd);
  }
  printf("    %d descriptors\n", seen);
  CHECK(seen > 2);
  tour_apart(&e);
  CHECK_INT(0, tour_finish(e.child));
}

/* ---- forks while threads are at work ---- */
typedef struct forker {
  _Atomic bool over;
  int forks, spawns;
} forker;

static void *fork_now_and_then(void *arg) {
  extern char **environ;
  forker *f = arg;
  char *const quiet[] = {"/bin/true", NULL};
  while (!atomic_load(&f->over)) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) _exit(7);
    CHECK(pid > 0 && TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid && WEXITSTATUS(status) == 7);
    f->forks++;
    CHECK(posix_spawn(&pid, quiet[0], NULL, NULL, quiet, environ) == 0);
    CHECK(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid && status == 0);
    f->spawns++;
  }
  return NULL;
}

static void forks_in_the_middle(void) {
  tour_ends e;
  forker f = {0};
  pthread_t thread;
  rdma_code_t code = tour_together(&e, tour_deadline_ms, 0);
  CHECK_TOUR(&e, code);
  CHECK(pthread_create(&thread, NULL, fork_now_and_then, &f) == 0);
  int64_t until = now_ms() + 2500;
  int round = 0;
  for (; code == RDMA_OK && now_ms() < until; round++) code = tour_round(&e.t, round);
  atomic_store(&f.over, true);
  pthread_join(thread, NULL);
  printf("    %d rounds, %d forks, %d programs\n", round, f.forks, f.spawns);
  CHECK_TOUR(&e, code);
  CHECK(f.forks > 0);
  tour_apart(&e);
  proc_kill(e.child);
}

/* ---- a fork under an event loop ---- */
/* Loops add what they watch anew in a child (uv_loop_fork, event_reinit, notify_fork): the number of the descriptor has to be
 * one still, no file of the child's own may get it, and nothing of the parent is seen by it. The step that failed, or 0. */
static int in_the_child(rdma_mgr_t *const m[2], const int fd[2], int fds, int ask, int hear) {
  char word = 0;
  if (count_fds() != fds) return 1;
  int set = epoll_create1(EPOLL_CLOEXEC), own = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (int i = 0; i < 2; i++) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLOUT};
    if (fcntl(fd[i], F_GETFD) != FD_CLOEXEC) return 2;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd[i], &event) != 0) return 3;
    if (own == fd[i] || rdma_mgr_event_fd(m[i], &(int){0}) != RDMA_FAILED_PRECONDITION) return 4;
  }
  if (TEMP_FAILURE_RETRY(write(ask, "?", 1)) != 1 || TEMP_FAILURE_RETRY(read(hear, &word, 1)) != 1) return 5;
  struct epoll_event event;
  struct pollfd one = {fd[0], POLLIN, 0};
  if (TEMP_FAILURE_RETRY(epoll_wait(set, &event, 1, 0)) != 0 || TEMP_FAILURE_RETRY(poll(&one, 1, 0)) != 0) return 6;
  int status = 0;
  pid_t pid = fork();
  if (pid == 0) _exit(fcntl(fd[0], F_GETFD) == FD_CLOEXEC && TEMP_FAILURE_RETRY(poll(&one, 1, 0)) == 0 ? 7 : 8);
  if (TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) != pid || WEXITSTATUS(status) != 7) return 7;
  return 0;
}

/* The test's own descriptors, once all are open: the thread that sends signals opens one. */
static int settled_fds(void) {
  int fds = count_fds(), before;
  do {
    before = fds;
    for (int i = 0; i < 50; i++) usleep(1000);
    fds = count_fds();
  } while (fds != before);
  return fds;
}

static void a_child_keeps_the_numbers_of_event_descriptors(void) {
  int down[2], up[2], fd[2], status = 0;
  char address[256], word;
  env.progress = RDMA_PROGRESS_MANUAL;
  CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
  int fds = settled_fds();
  rdma_mgr_t *m[2] = {mgr_new("alpha", NULL), mgr_new("beta", NULL)};
  for (int i = 0; i < 2; i++) CHECK_OK(rdma_mgr_event_fd(m[i], &fd[i]));
  mgr_listen(m[1], address);
  CHECK_OK(rdma_mgr_add_peer(m[0], "beta", address));
  drive(m[1]);
  CHECK_OK(rdma_mgr_connect(m[0], "beta", CONNECT_MS));
  drive_stop(m[1]);
  pid_t pid = fork();
  if (pid == 0) _exit(in_the_child(m, fd, fds + 2, up[1], down[0]));
  CHECK(pid > 0);
  close(up[1]);
  if (TEMP_FAILURE_RETRY(read(up[0], &word, 1)) == 1) { /* it watches: what happens here is not its business */
    struct pollfd one = {fd[0], POLLIN, 0};
    CHECK_OK(rdma_mgr_wake(m[0]));
    CHECK_INT(1, TEMP_FAILURE_RETRY(poll(&one, 1, 10000)));
    CHECK(TEMP_FAILURE_RETRY(write(down[1], "!", 1)) == 1);
  }
  CHECK(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "step %d", WEXITSTATUS(status));
  /* A number that is the application's again is its own in a child, too. */
  struct stat s;
  mgr_end(m[0]);
  int own = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(own >= 0 && (own == fd[0] || dup3(own, fd[0], O_CLOEXEC) == fd[0]));
  pid = fork();
  if (pid == 0) _exit(fstat(fd[0], &s) == 0 && S_ISCHR(s.st_mode) ? 0 : 9);
  CHECK(pid > 0 && TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid);
  CHECK_INT(0, WEXITSTATUS(status));
  mgr_end(m[1]);
}

/* What the child says of a manager that it makes, and ends. */
static rdma_code_t in_a_child(void) {
  int status = 0;
  pid_t pid = fork();
  if (pid == 0) {
    rdma_mgr_options_t o;
    rdma_mgr_t *mgr = NULL;
    alarm(20);
    if (rdma_mgr_options_init(&o, sizeof o) != RDMA_OK) _exit(99);
    o.name = "child";
    o.provider = env.provider;
    rdma_code_t code = rdma_mgr_create(&o, &mgr);
    if (code == RDMA_OK) code = rdma_mgr_destroy(mgr);
    _exit((int)code);
  }
  CHECK(pid > 0 && TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) == pid && WIFEXITED(status));
  return (rdma_code_t)WEXITSTATUS(status);
}

static void a_child_forked_beside_managers_makes_none(void) {
  CHECK_INT(RDMA_OK, in_a_child());
  rdma_mgr_t *mgr = mgr_new("parent", NULL);
  CHECK_INT(RDMA_FAILED_PRECONDITION, in_a_child());
  mgr_end(mgr);
  CHECK_INT(RDMA_OK, in_a_child());
}

/* ---- a process that ends while its threads wait ---- */
typedef struct sleeper {
  rdma_mgr_t *mgr;
  rdma_peer_t peer;
  int kind;
  _Atomic bool *begun;
} sleeper;

static void *sleep_in_a_call(void *arg) {
  sleeper *s = arg;
  char to[64];
  rdma_tensor_t tensor = {.struct_size = sizeof tensor};
  rdma_msg_status_t status = {.struct_size = sizeof status};
  rdma_unbound_t buffer = 0;
  atomic_store(s->begun, true);
  switch (s->kind) {
    case 0: (void)rdma_recv(s->mgr, "nobody", "k", 1, 0, NULL, &tensor, NULL); break;
    case 1: (void)rdma_msg_recv(s->mgr, s->peer, 1, 1, RDMA_MSG_TAG_MASK, to, sizeof to, NULL, &status); break;
    case 2: (void)rdma_mgr_connect(s->mgr, "nobody", 100000); break;
    case 3:
      if (rdma_unbound_create(s->mgr, 4, to, sizeof to, &buffer) == RDMA_OK)
        (void)rdma_unbound_wait_recv(s->mgr, buffer, RDMA_MSG_FOREVER, &status);
      break;
    default:
      for (;;) (void)rdma_mgr_wait(s->mgr, 100000);
  }
  return NULL;
}

static rdma_mgr_t *ending;
static void at_exit_use(void) { (void)rdma_mgr_wake(ending); }
static void at_exit_destroy(void) { (void)rdma_mgr_destroy(ending); }

/* Ends by `exit` under threads in calls: argument 0 leaves the manager, 1 uses it in a handler, 2 destroys it there. */
static int exit_role(int argc, char **argv) {
  enum { SLEEPERS = 8 };
  static sleeper sleepers[SLEEPERS];
  static _Atomic bool begun[SLEEPERS];
  if (argc < 2) return 2;
  ending = mgr_new("alpha", NULL);
  CHECK_OK(rdma_mgr_add_peer(ending, "nobody", "127.0.0.1:1"));
  rdma_peer_t peer = number_of(ending, "nobody");
  if (argv[0][0] == '1') atexit(at_exit_use);
  if (argv[0][0] == '2') atexit(at_exit_destroy);
  for (int i = 0; i < SLEEPERS; i++) {
    pthread_t thread;
    sleepers[i] = (sleeper){ending, peer, i % 5, &begun[i]};
    CHECK(pthread_create(&thread, NULL, sleep_in_a_call, &sleepers[i]) == 0 && pthread_detach(thread) == 0);
  }
  for (int i = 0; i < SLEEPERS; i++)
    while (!atomic_load(&begun[i])) usleep(100);
  usleep((useconds_t)atoi(argv[1]));
  exit(0);
}

static void ends_while_threads_wait(void) {
  unsigned seed = (unsigned)now_ms();
  char how[8], us[16];
  printf("    seed %u\n", seed);
  for (int i = 0; i < 45; i++) {
    snprintf(how, sizeof how, "%d", i % 3);
    snprintf(us, sizeof us, "%d", rand_r(&seed) % 20000);
    proc *p = proc_start("exit", (const char *const[]){how, us, NULL});
    int64_t start = lived_ms();
    int status = tour_finish(p);
    CHECK_MSG(status == 0, "way %s after %s us: the process ended with %d", how, us, status);
    CHECK(lived_ms() - start < patience(20000));
  }
}

/* ---- a program that has closed its standard descriptors ---- */
static bool is_socket(int fd) {
  struct stat s;
  return fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode);
}

/* A line of the log, or of the program itself, would go to a peer. */
static void sockets_are_not_where_standard_error_was(void) {
  rdma_mgr_t *a = mgr_new("alpha", NULL), *b = mgr_new("beta", NULL);
  char address[256];
  int in = dup(0), err = dup(2);
  CHECK(in > 2 && err > 2 && close(0) == 0 && close(2) == 0);
  mgr_listen(b, address);
  drive(b);
  rdma_code_t known = rdma_mgr_add_peer(a, "beta", address);
  rdma_code_t connected = rdma_mgr_connect(a, "beta", CONNECT_MS);
  bool sockets = is_socket(0) || is_socket(2);
  mgr_end(a);
  mgr_end(b);
  CHECK(dup2(in, 0) == 0 && dup2(err, 2) == 2 && close(in) == 0 && close(err) == 0);
  CHECK_CODE(RDMA_OK, known);
  CHECK_CODE(RDMA_OK, connected);
  CHECK(!sockets);
}

static const test_case cases[] = {
    CASE(stacks_are_small), CASE(a_thread_with_little_stack), CASE(none_is_left_to_another_program), CASE(forks_in_the_middle),
    CASE(a_child_keeps_the_numbers_of_event_descriptors), CASE(a_child_forked_beside_managers_makes_none),
    SLOW(sockets_are_not_where_standard_error_was, 120),
    SLOW(ends_while_threads_wait, 240),
};
static const test_role roles[] = {{"tour", tour_role}, {"exit", exit_role}};
TEST_MAIN_ROLES(cases, roles)
