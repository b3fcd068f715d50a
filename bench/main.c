/* Arguments, and the two ends. */
#include "bench.h"
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
    "rdma_bench [--provider P] [--progress thread|manual] [--memory malloc|registered|pool]\n"
    "           [--wait mgr|condvar|block] [--mode latency|ready|rate|bandwidth]... [--min BYTES] [--max BYTES]\n"
    "           [--seconds S] [--protocol auto|eager|put|get|persistent|pipeline] [--cores A,B]\n"
    "wait, beside a progress thread: rdma_mgr_wait or a condition variable for callbacks, or blocking receives.\n"
    "latency: a send to a waiting receive, one way, us. ready: a receive of a ready tensor, round trip, us.\n"
    "rate: 256 in flight, million a second. bandwidth: GB/s. Prints provider,progress,memory,mode,bytes,value,unit.\n";

static int choice(const char *text, const char *const *names, int n) {
  for (int i = 0; i < n; i++)
    if (strcmp(text, names[i]) == 0) return i;
  fputs(usage, stderr);
  exit(2);
}

static void connect_both(side *x) { must(rdma_mgr_connect(x->mgr, x->peer, 10000), "connect"); }

/* ---- two processes ---- */
static void tell(int fd, const char *address) {
  if (write(fd, address, strlen(address) + 1) < 0) die("pipe");
}
static void learn(int fd, char address[256]) {
  size_t n = 0;
  do {
    if (read(fd, address + n, 1) != 1) exit(1);
  } while (address[n++] && n < 256);
}

static int processes(const settings *s) {
  int down[2], up[2], status = 0;
  char own[256], other[256];
  if (pipe(down) != 0 || pipe(up) != 0) die("pipe");
  pid_t child = fork(); /* before any manager exists */
  bool client = child != 0;
  if (!client) prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(s->cores[client ? 0 : 1]);
  side *x = side_open(s, client, own);
  tell(client ? down[1] : up[1], own);
  learn(client ? up[0] : down[0], other);
  side_peer(x, other);
  if (client && s->progress == RDMA_PROGRESS_THREAD) connect_both(x);
  run_schedule(x);
  /* The other end may still be busy with its last acknowledgement. */
  tell(client ? down[1] : up[1], "end");
  learn(client ? up[0] : down[0], other);
  side_close(x);
  if (!client) _exit(0);
  waitpid(child, &status, 0);
  return status ? 1 : 0;
}

/* ---- two threads ---- */
static void *other_thread(void *arg) {
  side *x = arg;
  pin(x->s->cores[1]);
  run_schedule(x);
  return NULL;
}
static int threads(const settings *s) {
  char a[256], b[256];
  pthread_t thread;
  side *x = side_open(s, true, a), *y = side_open(s, false, b);
  side_peer(x, b);
  side_peer(y, a);
  if (pthread_create(&thread, NULL, other_thread, y) != 0) die("thread");
  pin(s->cores[0]);
  run_schedule(x);
  pthread_join(thread, NULL);
  side_close(x);
  side_close(y);
  return 0;
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"provider", 1, NULL, 'p'}, {"progress", 1, NULL, 'g'}, {"memory", 1, NULL, 'm'},
                                          {"wait", 1, NULL, 'w'}, {"mode", 1, NULL, 'o'}, {"min", 1, NULL, 'a'}, {"max", 1, NULL, 'b'},
                                          {"seconds", 1, NULL, 's'}, {"protocol", 1, NULL, 'r'}, {"cores", 1, NULL, 'c'},
                                          {NULL, 0, NULL, 0}};
  static const char *const progress[] = {"thread", "manual"};
  static const char *const protocols[] = {"auto", "local", "eager", "put", "get", "persistent", "pipeline"};
  settings s = {.provider = "shm", .progress = RDMA_PROGRESS_MANUAL, .min = 8, .max = 64 << 20, .seconds = 0.2,
                .cores = {0, 1}};
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) s.cores[0] = s.cores[1] = -1;
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (o) {
      case 'p': s.provider = optarg; break;
      case 'g': s.progress = choice(optarg, progress, 2); break;
      case 'm': s.memory = choice(optarg, mem_names, MEMS); break;
      case 'w': s.wait = choice(optarg, wait_names, WAITS); break;
      case 'o': s.modes |= 1u << choice(optarg, mode_names, MODES); break;
      case 'a': s.min = strtoull(optarg, NULL, 0); break;
      case 'b': s.max = strtoull(optarg, NULL, 0); break;
      case 's': s.seconds = atof(optarg); break;
      case 'r': s.protocol = choice(optarg, protocols, 7); break;
      case 'c': if (sscanf(optarg, "%d,%d", &s.cores[0], &s.cores[1]) == 2) break; /* fall through */
      default: fputs(usage, stderr); return 2;
    }
  if (!s.modes) s.modes = (1u << MODES) - 1;
  if (s.min == 0 || s.min > s.max) {
    fputs(usage, stderr);
    return 2;
  }
  return strcmp(s.provider, "loopback") == 0 ? threads(&s) : processes(&s);
}
