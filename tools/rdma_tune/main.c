/* rdma_tune: measures this machine and writes a file of sizes that rdma-transport reads. See docs/tuning.md. */
#include "tune.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static const char *const providers[] = {"shm", "tcp", "ibverbs"};
enum { PROVIDERS = sizeof providers / sizeof *providers };
static const uint32_t sizes[] = {512,   1024,  1536,  2048,  3072,  4096,  6144,  8192,
                                 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072};
enum { SIZES = sizeof sizes / sizeof *sizes, MAX_ROUNDS = 31 };

typedef struct plan {
  bool wanted[PROVIDERS];
  bool named; /* some by the user: those have to be there */
  const char *output;
  int rounds;
  double load;     /* before */
  double batch_us; /* about so long is one measurement */
} plan;

static const char usage[] =
    "usage: rdma_tune [--provider NAME]... [--output FILE] [--quick]\n"
    "\n"
    "Measures, for each provider that this machine has, up to which size content is better sent inside a message\n"
    "(eager) than written to its destination (put), and writes a file of settings that rdma-transport reads.\n"
    "\n"
    "  --provider NAME  shm, tcp or ibverbs; may be repeated. Default: all that are there\n"
    "  --output FILE    written whole or not at all. Default: standard output\n"
    "  --quick          fewer and shorter rounds: a second or two for each provider instead of half a minute\n"
    "\n"
    "The library reads $RDMA_TUNING, or else $XDG_CONFIG_HOME/rdma-transport/tuning ($HOME/.config/... without it),\n"
    "or else /etc/rdma-transport/tuning. Measure on a machine that does nothing else.\n";

void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("rdma_tune: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(1);
}

static _Noreturn void wrong(const char *what, const char *value) {
  fprintf(stderr, "rdma_tune: %s '%s'\n%s", what, value, usage);
  exit(2);
}

static plan read_arguments(int argc, char **argv) {
  plan p = {.rounds = MAX_ROUNDS, .batch_us = 4000};
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i];
    if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
      fputs(usage, stdout);
      exit(0);
    } else if (!strcmp(a, "--version")) {
      printf("rdma_tune %s\n", rdma_version());
      exit(0);
    } else if (!strcmp(a, "--quick")) {
      p.rounds = 5;
      p.batch_us = 1000;
    } else if (!strcmp(a, "--provider") || !strcmp(a, "--output")) {
      if (++i == argc) wrong("a value is missing behind", a);
      if (!strcmp(a, "--output")) {
        p.output = argv[i];
        continue;
      }
      int k = 0;
      while (k < PROVIDERS && strcmp(argv[i], providers[k])) k++;
      if (k == PROVIDERS) wrong("allowed are shm, tcp and ibverbs, not", argv[i]);
      p.wanted[k] = p.named = true;
    } else {
      wrong("not an argument:", a);
    }
  }
  for (int k = 0; k < PROVIDERS && !p.named; k++) p.wanted[k] = true;
  return p;
}

/* How many transfers take about that long. Also warms up: metadata is known and memory mapped from here on. */
static uint32_t count_for(sides *s, task t, double us) {
  t.count = 2 * t.window;
  sides_measure(s, t);
  double one = sides_measure(s, t).us;
  double n = one > 0 ? us / one : t.window;
  return n < t.window ? t.window : n > 20000 ? 20000 : (uint32_t)n;
}

/* Medians of interleaved rounds, so that what disturbs the machine for a while disturbs both alike. */
static void measure_pair(const plan *p, sides both[2], task t, point *at, int window) {
  double us[2][MAX_ROUNDS], part[2][MAX_ROUNDS];
  uint32_t count[2];
  for (int i = 0; i < 2; i++) count[i] = count_for(&both[i], t, p->batch_us);
  for (int round = 0; round < p->rounds; round++) {
    for (int k = 0; k < 2; k++) {
      int i = (round + k) % 2;
      t.count = count[i];
      us[i][round] = sides_measure(&both[i], t).us;
    }
  }
  for (int half = 0; half < 2; half++) {
    size_t n = 0;
    for (int round = half; round < p->rounds; round += 2, n++)
      for (int i = 0; i < 2; i++) part[i][n] = us[i][round];
    at->half[half] += log(median(part[0], n) / median(part[1], n));
  }
  at->eager[t.memory][window] = median(us[0], (size_t)p->rounds);
  at->put[t.memory][window] = median(us[1], (size_t)p->rounds);
}

/* Whether so much fits into a message of the provider. */
static bool rides_in_a_message(sides *s, uint32_t nbytes) {
  task t = {.nbytes = nbytes, .memory = ORDINARY, .window = 1, .count = 2};
  return sides_measure(s, t).protocol == RDMA_PROTOCOL_EAGER;
}

/* False: the provider is not here. */
static bool tune(const plan *p, const char *provider, finding *f) {
  sides both[2];
  static const char *const protocols[2] = {"eager", "put"};
  memset(f, 0, sizeof *f);
  snprintf(f->provider, sizeof f->provider, "%s", provider);
  for (int i = 0; i < 2; i++) {
    if (sides_start(&both[i], provider, protocols[i])) continue;
    fprintf(stderr, "%s: not measured: %s\n", provider, both[i].why);
    if (i == 1) sides_end(&both[0]);
    return false;
  }
  f->built_in = both[0].eager_max;
  for (size_t i = 0; i < SIZES && rides_in_a_message(&both[0], sizes[i]); i++) {
    point *at = &f->at[f->sizes++];
    at->nbytes = sizes[i];
    for (uint32_t m = 0; m < MEMORIES; m++)
      for (int w = 0; w < WINDOWS; w++) {
        task t = {.nbytes = sizes[i], .memory = m, .window = windows[w]};
        measure_pair(p, both, t, at, w);
      }
    fprintf(stderr, "%s: %u bytes: eager takes %.2f of put's time\n", provider, sizes[i], ratio_at(at));
  }
  for (int i = 0; i < 2; i++) sides_end(&both[i]);
  choose_limit(f);
  return true;
}

