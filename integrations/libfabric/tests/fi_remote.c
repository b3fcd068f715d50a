/* One-sided and atomic operations, and what becomes of operations when the peer is killed. */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

static const uint64_t kAll = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;

static void read_and_write(int mr_mode, enum fi_progress progress) {
  struct setup how = kUsual;
  how.mr_mode = mr_mode;
  how.progress = progress;
  struct side a, b;
  open_pair(&a, &b, how);
  static unsigned char memory[2 << 20], local[2 << 20];
  struct fid_mr *mr, *read_only, *twice;
  OK(fi_mr_reg(b.domain, memory, sizeof memory, kAll, 0, 77, 0, &mr, NULL));
  OK(fi_mr_reg(b.domain, memory, 100, FI_REMOTE_READ, 0, 78, 0, &read_only, NULL));
  const uint64_t key = fi_mr_key(mr), base = mr_mode == FI_MR_BASIC ? (uintptr_t)memory : 0;
  if (mr_mode != FI_MR_BASIC) {
    CHECK(key == 77);
    CHECK(fi_mr_reg(b.domain, memory, 1, kAll, 0, 77, 0, &twice, NULL) == -FI_ENOKEY);
  }
  static const size_t sizes[] = {0, 1, 100, 4096, 10000, 1 << 20, (2 << 20) - 8};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    const size_t n = sizes[i];
    pattern(local, n, (unsigned)i);
    memset(memory, 0, sizeof memory);
    if (n <= 4096) {
      OK(fi_write(a.ep, local, n, NULL, a.other, base + 8, key, local));
    } else {
      OK(fi_writedata(a.ep, local, n, NULL, 55, a.other, base + 8, key, local));
      const struct fi_cq_tagged_entry e = expect(&b, &a, NULL);
      CHECK(e.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && e.data == 55);
    }
    CHECK(expect(&a, &b, local).flags == (FI_RMA | FI_WRITE));
    CHECK(has_pattern(memory + 8, n, (unsigned)i) && memory[7] == 0 && (n == sizes[6] || memory[8 + n] == 0));
    memset(local, 0, n);
    OK(fi_read(a.ep, local, n, NULL, a.other, base + 8, key, local + 1));
    CHECK(expect(&a, &b, local + 1).flags == (FI_RMA | FI_READ));
    CHECK(has_pattern(local, n, (unsigned)i));
  }
  /* Pieces on both sides. */
  pattern(local, 300, 9);
  struct iovec cut[3] = {{local, 10}, {local + 10, 190}, {local + 200, 100}};
  struct fi_rma_iov to[2] = {{base + 5000, 120, key}, {base + 7000, 180, key}};
  struct fi_msg_rma msg = {.msg_iov = cut, .iov_count = 3, .addr = a.other, .rma_iov = to, .rma_iov_count = 2,
                           .context = cut};
  OK(fi_writemsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
  expect(&a, &b, cut);
  CHECK(memcmp(memory + 5000, local, 120) == 0 && memcmp(memory + 7000, local + 120, 180) == 0);
  memset(local, 0, 300);
  OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
  expect(&a, &b, cut);
  CHECK(has_pattern(local, 300, 9));
  /* Injected, whose end only the memory tells. */
  OK(fi_inject_write(a.ep, "inject", 6, a.other, base, key));
  const double until = now() + PATIENCE;
  while (memcmp(memory, "inject", 6) != 0 && now() < until)
    CHECK(fi_cq_read(a.cq, NULL, 0) <= 0 && fi_cq_read(b.cq, NULL, 0) <= 0);
  CHECK(memcmp(memory, "inject", 6) == 0);
  /* What is not allowed, or not there. */
  OK(fi_write(a.ep, local, 10, NULL, a.other, base + sizeof memory - 9, key, local));
  expect_error(&a, &b, local, FI_EINVAL);
  OK(fi_read(a.ep, local, 10, NULL, a.other, base + sizeof memory - 9, key, local));
  expect_error(&a, &b, local, FI_EINVAL);
  OK(fi_write(a.ep, local, 10, NULL, a.other, base, fi_mr_key(read_only), local));
  expect_error(&a, &b, local, FI_EACCES);
  OK(fi_read(a.ep, local, 10, NULL, a.other, base, fi_mr_key(read_only), local));
  expect(&a, &b, local);
  OK(fi_close(&read_only->fid));
  OK(fi_read(a.ep, local, 10, NULL, a.other, base, 78, local));
  expect_error(&a, &b, local, FI_EKEYREJECTED);
  OK(fi_close(&mr->fid));
  close_pair(&a, &b);
}

