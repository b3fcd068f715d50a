/* Runs the cases, prints failed checks. */
#include "harness.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

test_env env = {"loopback", "127.0.0.1", NULL, "", RDMA_PROGRESS_THREAD, RDMA_PROTOCOL_AUTO};

void case_begin(void);       /* ops.c */
void case_end(void);         /* ops.c */
void ops_print_pending(void); /* ops.c */
void environment_begin(const char *refused); /* environment.c */

bool is_provider(const char *name) { return strcmp(env.provider, name) == 0; }
bool is_manual(void) { return env.progress == RDMA_PROGRESS_MANUAL; }

int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the heartbeat ----
 * A thread that does nothing but wake every 10 ms. What it wakes late is time in which this process did not run, on a
 * machine that is loaded or emulated: it does not count where a test waits. */
static _Atomic int64_t stood_still_ms;
static void *heart(void *arg) {
  (void)arg;
  for (int64_t last = now_ms();;) {
    usleep(10000);
    int64_t now = now_ms(), late = now - last - 10;
    if (late > 20) atomic_fetch_add(&stood_still_ms, late);
    last = now;
  }
  return NULL;
}
static void heart_start(void) {
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (pthread_create(&thread, NULL, heart, NULL) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
int64_t lived_ms(void) { return now_ms() - atomic_load(&stood_still_ms); }
int64_t patience(int64_t ms) {
  static int64_t factor;
  const char *given = getenv("RDMA_TEST_PATIENCE");
  if (!factor) factor = given && atoi(given) > 1 ? atoi(given) : 1;
  return ms * factor;
}

void fail_at(const char *file, int line, const char *format, ...) {
  va_list args;
  fflush(stdout);
  fprintf(stderr, "    FAILED at %s:%d: ", file, line);
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  int64_t still = atomic_load(&stood_still_ms);
  if (still > 500) fprintf(stderr, "    (the machine stood still for %lld ms meanwhile)\n", (long long)still);
  fflush(stderr);
  if (getenv("RT_ABORT")) abort();
  _exit(1);
}

void skip(const char *why) {
  printf("    skipped: %s\n", why);
  fflush(stdout);
  _exit(77);
}

static const char *last_error(char *buf, size_t cap) {
  buf[0] = 0;
  rdma_last_error(buf, cap);
  return buf;
}

void error_has_at(const char *file, int line, const char *part) {
  char text[1024];
  if (!strstr(last_error(text, sizeof text), part)) fail_at(file, line, "'%s' is not in '%s'", part, text);
}

void check_code(const char *f, int l, rdma_code_t want, rdma_code_t got, const char *expr) {
  char text[512];
  if (want != got)
    fail_at(f, l, "%s is %s, not %s; last error: %s", expr, rdma_code_name(got), rdma_code_name(want),
            last_error(text, sizeof text));
}
void check_int(const char *f, int l, long long want, long long got, const char *expr) {
  if (want != got) fail_at(f, l, "%s is %lld, not %lld", expr, got, want);
}
void check_str(const char *f, int l, const char *want, const char *got, const char *expr) {
  if (!got || strcmp(want, got) != 0)
    fail_at(f, l, "%s is \"%s\", not \"%s\"", expr, got ? got : "(null)", want);
}
void check_has(const char *f, int l, const char *text, const char *part) {
  if (!text || !strstr(text, part))
    fail_at(f, l, "\"%s\" lacks \"%s\"", text ? text : "(null)", part);
}

#define OTHER_ERROR "key of the harness"
void other_error(void) {
  rdma_parsed_key_t k = {.struct_size = sizeof k};
  char text[512];
  CHECK_CODE(RDMA_INVALID_ARGUMENT, rdma_key_parse(OTHER_ERROR, strlen(OTHER_ERROR), &k));
  CHECK_HAS(last_error(text, sizeof text), OTHER_ERROR);
}

void check_bad(const char *f, int l, rdma_code_t want, rdma_code_t got, const char *expr) {
  char text[512];
  check_code(f, l, want, got, expr);
  last_error(text, sizeof text);
  if (text[0] == 0 || strstr(text, OTHER_ERROR)) fail_at(f, l, "%s left no text in rdma_last_error", expr);
}

/* ---- running ---- */
static void on_alarm(int sig) {
  static int64_t credited;
  (void)sig;
  int64_t still = atomic_load(&stood_still_ms), more = still - credited;
  if (more > 1000) { /* a case has its time, and what the machine kept of it */
    credited = still;
    alarm((unsigned)(more / 1000) + 1);
    return;
  }
  /* Not async-signal-safe, and ends the process at once: good enough to tell what hangs. */
  fprintf(stderr, "    FAILED: the watchdog ended the case; operations that have not ended:\n");
  ops_print_pending();
  _exit(3);
}

static int run_here(const test_case *c) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGALRM, on_alarm);
  signal(SIGPIPE, SIG_IGN);
  heart_start();
  alarm((unsigned)patience(c->seconds ? c->seconds : 60));
  environment_begin("RDMA_TEST_REFUSE");
  case_begin();
  c->run();
  case_end();
  fflush(stdout);
  return 0;
}

