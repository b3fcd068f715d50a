/* Child processes: peers under command over pipes, one line per command. */
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>

const char *peer_host(void) { return env.peer_host ? env.peer_host : env.host; }

/* Puts the words of a command into argv, for good; the number of them. */
static int split(const char *command, const char **argv, int max) {
  int n = 0;
  char *copy = scratch(strlen(command) + 1), *rest = NULL;
  strcpy(copy, command);
  for (char *word = strtok_r(copy, " ", &rest); word && n < max; word = strtok_r(NULL, " ", &rest)) argv[n++] = word;
  return n;
}

proc *proc_start(const char *role, const char *const *args) {
  proc *p = scratch(sizeof *p);
  int down[2], up[2];
  const char *argv[48];
  memset(p, 0, sizeof *p);
  CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
  int n = split(env.peer_exec, argv, 16);
  argv[n++] = own_program();
  argv[n++] = "--provider";
  argv[n++] = env.provider;
  argv[n++] = "--host";
  argv[n++] = peer_host();
  argv[n++] = "--progress";
  argv[n++] = is_manual() ? "manual" : "thread";
  argv[n++] = "--role";
  argv[n++] = role;
  while (args && *args && n < 47) argv[n++] = *args++;
  argv[n] = NULL;
  pid_t parent = getpid();
  p->pid = fork();
  if (p->pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(down[0], 0);
    dup2(up[1], 1);
    execvp(argv[0], (char **)(uintptr_t)argv);
    _exit(126);
  }
  CHECK(p->pid > 0);
  close(down[0]);
  close(up[1]);
  p->in = down[1];
  p->out = up[0];
  return p;
}

void proc_say(proc *p, const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line - 1, format, args);
  va_end(args);
  line[n++] = '\n';
  CHECK_INT(n, TEMP_FAILURE_RETRY(write(p->in, line, (size_t)n)));
}

static bool line_there(void *arg) {
  proc *p = arg;
  if (memchr(p->buffer, '\n', p->have)) return true;
  struct pollfd fd = {p->out, POLLIN, 0};
  if (poll(&fd, 1, 0) > 0) {
    ssize_t n = TEMP_FAILURE_RETRY(read(p->out, p->buffer + p->have, sizeof p->buffer - p->have));
    if (n <= 0) FAIL("the child process ended");
    p->have += (size_t)n;
  }
  return memchr(p->buffer, '\n', p->have) != NULL;
}

const char *proc_line(proc *p) {
  static char line[sizeof p->buffer + 1];
  if (!pump_until(line_there, p, 30000)) FAIL("no line from the child process after 30 s");
  char *end = memchr(p->buffer, '\n', p->have);
  size_t n = (size_t)(end - p->buffer);
  memcpy(line, p->buffer, n);
  line[n] = 0;
  p->have -= n + 1;
  memmove(p->buffer, end + 1, p->have);
  return line;
}

const char *proc_expect(proc *p, const char *prefix) {
  const char *line = proc_line(p);
  if (strncmp(line, prefix, strlen(prefix)) != 0) FAIL("the child process says \"%s\", not \"%s\"", line, prefix);
  return line + strlen(prefix);
}

void proc_signal(proc *p, int sig) {
  CHECK(kill(p->pid, sig) == 0); /* a dead child not yet waited for counts */
  /* On a busy machine a thread may run on for a while: it is stopped when all of them are. */
  siginfo_t info;
  if (sig == SIGSTOP) CHECK(TEMP_FAILURE_RETRY(waitid(P_PID, (id_t)p->pid, &info, WSTOPPED)) == 0);
}

void proc_kill(proc *p) {
  int status;
  proc_signal(p, SIGKILL);
  CHECK(TEMP_FAILURE_RETRY(waitpid(p->pid, &status, 0)) == p->pid);
  close(p->in);
  close(p->out);
}

