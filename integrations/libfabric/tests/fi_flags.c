/* Flags of one operation: what is not kept is refused. And receives that are taken back by their context, among many. */
#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};
static struct side a, b;
static char content[8] = "content", memory[8];

static long try_all(uint64_t flags, int which) {
  const struct iovec iov = {content, sizeof content};
  const struct fi_rma_iov to = {0, sizeof content, 1};
  const struct fi_ioc one = {content, 1};
  const struct fi_rma_ioc there = {0, 1, 1};
  const struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = a.other, .context = content};
  const struct fi_msg_tagged tagged = {.msg_iov = &iov, .iov_count = 1, .addr = a.other, .context = content};
  const struct fi_msg_rma rma = {.msg_iov = &iov, .iov_count = 1, .addr = a.other, .rma_iov = &to, .rma_iov_count = 1, .context = content};
  const struct fi_msg_atomic atomic = {.msg_iov = &one, .iov_count = 1, .addr = a.other, .rma_iov = &there, .rma_iov_count = 1,
                                       .datatype = FI_UINT64, .op = FI_SUM, .context = content};
  switch (which) {
    case 0: return fi_sendmsg(a.ep, &msg, flags);
    case 1: return fi_tsendmsg(a.ep, &tagged, flags);
    case 2: return fi_writemsg(a.ep, &rma, flags);
    case 3: return fi_readmsg(a.ep, &rma, flags);
    case 4: return fi_atomicmsg(a.ep, &atomic, flags);
    case 5: return fi_recvmsg(a.ep, &msg, flags);
    case 6: return fi_trecvmsg(a.ep, &tagged, flags);
    default: return 1;
  }
}

/* Nothing of a refused one happens: the messages and the writes that follow are the first that come. */
static void refused_flags(void) {
  struct fid_mr *mr;
  OK(fi_mr_reg(b.domain, memory, sizeof memory, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
  for (int which = 0; try_all(UINT64_C(1) << 50, which) != 1; ++which) {
    CHECK(try_all(FI_FENCE, which) == -FI_EBADFLAGS);
    CHECK(try_all(FI_COMMIT_COMPLETE, which) == -FI_EBADFLAGS);
    CHECK(try_all(UINT64_C(1) << 50 | FI_COMPLETION, which) == -FI_EBADFLAGS);
    CHECK(try_all(FI_MULTICAST, which) == -FI_ENOSYS);
    CHECK(try_all(FI_TRIGGER | FI_COMPLETION, which) == -FI_ENOSYS);
  }
  CHECK(try_all(FI_REMOTE_CQ_DATA, 4) == -FI_EBADFLAGS);
  CHECK(try_all(FI_MULTI_RECV, 6) == -FI_EBADFLAGS);
  CHECK(try_all(FI_DISCARD, 6) == -FI_EINVAL);
  char in[8] = "";
  OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  OK(try_all(FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE, 0));
  expect(&a, &b, content);
  expect(&b, &a, in);
  CHECK(memcmp(in, content, sizeof in) == 0 && memory[0] == 0);
  OK(try_all(FI_COMPLETION | FI_DELIVERY_COMPLETE, 2));
  expect(&a, &b, content);
  CHECK(memcmp(memory, content, sizeof memory) == 0);
  OK(fi_close(&mr->fid));
}

/* Of many receives, some with one context, each is taken back once. */
static void many_contexts(void) {
  enum { N = 6000, EACH = 3 };
  static char contexts[N / EACH];
  for (int i = 0; i < N; ++i) OK(fi_trecv(b.ep, memory, sizeof memory, NULL, FI_ADDR_UNSPEC, 5, 0, &contexts[i % (N / EACH)]));
  for (int round = 0; round < EACH; ++round) {
    for (int i = 0; i < N / EACH; ++i) {
      char *context = &contexts[(i * 7 + round) % (N / EACH)]; /* every one, since 7 divides none of their number */
      OK(fi_cancel(&b.ep->fid, context));
      struct fi_cq_tagged_entry entry;
      struct fi_cq_err_entry error = {0};
      ssize_t got;
      while ((got = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN) continue;
      CHECK(got == -FI_EAVAIL);
      CHECK(fi_cq_readerr(b.cq, &error, 0) == 1 && error.err == FI_ECANCELED && error.op_context == context);
    }
  }
  for (int i = 0; i < N / EACH; ++i) CHECK(fi_cancel(&b.ep->fid, &contexts[i]) == -FI_ENOENT);
}

/* A port has 16 bits. */
static void ports(void) {
  struct fi_info *info = NULL;
  CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "99999", FI_SOURCE, a.info, &info) == -FI_ENODATA);
  CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "18446744073709551617", FI_SOURCE, a.info, &info) == -FI_ENODATA);
}

int main(void) {
  open_pair(&a, &b, kUsual);
  refused_flags();
  many_contexts();
  ports();
  close_pair(&a, &b);
  puts("fi_flags: well");
  return 0;
}