char *own_program(void) {
  static char path[4096];
  if (!path[0] && readlink("/proc/self/exe", path, sizeof path - 1) < 0) snprintf(path, sizeof path, "/proc/self/exe");
  return path;
}

static int run_apart(const test_case *c, char **argv) {
  char *args[16];
  int n = 0, status = 0;
  args[n++] = own_program();
  args[n++] = "--provider"; /* perhaps from RDMA_PROVIDER, which the child lacks */
  args[n++] = (char *)(uintptr_t)env.provider;
  for (int i = 1; argv[i] && n < 11; i++)
    if (argv[i][0] == '-') {
      args[n++] = argv[i];
      if (argv[i + 1]) args[n++] = argv[++i];
    }
  args[n++] = "--run";
  args[n++] = (char *)(uintptr_t)c->name;
  args[n] = NULL;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(own_program(), args);
    _exit(126);
  }
  if (pid < 0 || TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)) < 0) return 1;
  if (WIFSIGNALED(status)) {
    fprintf(stderr, "    FAILED: ended by signal %d (%s)\n", WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    return 1;
  }
  return WEXITSTATUS(status);
}

static int32_t choice(const char *text, const char *const *names, size_t n, const char *option) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(text, names[i]) == 0) return (int32_t)i;
  fprintf(stderr, "%s: \"%s\" is not known\n", option, text);
  exit(2);
}

static bool take_option(char **argv, int *i) {
  static const char *const modes[] = {"thread", "manual"};
  static const char *const protocols[] = {"auto", "local", "eager", "put", "get", "persistent", "pipeline"};
  const char *name = argv[*i], *value = argv[*i + 1];
  if (name[0] != '-' || !value) return false;
  if (strcmp(name, "--provider") == 0) env.provider = value;
  else if (strcmp(name, "--host") == 0) env.host = value;
  else if (strcmp(name, "--progress") == 0)
    env.progress = choice(value, modes, 2, name);
  else if (strcmp(name, "--protocol") == 0)
    env.protocol = choice(value, protocols, 7, name);
  else return false;
  ++*i;
  return true;
}

static bool wanted(int argc, char **argv, const char *name) {
  bool any = false;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') {
      i++;
      continue;
    }
    any = true;
    if (strcmp(argv[i], name) == 0) return true;
  }
  return !any;
}

static int run_all(int argc, char **argv, const test_case *cases, size_t n) {
  int passed = 0, failed = 0, skipped = 0;
  for (size_t i = 0; i < n; i++) {
    if (!wanted(argc, argv, cases[i].name)) continue;
    int64_t start = now_ms();
    printf("  %s ...\n", cases[i].name);
    int rc = run_apart(&cases[i], argv);
    printf("  %-32s %s (%lld ms)\n", cases[i].name,
           rc == 0 ? "ok" : rc == 77 ? "skipped" : "FAILED", (long long)(now_ms() - start));
    fflush(stdout);
    if (rc == 0) passed++;
    else if (rc == 77) skipped++;
    else failed++;
  }
  printf("cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed ? 1 : passed ? 0 : skipped ? 77 : 1;
}

int test_main(int argc, char **argv, const test_case *cases, size_t ncases, const test_role *roles,
              size_t nroles) {
  const char *provider = getenv("RDMA_PROVIDER");
  if (provider && provider[0]) env.provider = provider;
  env.peer_host = getenv("RDMA_TEST_PEER_HOST");
  if (getenv("RDMA_TEST_PEER_EXEC")) env.peer_exec = getenv("RDMA_TEST_PEER_EXEC");
  for (int i = 1; i < argc; i++) {
    if (take_option(argv, &i)) continue;
    if (strcmp(argv[i], "--role") == 0 && i + 1 < argc) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGPIPE, SIG_IGN);
      heart_start();
      environment_begin("RDMA_TEST_PEER_REFUSE");
      for (size_t r = 0; r < nroles; r++)
        if (strcmp(roles[r].name, argv[i + 1]) == 0) return roles[r].run(argc - i - 2, argv + i + 2);
      return 2;
    }
    if (strcmp(argv[i], "--run") == 0 && i + 1 < argc) {
      for (size_t c = 0; c < ncases; c++)
        if (strcmp(cases[c].name, argv[i + 1]) == 0) return run_here(&cases[c]);
      return 2;
    }
    if (argv[i][0] == '-') {
      fprintf(stderr, "%s [--provider P] [--host H] [--progress thread|manual] "
              "[--protocol auto|eager|put|get|persistent|pipeline] [case...]\n", argv[0]);
      return 2;
    }
  }
  /* A manager reads the environment after its options: what this run chose is in the options. */
  unsetenv("RDMA_PROVIDER");
  setenv("RDMA_TUNING", "/dev/null", 0); /* not what this machine was tuned to */
  return run_all(argc, argv, cases, ncases);
}