int proc_finish(proc *p) {
  int status = 0;
  proc_say(p, "quit");
  for (int64_t end = lived_ms() + patience(30000); waitpid(p->pid, &status, WNOHANG) == 0;) {
    if (lived_ms() > end) FAIL("the child process does not end");
    pump_for(1);
  }
  close(p->in);
  close(p->out);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool next_line(char *line, int size) {
  while (!fgets(line, size, stdin)) {
    if (feof(stdin) || errno != EINTR) return false;
    clearerr(stdin); /* a signal */
  }
  return true;
}

/* ---- a peer under command ----
 * arguments: name address [option=value...]; says "addr ADDRESS". Commands:
 *   peer NAME ADDRESS | send KEY STEP BYTES SEED | recv PEER KEY STEP SEED | wait KEY | quit
 * "wait KEY" answers "ended CODE-NAME" of the last operation with that key. */
static char peer_line[1024];
static size_t peer_have;

static bool next_command(char *line) {
  struct pollfd fd = {0, POLLIN, 0};
  char *end = memchr(peer_line, '\n', peer_have);
  if (!end && poll(&fd, 1, 1) > 0) {
    ssize_t n = TEMP_FAILURE_RETRY(read(0, peer_line + peer_have, sizeof peer_line - peer_have));
    if (n <= 0) _exit(0);
    peer_have += (size_t)n;
    end = memchr(peer_line, '\n', peer_have);
  }
  if (!end) return false;
  size_t n = (size_t)(end - peer_line);
  memcpy(line, peer_line, n);
  line[n] = 0;
  peer_have -= n + 1;
  memmove(peer_line, end + 1, peer_have);
  return true;
}

static int64_t role_peer_timeout;
static void role_tweak(rdma_mgr_options_t *o) {
  if (role_peer_timeout) o->peer_timeout_ms = role_peer_timeout;
}

static op *find_op(op **ops, int n, const char *key) {
  char part[200];
  snprintf(part, sizeof part, "\"%s\"", key);
  while (n-- > 0)
    if (strstr(ops[n]->what, part)) return ops[n];
  FAIL("no operation with key \"%s\"", key);
}

int serve_role(int argc, char **argv) {
  char address[256] = "", line[1024], key[128], peer[128];
  size_t len = 0, bytes;
  long long step;
  unsigned long long seed;
  op *ops[256];
  int n = 0;
  if (argc < 2) return 2;
  if (argc > 2) role_peer_timeout = atoll(argv[2]);
  if (argc > 3 && argv[3][0])
    env.progress = strcmp(argv[3], "manual") == 0 ? RDMA_PROGRESS_MANUAL : RDMA_PROGRESS_THREAD;
  rdma_mgr_t *mgr = mgr_new(argv[0], role_tweak);
  CHECK_OK(rdma_mgr_listen(mgr, argv[1], address, sizeof address, &len));
  printf("addr %s\n", address);
  fflush(stdout);
  for (;;) {
    pump_for(is_manual() ? 2 : 0);
    if (!next_command(line)) continue;
    if (strcmp(line, "quit") == 0) break;
    if (sscanf(line, "peer %127s %255s", peer, address) == 2) {
      CHECK_OK(rdma_mgr_add_peer(mgr, peer, address));
      printf("ok\n");
    } else if (sscanf(line, "send %127s %lld %zu %llu", key, &step, &bytes, &seed) == 4) {
      rdma_tensor_t t = tensor_of(NULL, bytes, seed);
      ops[n++] = op_send(mgr, key, step, &t);
      printf("sent\n");
    } else if (sscanf(line, "recv %127s %127s %lld %llu", peer, key, &step, &seed) == 4) {
      ops[n++] = op_recv(mgr, peer, key, step, seed, NULL);
      printf("asked\n");
    } else if (sscanf(line, "wait %127s", key) == 1) {
      op *o = find_op(ops, n, key);
      for (int64_t end = lived_ms() + patience(30000); !op_ended(o) && lived_ms() < end;) pump_for(1);
      printf("ended %s\n", op_ended(o) ? rdma_code_name(o->code) : "never");
    } else {
      FAIL("unknown command: %s", line);
    }
    fflush(stdout);
  }
  void case_end(void);
  case_end();
  return 0;
}