static void atomics(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  union {
    uint64_t u64[16];
    int32_t i32[32];
    double f64[16];
    uint8_t bytes[128];
  } memory;
  struct fid_mr *mr;
  memset(&memory, 0, sizeof memory);
  OK(fi_mr_reg(b.domain, &memory, sizeof memory, kAll, 0, 1, 0, &mr, NULL));
  uint64_t operand[4] = {5, 6, 7, 8}, result[4], with[4] = {10, 6, 7, 9};
  for (int i = 0; i < 2; ++i) {
    OK(fi_atomic(a.ep, operand, 4, NULL, a.other, 0, 1, FI_UINT64, FI_SUM, operand));
    CHECK(expect(&a, &b, operand).flags == (FI_ATOMIC | FI_WRITE));
  }
  CHECK(memory.u64[0] == 10 && memory.u64[3] == 16);
  OK(fi_fetch_atomic(a.ep, operand, 4, NULL, result, NULL, a.other, 0, 1, FI_UINT64, FI_ATOMIC_WRITE, result));
  CHECK(expect(&a, &b, result).flags == (FI_ATOMIC | FI_READ));
  CHECK(result[0] == 10 && result[3] == 16 && memory.u64[3] == 8);
  OK(fi_fetch_atomic(a.ep, NULL, 2, NULL, result, NULL, a.other, 8, 1, FI_UINT64, FI_ATOMIC_READ, result));
  expect(&a, &b, result);
  CHECK(result[0] == 6 && result[1] == 7);
  /* memory is 5 6 7 8: the second and the third are equal. */
  const uint64_t swap[4] = {100, 101, 102, 103};
  OK(fi_compare_atomic(a.ep, swap, 4, NULL, with, NULL, result, NULL, a.other, 0, 1, FI_UINT64, FI_CSWAP, result));
  expect(&a, &b, result);
  CHECK(memory.u64[0] == 5 && memory.u64[1] == 101 && memory.u64[2] == 102 && memory.u64[3] == 8);
  CHECK(result[0] == 5 && result[1] == 6 && result[2] == 7 && result[3] == 8);
  memory.u64[0] = 0xff00ff00;
  const uint64_t bits = 0x12345678, mask = 0x0000ffff;
  OK(fi_compare_atomic(a.ep, &bits, 1, NULL, &mask, NULL, result, NULL, a.other, 0, 1, FI_UINT64, FI_MSWAP, result));
  expect(&a, &b, result);
  CHECK(memory.u64[0] == 0xff005678);
  memory.i32[10] = -5;
  const int32_t low = -9;
  OK(fi_inject_atomic(a.ep, &low, 1, a.other, 40, 1, FI_INT32, FI_MIN));
  const double until = now() + PATIENCE;
  while (*(volatile int32_t *)&memory.i32[10] != -9 && now() < until)
    CHECK(fi_cq_read(a.cq, NULL, 0) <= 0 && fi_cq_read(b.cq, NULL, 0) <= 0);
  CHECK(memory.i32[10] == -9);
  memory.f64[8] = 1.5;
  const double factor = 4.0;
  OK(fi_atomic(a.ep, &factor, 1, NULL, a.other, 64, 1, FI_DOUBLE, FI_PROD, NULL));
  expect(&a, &b, NULL);
  CHECK(memory.f64[8] == 6.0);
  /* To oneself. */
  struct fid_mr *own;
  uint64_t here = 3;
  OK(fi_mr_reg(a.domain, &here, sizeof here, kAll, 0, 1, 0, &own, NULL));
  OK(fi_fetch_atomic(a.ep, operand, 1, NULL, result, NULL, a.self, 0, 1, FI_UINT64, FI_SUM, result));
  expect(&a, NULL, result);
  CHECK(result[0] == 3 && here == 8);
  size_t count;
  OK(fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count));
  CHECK(count == 256);
  CHECK(fi_atomicvalid(a.ep, FI_DOUBLE, FI_BOR, &count) == -FI_EOPNOTSUPP);
  CHECK(fi_atomic(a.ep, operand, 1, NULL, a.other, 0, 1, FI_UINT64, FI_CSWAP, NULL) == -FI_EOPNOTSUPP);
  OK(fi_atomic(a.ep, operand, 1, NULL, a.other, 124, 1, FI_UINT64, FI_SUM, operand));
  expect_error(&a, &b, operand, FI_EINVAL);
  OK(fi_fetch_atomic(a.ep, operand, 1, NULL, result, NULL, a.other, 0, 2, FI_UINT64, FI_SUM, result));
  expect_error(&a, &b, result, FI_EKEYREJECTED);
  OK(fi_close(&own->fid));
  OK(fi_close(&mr->fid));
  close_pair(&a, &b);
}

