/* One-sided operations whose asker goes before it is answered: what they held is free then. And answers that fail. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

enum { kOperations = 40, kLen = 100000 };
enum what { kReads, kWrites, kFetches };
enum end { kClosed, kKilled };

static char memory[1 << 20];

static void tell(int fd) { CHECK(write(fd, "c", 1) == 1); }

static void ask(struct side *s, enum what what, char *local, size_t len) {
  if (what == kReads) OK(fi_read(s->ep, local, len, NULL, s->other, 0, 1, local));
  if (what == kWrites) OK(fi_write(s->ep, local, len, NULL, s->other, 0, 1, local));
  if (what == kFetches)
    OK(fi_fetch_atomic(s->ep, local, 100, NULL, local + 1000, NULL, s->other, 0, 1, FI_UINT64, FI_SUM, local));
}

/* Has one operation done, and goes in the middle of others. */
static void asker(enum what what, enum end end, int in, int out) {
  static char local[kOperations][kLen];
  struct side s;
  char mine[64], theirs[64], c;
  open_side(&s, kUsual);
  address_of(&s, mine, sizeof mine);
  CHECK(write(out, mine, sizeof mine) == sizeof mine && read(in, theirs, sizeof theirs) == sizeof theirs);
  CHECK(fi_av_insert(s.av, theirs, 1, &s.other, 0, NULL) == 1);
  ask(&s, what, local[0], 800);
  expect(&s, NULL, local[0]);
  tell(out);
  CHECK(read(in, &c, 1) == 1);
  /* Now the other end does nothing. */
  for (int i = 0; i < kOperations; ++i) ask(&s, what, local[i], kLen);
  for (int i = 0; i < 1000; ++i) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
  if (end == kClosed) OK(fi_close(&s.ep->fid));
  tell(out);
  pause();
}

static void leaves(enum what what, enum end end, bool known, enum fi_progress progress) {
  int in[2], out[2];
  CHECK(pipe(in) == 0 && pipe(out) == 0);
  const pid_t child = fork();
  if (child == 0) {
    asker(what, end, in[0], out[1]);
    _exit(1);
  }
  struct setup how = kUsual;
  how.progress = progress;
  struct side s;
  char mine[64], theirs[64], c;
  open_side(&s, how);
  address_of(&s, mine, sizeof mine);
  struct fid_mr *mr;
  OK(fi_mr_reg(s.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
  CHECK(read(out[0], theirs, sizeof theirs) == sizeof theirs);
  if (known) CHECK(fi_av_insert(s.av, theirs, 1, &s.other, 0, NULL) == 1);
  CHECK(write(in[1], mine, sizeof mine) == sizeof mine);
  CHECK(fcntl(out[0], F_SETFL, O_NONBLOCK) == 0);
  while (read(out[0], &c, 1) != 1) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
  CHECK(fcntl(out[0], F_SETFL, 0) == 0);
  tell(in[1]);
  CHECK(read(out[0], &c, 1) == 1);
  if (end == kKilled) kill(child, SIGKILL);
  /* Now it hears of the operations, and that nobody waits for them. fi_close waits for what is in the middle of the region: five
   * seconds at most. */
  for (int i = 0; i < 20000; ++i) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
  const int rc = fi_close(&mr->fid);
  kill(child, SIGKILL);
  CHECK(waitpid(child, NULL, 0) == child);
  if (rc != 0) {
    fprintf(stderr, "operation %d, end %d, %s, progress %d: fi_close of the region: %s\n", (int)what, (int)end,
            known ? "known" : "not known", (int)progress, fi_strerror(-rc));
    exit(1);
  }
  close_side(&s);
  for (int i = 0; i < 2; ++i) close(in[i]), close(out[i]);
}

enum { kMany = 2500, kShort = 4000 };

/* Reads more than goes out at once, and hears of each, when the other end may no longer do what it needs. */
static void reader_of_many(int in, int out) {
  static char local[kMany][kShort];
  struct side s;
  char mine[64], theirs[64], c;
  open_side(&s, kUsual);
  address_of(&s, mine, sizeof mine);
  CHECK(write(out, mine, sizeof mine) == sizeof mine && read(in, theirs, sizeof theirs) == sizeof theirs);
  CHECK(fi_av_insert(s.av, theirs, 1, &s.other, 0, NULL) == 1);
  ask(&s, kReads, local[0], 8);
  expect(&s, NULL, local[0]);
  for (int i = 0; i < kMany; ++i) ask(&s, kReads, local[i], kShort);
  tell(out);
  CHECK(read(in, &c, 1) == 1);
  for (int i = 0; i < kMany; ++i) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;
    fi_addr_t from;
    (void)next(&s, NULL, &entry, &from, &error);
  }
  tell(out);
}

/* An answer that has begun and then fails, for want of descriptors on shm, is heard of as an error. */
static void fails(void) {
  int in[2], out[2];
  CHECK(pipe(in) == 0 && pipe(out) == 0);
  const pid_t child = fork();
  if (child == 0) {
    reader_of_many(in[0], out[1]);
    pause();
  }
  struct side s;
  char mine[64], theirs[64], c;
  open_side(&s, kUsual);
  address_of(&s, mine, sizeof mine);
  struct fid_mr *mr;
  OK(fi_mr_reg(s.domain, memory, sizeof memory, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
  CHECK(read(out[0], theirs, sizeof theirs) == sizeof theirs);
  CHECK(fi_av_insert(s.av, theirs, 1, &s.other, 0, NULL) == 1);
  CHECK(write(in[1], mine, sizeof mine) == sizeof mine);
  CHECK(fcntl(out[0], F_SETFL, O_NONBLOCK) == 0);
  while (read(out[0], &c, 1) != 1) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
  /* It hears of all, and its answers wait for the reader. */
  for (int i = 0; i < 20000; ++i) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
  const int lowest = open("/dev/null", O_RDONLY);
  CHECK(lowest >= 0 && close(lowest) == 0);
  struct rlimit usual, none;
  OK(getrlimit(RLIMIT_NOFILE, &usual));
  none = usual;
  none.rlim_cur = (rlim_t)lowest;
  OK(setrlimit(RLIMIT_NOFILE, &none));
  tell(in[1]);
  while (read(out[0], &c, 1) != 1) {
    CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
    CHECK(waitpid(child, NULL, WNOHANG) == 0);
  }
  OK(setrlimit(RLIMIT_NOFILE, &usual));
  kill(child, SIGKILL);
  CHECK(waitpid(child, NULL, 0) == child);
  OK(fi_close(&mr->fid));
  close_side(&s);
  for (int i = 0; i < 2; ++i) close(in[i]), close(out[i]);
}

int main(void) {
  for (int what = kReads; what <= kFetches; ++what) {
    for (int end = kClosed; end <= kKilled; ++end) {
      for (int known = 0; known < 2; ++known) leaves(what, end, known, FI_PROGRESS_MANUAL);
    }
  }
  leaves(kReads, kKilled, true, FI_PROGRESS_AUTO);
  fails();
  puts("fi_readers: well");
  return 0;
}
