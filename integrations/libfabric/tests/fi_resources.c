/* What an endpoint needs of the system, and what it gives back. */
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

static void *send_later(void *side) {
  struct side *s = side;
  usleep(300000); /* the other sleeps by then; if not, it wakes without */
  OK(fi_inject(s->ep, "hello", 6, s->other));
  return NULL;
}

/* With whatever number of descriptors: an endpoint that is enabled hears of messages while the application sleeps. */
static void few_descriptors(void) {
  struct setup how = kUsual;
  struct side a, b;
  how.wait = FI_WAIT_FD;
  how.progress = FI_PROGRESS_AUTO;
  open_side(&b, how);
  int refused = 0, left = 0;
  for (;; ++left) {
    how.progress = FI_PROGRESS_MANUAL;
    prepare_side(&a, how);
    const int lowest = open("/dev/null", O_RDONLY);
    CHECK(lowest >= 0 && close(lowest) == 0);
    struct rlimit usual, few;
    OK(getrlimit(RLIMIT_NOFILE, &usual));
    few = usual;
    few.rlim_cur = (rlim_t)(lowest + left);
    OK(setrlimit(RLIMIT_NOFILE, &few));
    const int rc = fi_enable(a.ep);
    OK(setrlimit(RLIMIT_NOFILE, &usual));
    if (rc == 0) break;
    CHECK(left < 100 && rc != -FI_EAGAIN);
    ++refused;
    close_side(&a);
  }
  CHECK(refused > 0);
  char names[2][64], in[8];
  address_of(&a, names[0], sizeof names[0]);
  address_of(&b, names[1], sizeof names[1]);
  CHECK(fi_av_insert(a.av, names[1], 1, &a.other, 0, NULL) == 1);
  CHECK(fi_av_insert(b.av, names[0], 1, &b.other, 0, NULL) == 1);
  /* They are connected. */
  OK(fi_recv(a.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  OK(fi_inject(b.ep, "first", 6, b.other));
  expect(&a, NULL, in);
  OK(fi_recv(a.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  pthread_t thread;
  OK(pthread_create(&thread, NULL, send_later, &b));
  /* The descriptor alone ends the sleep. */
  int fd;
  OK(fi_control(&a.cq->fid, FI_GETWAIT, &fd));
  struct fid *fids[1] = {&a.cq->fid};
  struct fi_cq_tagged_entry entry;
  ssize_t got;
  while ((got = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN) {
    const int safe = fi_trywait(a.fabric, fids, 1);
    if (safe == -FI_EAGAIN) continue;
    OK(safe);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, 20000) == 1);
  }
  CHECK(got == 1 && entry.op_context == in);
  OK(pthread_join(thread, NULL));
  close_pair(&a, &b);
}

enum { kWrites = 200 };

/* Writes that are copied, and that nobody has answered when the endpoint is closed. */
static void unanswered(int n) {
  static char data[1000], memory[sizeof data];
  struct side a, b;
  struct fid_mr *mr;
  open_pair(&a, &b, kUsual);
  OK(fi_mr_reg(b.domain, memory, sizeof memory, FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
  const struct iovec iov = {data, sizeof data};
  const struct fi_rma_iov to = {0, sizeof data, 1};
  const struct fi_msg_rma msg = {.msg_iov = &iov, .iov_count = 1, .addr = a.other, .rma_iov = &to, .rma_iov_count = 1, .context = data};
  OK(fi_writemsg(a.ep, &msg, FI_COMPLETION));
  expect(&a, &b, data);
  for (int i = 0; i < n; ++i) OK(fi_writemsg(a.ep, &msg, FI_COMPLETION | FI_INJECT));
  close_side(&a);
  OK(fi_close(&mr->fid));
  close_side(&b);
}

static void copies_go(void) {
  enum { kRounds = 5 };
  /* What is made once is there then. */
  for (int i = 0; i < 2; ++i) unanswered(kWrites);
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kRounds; ++i) unanswered(kWrites);
  const size_t after = mallinfo2().uordblks;
  /* Less than a kilobyte of each: they had 16 of them. */
  if (after > before && after - before > (size_t)kRounds * kWrites * 1024) {
    fprintf(stderr, "%zu bytes are lost of %d writes\n", after - before, kRounds * kWrites);
    exit(1);
  }
}

int main(void) {
  few_descriptors();
  copies_go();
  puts("fi_resources: well");
  return 0;
}
