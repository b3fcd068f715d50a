/* Hostile surroundings for any C test: signals that interrupt whatever its threads wait in (RDMA_TEST_SIGNALS: one for
 * each thread every so many microseconds), and system calls that are refused, as containers do
 * (RDMA_TEST_REFUSE: "memfd_create=ENOSYS,membarrier=EPERM"). */
#include "harness.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <dirent.h>

enum { STORM = SIGURG };

/* ---- signals ---- */
static void on_storm(int sig) {
  (void)sig;
}

static void signal_all(DIR *tasks, pid_t self) {
  rewinddir(tasks);
  for (struct dirent *e; (e = readdir(tasks));) {
    pid_t thread = (pid_t)atoi(e->d_name);
    if (thread > 0 && thread != self) syscall(SYS_tgkill, getpid(), thread, STORM);
  }
}

static void *storm(void *every) {
  struct timespec pause = {0, (long)(intptr_t)every * 1000};
  /* One descriptor for good: tests count those that are open. */
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (;;) {
    nanosleep(&pause, NULL);
    signal_all(tasks, gettid());
  }
  return NULL;
}

static void storm_start(long every) {
  struct sigaction action = {.sa_handler = on_storm}; /* no SA_RESTART */
  sigset_t all, before;
  pthread_t thread;
  CHECK(sigaction(STORM, &action, NULL) == 0);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  CHECK(pthread_create(&thread, NULL, storm, (void *)(intptr_t)every) == 0);
  pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- refused calls ---- */
static const struct {
  const char *name;
  unsigned number;
} calls[] = {
    {"process_vm_readv", SYS_process_vm_readv}, {"memfd_create", SYS_memfd_create}, {"pidfd_open", SYS_pidfd_open},
    {"membarrier", SYS_membarrier}, {"timerfd_create", SYS_timerfd_create}, {"eventfd2", SYS_eventfd2},
    {"epoll_create1", SYS_epoll_create1}, {"madvise", SYS_madvise}, {"sched_yield", SYS_sched_yield},
    {"sched_getaffinity", SYS_sched_getaffinity}, {"getrandom", SYS_getrandom}, {"statx", SYS_statx},
    {"clone3", SYS_clone3}, {"socket", SYS_socket}, {"fcntl", SYS_fcntl}, {"ftruncate", SYS_ftruncate},
    {"tgkill", SYS_tgkill}, {"getcpu", SYS_getcpu}, {"sysinfo", SYS_sysinfo}, {"prlimit64", SYS_prlimit64},
    {"setsockopt", SYS_setsockopt}, {"getsockopt", SYS_getsockopt}, {"ioctl", SYS_ioctl}, {"poll", SYS_poll},
    {"flock", SYS_flock}, {"rename", SYS_rename}, {"unlink", SYS_unlink}, {"mkdir", SYS_mkdir},
    {"readlink", SYS_readlink}, {"mremap", SYS_mremap}, {"mincore", SYS_mincore}, {"accept4", SYS_accept4},
    {"bind", SYS_bind}, {"listen", SYS_listen}, {"connect", SYS_connect}, {"sigaltstack", SYS_sigaltstack},
    {"rt_sigtimedwait", SYS_rt_sigtimedwait}, {"epoll_pwait2", SYS_epoll_pwait2}, {"userfaultfd", SYS_userfaultfd},
};
static const struct {
  const char *name;
  unsigned number;
} errors[] = {{"EPERM", EPERM}, {"ENOSYS", ENOSYS}, {"EACCES", EACCES}, {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM},
              {"EINVAL", EINVAL}};

static unsigned call_named(const char *name) {
  for (size_t i = 0; i < COUNT_OF(calls); i++)
    if (strcmp(calls[i].name, name) == 0) return calls[i].number;
  FAIL("RDMA_TEST_REFUSE: \"%s\" is not in the list of calls", name);
}

static unsigned error_named(const char *name) {
  for (size_t i = 0; i < COUNT_OF(errors); i++)
    if (strcmp(errors[i].name, name) == 0) return errors[i].number;
  FAIL("RDMA_TEST_REFUSE: \"%s\" is not in the list of errors", name);
}

static void refuse(unsigned call, unsigned error) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {COUNT_OF(filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    skip("the system lets nobody refuse calls (seccomp)");
}

static void refuse_all(const char *list) {
  char copy[512], *rest = NULL;
  snprintf(copy, sizeof copy, "%s", list);
  for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    char *error = strchr(word, '=');
    CHECK(error != NULL);
    *error++ = 0;
    refuse(call_named(word), error_named(error));
  }
}

void environment_begin(const char *refused) {
  const char *every = getenv("RDMA_TEST_SIGNALS"), *list = getenv(refused);
  if (every && atol(every) > 0) storm_start(atol(every));
  if (list && list[0]) refuse_all(list);
}
