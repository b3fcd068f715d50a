/* Counters of what peers do here: those of an endpoint, and those of a region (FI_RMA_EVENT). */
#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

enum { kKey = 7, kOther = 8, kRoom = 64 * 1024, kPatience = 120000 };
static unsigned char memory[kRoom], local[kRoom];

static struct fid_cntr *counter_of(struct side *s, enum fi_wait_obj wait) {
  struct fid_cntr *cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
  OK(fi_cntr_open(s->domain, &attr, &cntr, NULL));
  return cntr;
}

static void write_here(struct side *a, struct side *b, size_t len) {
  OK(fi_write(a->ep, local, len, NULL, a->other, 0, kKey, local));
  expect(a, b, local);
}

/* All that changes a region counts once, and nothing else does. */
static void counts(struct side *a, struct side *b, struct fid_cntr *writes, struct fid_cntr *others) {
  uint64_t there = 0;
  write_here(a, b, 8);
  CHECK(fi_cntr_read(writes) == ++there);
  write_here(a, b, kRoom);
  CHECK(fi_cntr_read(writes) == ++there);
  OK(fi_read(a->ep, local, 8, NULL, a->other, 0, kKey, local));
  expect(a, b, local);
  CHECK(fi_cntr_read(writes) == there);
  /* Two places of one region. */
  struct iovec from = {local, 16};
  struct fi_rma_iov to[2] = {{0, 8, kKey}, {100, 8, kKey}};
  struct fi_msg_rma msg = {.msg_iov = &from, .iov_count = 1, .addr = a->other, .rma_iov = to, .rma_iov_count = 2, .context = local};
  OK(fi_writemsg(a->ep, &msg, FI_COMPLETION));
  expect(a, b, local);
  CHECK(fi_cntr_read(writes) == ++there && fi_cntr_read(others) == 0);
  /* One of each of two. */
  to[1].key = kOther;
  OK(fi_writemsg(a->ep, &msg, FI_COMPLETION));
  expect(a, b, local);
  CHECK(fi_cntr_read(writes) == ++there && fi_cntr_read(others) == 1);
  uint64_t one = 1, was;
  OK(fi_atomic(a->ep, &one, 1, NULL, a->other, 0, kKey, FI_UINT64, FI_SUM, local));
  expect(a, b, local);
  CHECK(fi_cntr_read(writes) == ++there);
  OK(fi_fetch_atomic(a->ep, &one, 1, NULL, &was, NULL, a->other, 0, kKey, FI_UINT64, FI_ATOMIC_READ, local));
  expect(a, b, local);
  CHECK(fi_cntr_read(writes) == there);
  /* Who waits for it alone drives what it counts. */
  OK(fi_inject_write(a->ep, local, 8, a->other, 0, kKey));
  OK(fi_cntr_wait(writes, ++there, kPatience));
  CHECK(fi_cntr_wait(writes, there + 1, 20) == -FI_ETIMEDOUT);
}

static void regions(enum fi_progress progress) {
  struct setup how = kUsual;
  how.caps = FI_RMA | FI_ATOMIC | FI_RMA_EVENT;
  how.progress = progress;
  struct side a, b;
  struct fid_mr *mr, *other;
  open_pair(&a, &b, how);
  struct fid_cntr *writes = counter_of(&b, FI_WAIT_UNSPEC), *others = counter_of(&b, FI_WAIT_NONE);
  OK(fi_mr_reg(b.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0, &mr, NULL));
  OK(fi_mr_reg(b.domain, memory, 200, FI_REMOTE_WRITE, 0, kOther, 0, &other, NULL));
  OK(fi_mr_bind(mr, &writes->fid, FI_REMOTE_WRITE));
  OK(fi_mr_bind(other, &others->fid, FI_REMOTE_WRITE));
  CHECK(fi_mr_bind(mr, &others->fid, FI_REMOTE_WRITE) == -FI_EINVAL);
  CHECK(fi_mr_bind(mr, &others->fid, FI_SEND) == -FI_EBADFLAGS);
  OK(fi_mr_bind(mr, &b.ep->fid, 0));
  CHECK(fi_mr_bind(mr, &b.cq->fid, 0) == -FI_EINVAL);
  counts(&a, &b, writes, others);
  CHECK(fi_close(&writes->fid) == -FI_EBUSY);
  /* A descriptor would not tell of it. */
  struct fid_cntr *quiet = counter_of(&b, FI_WAIT_FD);
  struct fid_mr *third;
  OK(fi_mr_reg(b.domain, memory, 8, FI_REMOTE_WRITE, 0, 9, 0, &third, NULL));
  CHECK(fi_mr_bind(third, &quiet->fid, FI_REMOTE_WRITE) == (progress == FI_PROGRESS_AUTO ? 0 : -FI_EOPNOTSUPP));
  OK(fi_close(&third->fid));
  OK(fi_close(&quiet->fid));
  OK(fi_close(&mr->fid));
  OK(fi_close(&other->fid));
  OK(fi_close(&writes->fid));
  OK(fi_close(&others->fid));
  close_pair(&a, &b);
}

/* What fi_getinfo says that there is, an endpoint can be asked for. */
static void endpoint(void) {
  struct setup how = kUsual;
  how.caps = FI_RMA | FI_RMA_EVENT;
  struct side a, b;
  struct fid_mr *mr;
  open_side(&a, how);
  prepare_side(&b, how);
  struct fid_cntr *writes = counter_of(&b, FI_WAIT_NONE), *reads = counter_of(&b, FI_WAIT_NONE);
  OK(fi_ep_bind(b.ep, &writes->fid, FI_REMOTE_WRITE));
  OK(fi_ep_bind(b.ep, &reads->fid, FI_REMOTE_READ));
  OK(fi_enable(b.ep));
  char name[64];
  address_of(&b, name, sizeof name);
  CHECK(fi_av_insert(a.av, name, 1, &a.other, 0, NULL) == 1);
  OK(fi_mr_reg(b.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, kKey, 0, &mr, NULL));
  write_here(&a, &b, 100);
  CHECK(fi_cntr_read(writes) == 1 && fi_cntr_read(reads) == 0);
  OK(fi_read(a.ep, local, 100, NULL, a.other, 0, kKey, local));
  expect(&a, &b, local);
  const double until = now() + PATIENCE;
  while (fi_cntr_read(reads) != 1) CHECK(now() < until);
  CHECK(fi_cntr_read(writes) == 1);
  OK(fi_close(&mr->fid));
  OK(fi_close(&b.ep->fid));
  OK(fi_close(&writes->fid));
  OK(fi_close(&reads->fid));
  OK(fi_endpoint(b.domain, b.info, &b.ep, NULL));
  close_side(&a);
  close_side(&b);
}

int main(void) {
  regions(FI_PROGRESS_MANUAL);
  regions(FI_PROGRESS_AUTO);
  endpoint();
  puts("fi_counts: well");
  return 0;
}
