/* Arguments (those of the TensorFlow script that this follows), and a launcher for one machine. */
#include "common.h"
#include <arpa/inet.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
    "linear_regression [--issync 1] [--steps N] [--learning_rate R] [--tolerance T] [--workers N] [--provider P]\n"
    "    runs one parameter server and the workers as processes of this machine\n"
    "linear_regression --job_name ps|worker --task_index I --ps_hosts H:P --worker_hosts H:P,H:P...\n"
    "    runs one of them; start each on its host with the same lists\n"
    "linear_regression --allreduce [--steps N] [--learning_rate R] [--tolerance T] [--workers N] [--provider P]\n"
    "    runs workers that sum their gradients, without parameter server\n"
    "linear_regression --allreduce --job_name worker --task_index I --worker_hosts H:P,H:P... --store tcp:H:P|file:D|redis:H:P\n"
    "    runs one of these; they meet through the store, which worker 0 serves if it is tcp\n";

static int free_port(int *held) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t len = sizeof a;
  *held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*held < 0 || bind(*held, (struct sockaddr *)&a, len) || getsockname(*held, (struct sockaddr *)&a, &len)) {
    perror("port");
    exit(1);
  }
  return ntohs(a.sin_port);
}

static pid_t start(const config *c, const char *job, int task) {
  char index[16];
  pid_t parent = getpid(), pid;
  fflush(stdout);
  snprintf(index, sizeof index, "%d", task);
  pid = fork();
  if (pid == 0) {
    char steps[32], rate[32], tolerance[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    snprintf(steps, sizeof steps, "%lld", (long long)c->steps);
    snprintf(rate, sizeof rate, "%.9g", c->learning_rate);
    snprintf(tolerance, sizeof tolerance, "%.9g", c->tolerance);
    execl("/proc/self/exe", "linear_regression", "--job_name", job, "--task_index", index, "--ps_hosts", c->ps_hosts,
          "--worker_hosts", c->worker_hosts, "--issync", c->issync ? "1" : "0", "--steps", steps, "--learning_rate",
          rate, "--tolerance", tolerance, "--provider", c->provider ? c->provider : "auto",
          "--store", c->store, c->allreduce ? "--allreduce" : NULL, (char *)NULL);
    _exit(126);
  }
  return pid;
}

static int launch(config *c) {
  static char ps[64], store[80], workers[MAX_WORKERS * 32];
  int held[MAX_WORKERS + 1], failed = 0, status, servers = c->allreduce ? 0 : 1;
  pid_t server = -1;
  size_t n = 0;
  snprintf(ps, sizeof ps, "127.0.0.1:%d", free_port(&held[0]));
  snprintf(store, sizeof store, "tcp:%s", ps);
  for (int w = 0; w < c->workers; w++)
    n += (size_t)snprintf(workers + n, sizeof workers - n, "%s127.0.0.1:%d", w ? "," : "", free_port(&held[w + 1]));
  for (int w = 0; w <= c->workers; w++) close(held[w]);
  c->ps_hosts = ps;
  c->worker_hosts = workers;
  c->store = store;
  printf("%s%d workers, %s, %lld steps, learning rate %g\n", servers ? "one ps and " : "", c->workers,
         c->allreduce ? "allreduce" : c->issync ? "synchronous" : "asynchronous", (long long)c->steps, c->learning_rate);
  if (servers) server = start(c, "ps", 0);
  for (int w = 0; w < c->workers; w++) start(c, "worker", w);
  for (int left = c->workers + servers; left > 0; left--) {
    pid_t pid = wait(&status);
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "the %s ended with status %d\n", pid == server ? "ps" : "worker", status);
      failed = 1;
      break; /* the others end with us */
    }
  }
  return failed;
}

static int count_hosts(const char *hosts) {
  int n = 1;
  for (; *hosts; hosts++) n += *hosts == ',';
  return n;
}

int main(int argc, char **argv) {
  static const struct option options[] = {
      {"job_name", 1, NULL, 'j'}, {"task_index", 1, NULL, 't'}, {"ps_hosts", 1, NULL, 'p'},
      {"worker_hosts", 1, NULL, 'h'}, {"issync", 1, NULL, 's'}, {"steps", 1, NULL, 'n'},
      {"learning_rate", 1, NULL, 'r'}, {"tolerance", 1, NULL, 'e'}, {"workers", 1, NULL, 'w'},
      {"provider", 1, NULL, 'v'}, {"allreduce", 0, NULL, 'a'}, {"store", 1, NULL, 'm'}, {"help", 0, NULL, 'H'},
      {NULL, 0, NULL, 0}};
  /* 200,000 steps at the script's rate leave less than a thousandth of the way. */
  config c = {.workers = 2, .learning_rate = 0.00003, .steps = 200000, .tolerance = 0.05};
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (o) {
      case 'j': c.job_name = optarg; break;
      case 't': c.task_index = atoi(optarg); break;
      case 'p': c.ps_hosts = optarg; break;
      case 'h': c.worker_hosts = optarg, c.workers = count_hosts(optarg); break;
      case 's': c.issync = atoi(optarg) != 0; break;
      case 'n': c.steps = atoll(optarg); break;
      case 'r': c.learning_rate = atof(optarg); break;
      case 'e': c.tolerance = atof(optarg); break;
      case 'w': c.workers = atoi(optarg); break;
      case 'v': c.provider = optarg; break;
      case 'a': c.allreduce = true; break;
      case 'm': c.store = optarg; break;
      case 'H': fputs(usage, stdout); return 0;
      default: fputs(usage, stderr); return 2;
    }
  if (optind < argc) {
    fprintf(stderr, "not an argument: '%s'\n%s", argv[optind], usage);
    return 2;
  }
  if (c.workers < 1 || c.workers > MAX_WORKERS || c.steps < 1 || c.task_index < 0 || c.task_index >= c.workers) {
    fputs(usage, stderr);
    return 2;
  }
  if (!c.job_name) return launch(&c);
  bool ps = strcmp(c.job_name, "ps") == 0;
  if (!c.worker_hosts || (c.allreduce ? !c.store || ps : !c.ps_hosts)) {
    fputs(usage, stderr);
    return 2;
  }
  if (c.allreduce) return run_allreduce(&c);
  return ps ? run_ps(&c) : run_worker(&c);
}