enum { kRead = 1 << 20 };

/* The other process: says its address, and does what it is for. */
static void begin(struct side *s) {
  open_side(s, kUsual);
  char name[64];
  const size_t len = address_of(s, name, sizeof name);
  CHECK(write(1, name, len) == (ssize_t)len);
  char peer[64];
  CHECK(read(0, peer, len) == (ssize_t)len);
  CHECK(fi_av_insert(s->av, peer, 1, &s->other, 0, NULL) == 1);
}

/* Reads the other's memory whenever it is told to, and says when it has it. */
static int reads(void) {
  struct side s;
  begin(&s);
  static char memory[kRead];
  for (char c; read(0, &c, 1) == 1;) {
    OK(fi_read(s.ep, memory, sizeof memory, NULL, s.other, 0, 7, memory));
    expect(&s, NULL, memory);
    CHECK(write(1, &c, 1) == 1);
  }
  return 0;
}

/* Takes one message, answers it, and does nothing more. */
static int child(void) {
  struct side s;
  begin(&s);
  char c;
  OK(fi_recv(s.ep, &c, 1, NULL, FI_ADDR_UNSPEC, &c));
  expect(&s, NULL, &c);
  OK(fi_send(s.ep, &c, 1, NULL, s.other, &c));
  expect(&s, NULL, &c);
  for (;;) CHECK(fi_cq_read(s.cq, NULL, 0) <= 0);
}

/* An endpoint that has as many receives as there is room for, and so none for answers that have to wait, answers when there is:
 * of what is too long to go at once, and of more than the connection takes while the other end takes nothing. */
static void full(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  enum { kWrites = 20000, kLong = 1 << 20, kFree = 16 };
  static char memory[kLong], local[kLong], in[kFree];
  uint64_t operand = 10;
  struct fid_mr *mr;
  pattern(memory, sizeof memory, 3);
  OK(fi_mr_reg(b.domain, memory, sizeof memory, kAll, 0, 1, 0, &mr, NULL));
  /* They are connected. */
  OK(fi_write(a.ep, memory, 8, NULL, a.other, 0, 1, local));
  expect(&a, &b, local);
  size_t posted = 0;
  ssize_t err;
  while ((err = fi_trecv(b.ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 1, 0, posted < kFree ? &in[posted] : NULL)) == 0) ++posted;
  CHECK(err == -FI_EAGAIN && posted >= b.info->rx_attr->size);
  OK(fi_read(a.ep, local, sizeof local, NULL, a.other, 0, 1, local));
  for (int i = 0; i < kWrites; ++i) {
    OK(fi_atomic(a.ep, &operand, 1, NULL, a.other, 0, 1, FI_UINT64, FI_BOR, local));
    if (i % 16 == 0) CHECK(fi_cq_read(b.cq, NULL, 0) <= 0);
  }
  for (int i = 0; i < 20000; ++i) CHECK(fi_cq_read(b.cq, NULL, 0) <= 0);
  for (int i = 0; i < kFree; ++i) OK(fi_cancel(&b.ep->fid, &in[i]));
  for (int i = 0; i < kWrites + 1; ++i) expect(&a, &b, local);
  CHECK(memcmp(local + 8, memory + 8, sizeof local - 8) == 0);
  OK(fi_close(&mr->fid));
  close_pair(&a, &b);
}