static void write_finding(FILE *to, const finding *f) {
  fprintf(to, "\n# %s, eager and put, microseconds for each transfer; one at a time, and %u at a time\n", f->provider,
          windows[1]);
  fprintf(to, "#   bytes | ordinary memory: 1        %8u        | pool: 1            %8u        | eager / put\n", windows[1],
          windows[1]);
  for (size_t i = 0; i < f->sizes; i++) {
    const point *at = &f->at[i];
    fprintf(to, "# %7u |", at->nbytes);
    for (int m = 0; m < MEMORIES; m++) {
      for (int w = 0; w < WINDOWS; w++) fprintf(to, " %7.2f %7.2f ", at->eager[m][w], at->put[m][w]);
      fputs("|", to);
    }
    fprintf(to, " %5.2f\n", ratio_at(at));
  }
  if (f->differs)
    fprintf(to, "# Built in is %llu, with which the sizes between take %.0f%% longer.\n%s.eager_limit = %llu\n",
            (unsigned long long)f->built_in, 100 * (1 / (1 - f->gain) - 1), f->provider, (unsigned long long)f->best);
  else
    fprintf(to, "# Measured is %llu. What is built in is as good.\n# %s.eager_limit = %llu\n", (unsigned long long)f->best,
            f->provider, (unsigned long long)f->built_in);
}

static void write_all_findings(FILE *to, const plan *p, const finding *found, size_t n) {
  struct utsname machine;
  char day[32] = "";
  time_t now = time(NULL);
  struct tm tm;
  if (gmtime_r(&now, &tm)) strftime(day, sizeof day, "%Y-%m-%d %H:%M UTC", &tm);
  if (uname(&machine) != 0) memset(&machine, 0, sizeof machine);
  fprintf(to,
          "# Sizes of rdma-transport, measured by rdma_tune %s on %s, %s.\n"
          "# %ld processors, load average %.1f before, Linux %s; medians of %d interleaved rounds.\n"
          "# An option of a manager and a variable of the environment go before what is set here.\n",
          rdma_version(), machine.nodename, day, sysconf(_SC_NPROCESSORS_ONLN), p->load, machine.release, p->rounds);
  for (size_t i = 0; i < n; i++) write_finding(to, &found[i]);
}

/* A file beside the output, which is to take its place. */
static int beside(const char *output, char temporary[4096]) {
  struct stat there;
  int len = snprintf(temporary, 4096, "%s.XXXXXX", output);
  if (len < 0 || len >= 4096) die("--output has more than %d bytes", 4096 - 8);
  if (stat(output, &there) == 0 && S_ISDIR(there.st_mode)) die("cannot write '%s': %s", output, strerror(EISDIR));
  int fd = mkstemp(temporary);
  if (fd < 0) die("cannot write '%s': %s", output, strerror(errno));
  return fd;
}

/* Before minutes are spent on what could not be written. */
static void can_write(const char *output) {
  char temporary[4096];
  close(beside(output, temporary));
  unlink(temporary);
}

/* Whoever reads the file meanwhile sees the old one or the new one. */
static void write_file(const plan *p, const finding *found, size_t n) {
  char temporary[4096];
  int fd = beside(p->output, temporary);
  FILE *to = fdopen(fd, "w");
  if (!to) die("cannot write '%s': %s", p->output, strerror(errno));
  write_all_findings(to, p, found, n);
  bool good = fflush(to) == 0 && fchmod(fd, 0644) == 0 && fsync(fd) == 0;
  good = fclose(to) == 0 && good && rename(temporary, p->output) == 0;
  if (!good) {
    int why = errno;
    unlink(temporary);
    die("cannot write '%s': %s", p->output, strerror(why));
  }
}

int main(int argc, char **argv) {
  plan p = read_arguments(argc, argv);
  finding found[PROVIDERS];
  size_t n = 0;
  signal(SIGPIPE, SIG_IGN);
  if (p.output) can_write(p.output);
  if (getloadavg(&p.load, 1) == 1 && p.load > (double)sysconf(_SC_NPROCESSORS_ONLN) / 2)
    fprintf(stderr, "rdma_tune: the load average is %.1f: what is measured may be that\n", p.load);
  for (int k = 0; k < PROVIDERS; k++) {
    if (!p.wanted[k]) continue;
    if (tune(&p, providers[k], &found[n]))
      n++;
    else if (p.named)
      die("%s is not there", providers[k]);
  }
  if (n == 0) die("no provider is there");
  if (p.output)
    write_file(&p, found, n);
  else
    write_all_findings(stdout, &p, found, n);
  for (size_t i = 0; i < n; i++) {
    const finding *f = &found[i];
    if (f->differs)
      fprintf(stderr, "%s: eager up to %llu bytes; built in is %llu\n", f->provider, (unsigned long long)f->best,
              (unsigned long long)f->built_in);
    else
      fprintf(stderr, "%s: what is built in, eager up to %llu bytes, is as good as what was measured, %llu\n", f->provider,
              (unsigned long long)f->built_in, (unsigned long long)f->best);
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