/* Another process, which knows `a` and which `a` knows, and a pipe each way. */
static pid_t start(const char *program, const char *what, struct side *a, int *into, int *out_of) {
  char name[64];
  const size_t len = address_of(a, name, sizeof name);
  int to[2], from[2];
  CHECK(pipe(to) == 0 && pipe(from) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    close(to[1]);
    execl(program, program, what, (char *)NULL);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  CHECK(pid > 0 && write(to[1], name, len) == (ssize_t)len);
  char peer[64];
  size_t have = 0;
  while (have < len) {
    const ssize_t n = read(from[0], peer + have, len - have);
    CHECK(n > 0);
    have += (size_t)n;
  }
  CHECK(fi_av_insert(a->av, peer, 1, &a->other, 0, NULL) == 1);
  *into = to[1];
  *out_of = from[0];
  return pid;
}

/* A region is closed when its peer has what it read: nobody drives the endpoint for that but fi_close. */
static void close_region(const char *program) {
  struct side a;
  open_side(&a, kUsual);
  int into, out_of;
  const pid_t pid = start(program, "reads", &a, &into, &out_of);
  static char memory[kRead];
  for (int i = 0; i < 50; ++i) {
    struct fid_mr *mr;
    OK(fi_mr_reg(a.domain, memory, sizeof memory, kAll, 0, 7, 0, &mr, NULL));
    CHECK(write(into, "r", 1) == 1);
    struct pollfd p = {.fd = out_of, .events = POLLIN};
    while (poll(&p, 1, 0) == 0) CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
    char c;
    CHECK(read(out_of, &c, 1) == 1);
    OK(fi_close(&mr->fid));
  }
  close(into);
  CHECK(waitpid(pid, NULL, 0) == pid);
  close(out_of);
  close_side(&a);
}

static void death(const char *program) {
  struct side a;
  open_side(&a, kUsual);
  int into, out_of;
  const pid_t pid = start(program, "child", &a, &into, &out_of);
  char c[4] = {0};
  OK(fi_recv(a.ep, &c[0], 1, NULL, FI_ADDR_UNSPEC, &c[0]));
  OK(fi_inject(a.ep, "x", 1, a.other));
  CHECK(expect(&a, NULL, &c[0]).len == 1 && c[0] == 'x');
  /* A receive from anybody goes on; the others end. */
  OK(fi_recv(a.ep, &c[1], 1, NULL, a.other, &c[1]));
  OK(fi_trecv(a.ep, &c[2], 1, NULL, FI_ADDR_UNSPEC, 1, 0, &c[2]));
  char several[2][100];
  struct iovec iov[2] = {{several[0], 100}, {several[1], 100}};
  struct fi_msg msg[2] = {{.msg_iov = &iov[0], .iov_count = 1, .addr = a.other, .context = several[0]},
                          {.msg_iov = &iov[1], .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = several[1]}};
  kill(pid, SIGKILL);
  CHECK(waitpid(pid, NULL, 0) == pid);
  expect_error(&a, NULL, &c[1], FI_ECONNRESET);
  OK(fi_recv(a.ep, &c[1], 1, NULL, a.other, &c[1]));
  expect_error(&a, NULL, &c[1], FI_ECONNRESET);
  for (int i = 0; i < 2; ++i) OK(fi_recvmsg(a.ep, &msg[i], FI_MULTI_RECV | FI_COMPLETION));
  CHECK(expect_error(&a, NULL, several[0], FI_ECONNRESET).flags & FI_MULTI_RECV);
  static char large[1 << 20];
  for (int i = 0; i < 3; ++i) {
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error;
    fi_addr_t who;
    if (i == 0) OK(fi_send(a.ep, large, sizeof large, NULL, a.other, large));
    if (i == 1) OK(fi_write(a.ep, large, sizeof large, NULL, a.other, 0, 1, large));
    if (i == 2) OK(fi_read(a.ep, large, sizeof large, NULL, a.other, 0, 1, large));
    CHECK(!next(&a, NULL, &e, &who, &error));
    CHECK(error.op_context == large && (error.err == FI_ECONNREFUSED || error.err == FI_ECONNRESET));
  }
  OK(fi_cancel(&a.ep->fid, several[1]));
  CHECK(expect_error(&a, NULL, several[1], FI_ECANCELED).flags & FI_MULTI_RECV);
  OK(fi_cancel(&a.ep->fid, &c[2]));
  expect_error(&a, NULL, &c[2], FI_ECANCELED);
  close_side(&a);
}

int main(int argc, char **argv) {
  if (argc > 1) return strcmp(argv[1], "reads") == 0 ? reads() : child();
  read_and_write(0, FI_PROGRESS_MANUAL);
  read_and_write(FI_MR_BASIC, FI_PROGRESS_MANUAL);
  read_and_write(0, FI_PROGRESS_AUTO);
  atomics();
  full();
  close_region(argv[0]);
  death(argv[0]);
  puts("fi_remote: well");
  return 0;
}
