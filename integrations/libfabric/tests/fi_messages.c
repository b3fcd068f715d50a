/* What Open MPI does not use of messages: buffers for several, peek and claim, data beside the content, cancel,
 * truncation, counters, the formats of completions, waits, address vectors. */
#include <poll.h>
#include <pthread.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_UNSPEC};

static void info(void) {
  struct fi_info *hints = fi_allocinfo(), *found = NULL;
  hints->fabric_attr->prov_name = strdup("rdmat");
  hints->ep_attr->type = FI_EP_MSG;
  CHECK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found) == -FI_ENODATA);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_TAGGED | FI_MULTICAST;
  CHECK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found) == -FI_ENODATA);
  hints->caps = FI_TAGGED;
  hints->tx_attr->msg_order = FI_ORDER_SAS;
  OK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found));
  CHECK((found->caps & (FI_TAGGED | FI_SEND | FI_RECV)) == (FI_TAGGED | FI_SEND | FI_RECV));
  CHECK(!(found->caps & (FI_RMA | FI_DIRECTED_RECV | FI_SOURCE)));
  CHECK(found->domain_attr->mr_mode == 0 && found->mode == 0);
  fi_freeinfo(found);
  hints->tx_attr->msg_order = FI_ORDER_STRICT;
  CHECK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found) == -FI_ENODATA);
  hints->tx_attr->msg_order = 0;
  hints->domain_attr->mr_mode = FI_MR_BASIC;
  OK(fi_getinfo(FI_VERSION(1, 4), NULL, NULL, 0, hints, &found));
  CHECK(found->domain_attr->mr_mode == FI_MR_BASIC);
  fi_freeinfo(found);
  fi_freeinfo(hints);
}

static void sizes(enum fi_threading threading, enum fi_progress progress) {
  struct setup how = kUsual;
  how.threading = threading;
  how.progress = progress;
  struct side a, b;
  open_pair(&a, &b, how);
  static char out[3 << 20], in[3 << 20];
  static const size_t sizes[] = {0, 1, 8, 64, 65, 4096, 4097, 16384, 16385, 65536, 1 << 20, 3 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    const size_t n = sizes[i];
    pattern(out, n, (unsigned)i);
    memset(in, 0, n);
    /* The tag counts where it is not ignored, of all 64 bits. */
    OK(fi_trecv(b.ep, in, n, NULL, b.other, 0x8000000000000001 | i << 8, 0x7fff000000000000, &in));
    if (n <= a.info->tx_attr->inject_size)
      OK(fi_tinjectdata(a.ep, out, n, 0x123456789abcdef0, a.other, 0x80ff000000000001 | i << 8));
    else
      OK(fi_tsenddata(a.ep, out, n, NULL, 0x123456789abcdef0, a.other, 0x80ff000000000001 | i << 8, &out));
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error;
    fi_addr_t from;
    CHECK(next(&b, &a, &e, &from, &error));
    CHECK(e.op_context == &in && e.len == n && e.data == 0x123456789abcdef0 && from == b.other);
    CHECK(e.flags == (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA) && e.tag == (0x80ff000000000001 | i << 8));
    CHECK(has_pattern(in, n, (unsigned)i));
    if (n > a.info->tx_attr->inject_size) CHECK(expect(&a, &b, &out).flags == (FI_SEND | FI_TAGGED));
  }
  /* Pieces on both sides, another cut on each; to oneself, too. */
  char parts[300];
  struct iovec cut[3] = {{out, 100}, {out + 100, 50}, {out + 150, 150}};
  struct iovec into[2] = {{parts, 7}, {parts + 7, 293}};
  for (int self = 0; self < 2; ++self) {
    struct side *to = self ? &a : &b;
    memset(parts, 0, sizeof parts);
    OK(fi_recvv(to->ep, into, NULL, 2, FI_ADDR_UNSPEC, parts));
    OK(fi_sendv(a.ep, cut, NULL, 3, self ? a.self : a.other, cut));
    struct fi_cq_tagged_entry e, got = {0};
    struct fi_cq_err_entry error;
    fi_addr_t from;
    for (int i = 0; i < 2; ++i) {
      CHECK(next(self || i == 0 ? &a : &b, self || i == 0 ? &b : &a, &e, &from, &error));
      if (e.op_context == parts) got = e;
    }
    CHECK(got.flags == (FI_RECV | FI_MSG) && got.len == 300);
    CHECK(memcmp(parts, out, 300) == 0);
  }
  CHECK(fi_inject(a.ep, out, a.info->tx_attr->inject_size + 1, a.other) == -FI_EINVAL);
  CHECK(fi_send(a.ep, out, 1, NULL, 77, NULL) == -FI_EADDRNOTAVAIL);
  CHECK(fi_send(a.ep, out, a.info->ep_attr->max_msg_size + 1, NULL, a.other, NULL) == -FI_EMSGSIZE);
  close_pair(&a, &b);
}

static void multi_receive(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  char buf[1000], out[600];
  const size_t least = 100;
  OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
  struct iovec iov = {buf, sizeof buf};
  struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buf};
  OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
  size_t at = 0;
  for (unsigned i = 0; at <= sizeof buf - least; ++i) {
    const size_t n = 10 + 90 * i;
    pattern(out, n, i);
    OK(fi_send(a.ep, out, n, NULL, a.other, out));
    expect(&a, &b, out);
    const struct fi_cq_tagged_entry e = expect(&b, &a, buf);
    CHECK(e.len == n && e.buf == buf + at && has_pattern(e.buf, n, i));
    at += n;
    CHECK(!!(e.flags & FI_MULTI_RECV) == (sizeof buf - at < least));
  }
  /* One that does not fit ends with an error; the next still finds the buffer. */
  OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
  static char large[5000];
  OK(fi_send(a.ep, large, sizeof large, NULL, a.other, large));
  const struct fi_cq_err_entry error = expect_error(&b, &a, buf, FI_ETRUNC);
  CHECK(error.olen == sizeof large - sizeof buf && !(error.flags & FI_MULTI_RECV));
  expect(&a, &b, large);
  OK(fi_inject(a.ep, out, 5, a.other));
  CHECK(expect(&b, &a, buf).len == 5);
  OK(fi_cancel(&b.ep->fid, buf));
  CHECK(expect_error(&b, &a, buf, FI_ECANCELED).flags & FI_MULTI_RECV);
  close_pair(&a, &b);
}

/* A buffer for several that is cancelled while a message comes into it: either nothing came, or all of it did, and then the
 * buffer ends, too. */
static void cancel_multi_receive(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  enum { N = 3000000 };
  static char out[N], in[3 * N];
  struct iovec iov = {in, sizeof in};
  struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in};
  for (unsigned i = 0; i < 24; ++i) {
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error;
    fi_addr_t from;
    pattern(out, N, i);
    memset(in, 0, N);
    OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
    OK(fi_send(a.ep, out, N, NULL, a.other, out));
    for (unsigned k = 0; k < i / 2; ++k) fi_cq_read(k % 2 ? a.cq : b.cq, &e, 0);
    OK(fi_cancel(&b.ep->fid, in));
    if (next(&b, &a, &e, &from, &error)) {
      CHECK(e.op_context == in && e.len == N && has_pattern(in, N, i) && !(e.flags & FI_MULTI_RECV));
      error = expect_error(&b, &a, in, FI_ECANCELED);
    } else {
      CHECK(error.op_context == in && error.err == FI_ECANCELED);
      OK(fi_recv(b.ep, in, N, NULL, FI_ADDR_UNSPEC, out));
      CHECK(expect(&b, &a, out).len == N && has_pattern(in, N, i));
    }
    CHECK(error.flags & FI_MULTI_RECV);
    CHECK(fi_cancel(&b.ep->fid, in) == -FI_ENOENT);
    expect(&a, &b, out);
  }
  close_pair(&a, &b);
}

static void peek_and_claim(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  struct fi_context context, other;
  struct fi_msg_tagged msg = {.addr = FI_ADDR_UNSPEC, .tag = 5, .ignore = 0, .context = &context};
  OK(fi_trecvmsg(b.ep, &msg, FI_PEEK));
  expect_error(&b, &a, &context, FI_ENOMSG);
  char out[100], in[100];
  for (unsigned i = 0; i < 4; ++i) {
    pattern(out, sizeof out, i);
    OK(fi_tinjectdata(a.ep, out, 50 + i, 900 + i, a.other, 5));
  }
  struct fi_cq_tagged_entry e;
  struct fi_cq_err_entry error;
  fi_addr_t from;
  const double until = now() + PATIENCE;
  for (;;) {
    OK(fi_trecvmsg(b.ep, &msg, FI_PEEK));
    CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
    if (next(&b, &a, &e, &from, &error)) break;
    CHECK(error.err == FI_ENOMSG && now() < until);
  }
  CHECK(e.len == 50 && e.tag == 5 && e.data == 900 && from == b.other);
  OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM));
  CHECK(expect(&b, &a, &context).len == 50);
  msg.context = &other;
  for (;;) {
    OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_DISCARD));
    if (next(&b, &a, &e, &from, &error)) break;
    CHECK(error.err == FI_ENOMSG && now() < until);
  }
  CHECK(e.len == 51);
  for (;;) {
    OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM));
    if (next(&b, &a, &e, &from, &error)) break;
    CHECK(error.err == FI_ENOMSG && now() < until);
  }
  CHECK(e.len == 52);
  OK(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_DISCARD));
  expect(&b, &a, &other);
  CHECK(fi_trecvmsg(b.ep, &msg, FI_CLAIM) == -FI_EINVAL);
  /* The fourth does not overtake what was claimed, nor the other way round. */
  OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 5, 0, in));
  CHECK(expect(&b, &a, in).len == 53 && has_pattern(in, 53, 3));
  struct iovec iov = {in, sizeof in};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  msg.context = &context;
  OK(fi_trecvmsg(b.ep, &msg, FI_CLAIM));
  e = expect(&b, &a, &context);
  CHECK(e.len == 50 && e.data == 900 && has_pattern(in, 50, 0));
  close_pair(&a, &b);
}

/* A receive that is cancelled while its message comes has all of it, or the next receive has. */
static void cancel_loses_nothing(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  enum { N = 3000000 };
  static char out[N], in[N];
  for (unsigned i = 0; i < 16; ++i) {
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error;
    fi_addr_t from;
    pattern(out, N, i);
    memset(in, 0, N);
    OK(fi_trecv(b.ep, in, N, NULL, FI_ADDR_UNSPEC, 7, 0, in));
    OK(fi_tsend(a.ep, out, N, NULL, a.other, 7, out));
    for (unsigned k = 0; k < i / 2; ++k) fi_cq_read(k % 2 ? a.cq : b.cq, &e, 0);
    fi_cancel(&b.ep->fid, in);
    if (!next(&b, &a, &e, &from, &error)) {
      CHECK(error.err == FI_ECANCELED);
      for (size_t k = 0; k < N; ++k) CHECK(in[k] == 0);
      OK(fi_trecv(b.ep, in, N, NULL, FI_ADDR_UNSPEC, 7, 0, in));
      CHECK(next(&b, &a, &e, &from, &error));
    }
    CHECK(e.op_context == in && e.len == N && has_pattern(in, N, i));
    expect(&a, &b, out);
  }
  close_pair(&a, &b);
}

static void cancel_and_truncation(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  char in[16], out[40];
  pattern(out, sizeof out, 1);
  OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 1, 0, in));
  OK(fi_cancel(&b.ep->fid, in));
  expect_error(&b, &a, in, FI_ECANCELED);
  CHECK(fi_cancel(&b.ep->fid, in) == -FI_ENOENT);
  CHECK(fi_cntr_readerr(b.received) == 1);
  OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 2, 0, in));
  OK(fi_tsenddata(a.ep, out, sizeof out, NULL, 77, a.other, 2, out));
  const struct fi_cq_err_entry error = expect_error(&b, &a, in, FI_ETRUNC);
  CHECK(error.olen == sizeof out - sizeof in && error.tag == 2 && error.data == 77);
  char text[64];
  CHECK(strcmp(fi_cq_strerror(b.cq, error.prov_errno, NULL, text, sizeof text), "OUT_OF_RANGE") == 0);
  CHECK(strcmp(text, "OUT_OF_RANGE") == 0);
  expect(&a, &b, out);
  /* The next message is not harmed. */
  OK(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 2, 0, in));
  OK(fi_tinject(a.ep, out, 16, a.other, 2));
  CHECK(expect(&b, &a, in).len == 16 && has_pattern(in, 16, 1));
  close_pair(&a, &b);
}

static void selective(void) {
  struct setup how = kUsual;
  how.bind = FI_SELECTIVE_COMPLETION;
  struct side a, b;
  open_pair(&a, &b, how);
  char out[8] = "content", in[8];
  struct iovec iov = {in, sizeof in};
  struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in};
  OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
  OK(fi_recvmsg(b.ep, &msg, FI_COMPLETION));
  OK(fi_send(a.ep, out, 4, NULL, a.other, out));
  struct iovec from = {out, sizeof out};
  struct fi_msg second = {.msg_iov = &from, .iov_count = 1, .addr = a.other, .context = out, .data = 3};
  OK(fi_sendmsg(a.ep, &second, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE));
  const struct fi_cq_tagged_entry e = expect(&b, &a, in);
  CHECK(e.len == sizeof out && e.data == 3);
  expect(&a, &b, out);
  CHECK(fi_cq_read(a.cq, NULL, 0) == -FI_EAGAIN && fi_cq_read(b.cq, NULL, 0) == -FI_EAGAIN);
  CHECK(fi_cntr_read(a.sent) == 2 && fi_cntr_read(b.received) == 2);
  close_pair(&a, &b);
}

static void formats(void) {
  static const size_t sizes[] = {[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
                                 [FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
                                 [FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
                                 [FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry)};
  for (enum fi_cq_format f = FI_CQ_FORMAT_CONTEXT; f <= FI_CQ_FORMAT_TAGGED; ++f) {
    struct setup how = kUsual;
    how.format = f;
    struct side a, b;
    open_pair(&a, &b, how);
    char in[2][8];
    unsigned char got[4 * sizeof(struct fi_cq_tagged_entry)];
    memset(got, 0xee, sizeof got);
    for (int i = 0; i < 2; ++i) OK(fi_trecv(b.ep, in[i], 8, NULL, FI_ADDR_UNSPEC, 9, 0, in[i]));
    for (int i = 0; i < 2; ++i) OK(fi_tinject(a.ep, "1234567", 4, a.other, 9));
    const double until = now() + PATIENCE;
    ssize_t n = 0;
    while (n < 2 && now() < until) {
      const ssize_t more = fi_cq_read(b.cq, got + (size_t)n * sizes[f], (size_t)(4 - n));
      CHECK(more > 0 || more == -FI_EAGAIN);
      n += more > 0 ? more : 0;
      CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
    }
    CHECK(n == 2);
    for (int i = 0; i < 2; ++i) {
      struct fi_cq_tagged_entry e;
      memcpy(&e, got + (size_t)i * sizes[f], sizes[f]);
      CHECK(e.op_context == in[i]);
      if (f >= FI_CQ_FORMAT_MSG) CHECK(e.len == 4 && e.flags == (FI_RECV | FI_TAGGED));
      if (f >= FI_CQ_FORMAT_DATA) CHECK(e.buf == in[i]);
      if (f == FI_CQ_FORMAT_TAGGED) CHECK(e.tag == 9);
    }
    CHECK(got[2 * sizes[f]] == 0xee);
    close_pair(&a, &b);
  }
}

struct later {
  struct side *from;
  int signal;
};

static void *send_later(void *arg) {
  struct later *l = arg;
  usleep(200000);
  if (l->signal) {
    OK(fi_cq_signal(l->from->cq));
    return NULL;
  }
  OK(fi_tsend(l->from->ep, "late", 4, NULL, l->from->other, 3, l));
  expect(l->from, NULL, l);
  return NULL;
}

static void waits(enum fi_wait_obj wait, enum fi_progress progress) {
  struct setup how = kUsual;
  how.wait = wait;
  how.progress = progress;
  struct side a, b;
  open_pair(&a, &b, how);
  struct fi_cq_tagged_entry e;
  char in[8];
  double begun = now();
  CHECK(fi_cq_sread(b.cq, &e, 1, NULL, 100) == -FI_EAGAIN && now() - begun >= 0.09);
  pthread_t thread;
  struct later later = {&a, 0};
  OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 3, 0, in));
  OK(pthread_create(&thread, NULL, send_later, &later));
  ssize_t got;
  if (wait == FI_WAIT_FD) {
    int fd;
    OK(fi_control(&b.cq->fid, FI_GETWAIT, &fd));
    struct fid *fids[1] = {&b.cq->fid};
    const double until = now() + PATIENCE;
    do {
      got = fi_cq_read(b.cq, &e, 1);
      if (got == -FI_EAGAIN && fi_trywait(b.fabric, fids, 1) == 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, 10000);
      }
    } while (got == -FI_EAGAIN && now() < until);
  } else {
    got = fi_cq_sread(b.cq, &e, 1, NULL, -1);
  }
  CHECK(got == 1 && e.op_context == in && e.len == 4);
  pthread_join(thread, NULL);
  later = (struct later){&b, 1};
  OK(pthread_create(&thread, NULL, send_later, &later));
  begun = now();
  CHECK(fi_cq_sread(b.cq, &e, 1, NULL, 100000) == -FI_EAGAIN && now() - begun < 90);
  pthread_join(thread, NULL);
  /* A counter, and a poll set of both. */
  struct fid_poll *set;
  void *ready[4];
  OK(fi_poll_open(b.domain, NULL, &set));
  OK(fi_poll_add(set, &b.cq->fid, 0));
  OK(fi_poll_add(set, &b.received->fid, 0));
  (void)fi_poll(set, ready, 4);
  CHECK(fi_poll(set, ready, 4) == 0);
  CHECK(fi_cntr_wait(b.received, 2, 50) == -FI_ETIMEDOUT);
  OK(fi_trecv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 3, 0, in));
  later = (struct later){&a, 0};
  OK(pthread_create(&thread, NULL, send_later, &later));
  OK(fi_cntr_wait(b.received, 2, -1));
  CHECK(fi_poll(set, ready, 4) == 2);
  pthread_join(thread, NULL);
  OK(fi_poll_del(set, &b.cq->fid, 0));
  OK(fi_close(&set->fid));
  close_pair(&a, &b);
}

/* What fi_trywait says before a wait: that something has come which was not read, or a signal, and then that nothing has. */
static void try_wait(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  char in[8];
  struct fid *queue[1] = {&b.cq->fid}, *counter[1] = {&b.received->fid};
  CHECK(fi_cntr_read(b.received) == 0);
  OK(fi_trywait(b.fabric, counter, 1));
  OK(fi_recv(b.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  OK(fi_inject(a.ep, "content", 7, a.other));
  expect(&b, &a, in);
  CHECK(fi_trywait(b.fabric, counter, 1) == -FI_EAGAIN);
  CHECK(fi_trywait(b.fabric, counter, 1) == -FI_EAGAIN);
  CHECK(fi_cntr_read(b.received) == 1);
  OK(fi_trywait(b.fabric, counter, 1));
  OK(fi_cntr_adderr(b.received, 1));
  CHECK(fi_trywait(b.fabric, counter, 1) == -FI_EAGAIN);
  CHECK(fi_cntr_readerr(b.received) == 1);
  OK(fi_trywait(b.fabric, counter, 1));
  OK(fi_trywait(b.fabric, queue, 1));
  OK(fi_cq_signal(b.cq));
  CHECK(fi_trywait(b.fabric, queue, 1) == -FI_EAGAIN);
  OK(fi_trywait(b.fabric, queue, 1));
  close_pair(&a, &b);
}

static void addresses(enum fi_av_type type) {
  struct setup how = kUsual;
  how.av = type;
  struct side a, b;
  open_pair(&a, &b, how);
  char name[64], back[64], text[128];
  size_t len = address_of(&b, name, sizeof name), room = sizeof back;
  OK(fi_av_lookup(a.av, a.other, back, &room));
  CHECK(room == len && memcmp(name, back, len) == 0);
  size_t text_len = sizeof text;
  CHECK(fi_av_straddr(a.av, name, text, &text_len) == text);
  CHECK(strncmp(text, "fi_rdmat://127.0.0.1:", 21) == 0 && strlen(text) + 1 == text_len);
  text_len = 9;
  fi_av_straddr(a.av, name, text, &text_len);
  CHECK(strcmp(text, "fi_rdmat") == 0 && text_len > 9);
  room = 8;
  CHECK(fi_getname(&b.ep->fid, back, &room) == -FI_ETOOSMALL && room == len);
  /* The same again is the same; what is no address is none. */
  fi_addr_t again, bad[2];
  CHECK(fi_av_insert(a.av, name, 1, &again, 0, NULL) == 1 && again == a.other);
  char two[128] = {0};
  memcpy(two + len, name, len);
  int errors[2];
  CHECK(fi_av_insert(a.av, two, 2, bad, FI_SYNC_ERR, errors) == 1);
  CHECK(bad[0] == FI_ADDR_NOTAVAIL && errors[0] == FI_EINVAL && bad[1] == a.other && errors[1] == 0);
  CHECK(fi_av_insertsvc(a.av, "localhost", "1", &again, 0, NULL) == -FI_ENOSYS);
  char c = 0;
  for (int uses = 3; uses > 0; --uses) {
    OK(fi_inject(a.ep, &c, 1, a.other));
    OK(fi_av_remove(a.av, &a.other, 1, 0));
  }
  CHECK(fi_inject(a.ep, &c, 1, a.other) == -FI_EADDRNOTAVAIL);
  CHECK(fi_av_remove(a.av, &a.other, 1, 0) == -FI_EINVAL);
  CHECK(fi_av_insert(a.av, name, 1, &again, 0, NULL) == 1);
  OK(fi_inject(a.ep, &c, 1, again));
  for (int i = 0; i < 4; ++i) {
    OK(fi_recv(b.ep, &c, 1, NULL, b.other, &c));
    expect(&b, &a, &c);
  }
  CHECK(fi_close(&a.domain->fid) == -FI_EBUSY && fi_close(&a.cq->fid) == -FI_EBUSY);
  close_pair(&a, &b);
}

static void events(void) {
  struct side a;
  open_side(&a, kUsual);
  struct fid_eq *eq;
  struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
  OK(fi_eq_open(a.fabric, &attr, &eq, NULL));
  uint32_t event;
  char buf[16];
  CHECK(fi_eq_sread(eq, &event, buf, sizeof buf, 20, 0) == -FI_EAGAIN);
  CHECK(fi_eq_write(eq, FI_NOTIFY, "hello", 5, 0) == 5);
  CHECK(fi_eq_read(eq, &event, buf, 2, 0) == -FI_ETOOSMALL);
  CHECK(fi_eq_sread(eq, &event, buf, sizeof buf, -1, 0) == 5 && event == FI_NOTIFY && memcmp(buf, "hello", 5) == 0);
  OK(fi_close(&eq->fid));
  close_side(&a);
}

/* Many sends to a peer that takes nothing: the sender is held back, and all arrive in their order. */
static void flood(void) {
  struct side a, b;
  open_pair(&a, &b, kUsual);
  enum { kMany = 40000 };
  uint32_t sent = 0, received = 0;
  int refused = 0;
  while (sent < kMany) {
    const uint32_t content[200] = {sent};
    const ssize_t result = fi_tinject(a.ep, content, sizeof content, a.other, sent);
    if (result == 0) {
      ++sent;
      continue;
    }
    CHECK(result == -FI_EAGAIN);
    ++refused;
    CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
    for (int i = 0; i < 1000 && received < sent; ++i, ++received) {
      uint32_t in[200];
      OK(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 0, UINT64_MAX, in));
      CHECK(expect(&b, &a, in).tag == received && in[0] == received);
    }
  }
  CHECK(refused > 0);
  while (received < sent) {
    uint32_t in[200];
    OK(fi_trecv(b.ep, in, sizeof in, NULL, b.other, 0, UINT64_MAX, in));
    CHECK(expect(&b, &a, in).tag == received && in[0] == received);
    ++received;
  }
  close_pair(&a, &b);
}

int main(void) {
  info();
  sizes(FI_THREAD_SAFE, FI_PROGRESS_MANUAL);
  sizes(FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL);
  sizes(FI_THREAD_SAFE, FI_PROGRESS_AUTO);
  multi_receive();
  cancel_multi_receive();
  peek_and_claim();
  cancel_and_truncation();
  cancel_loses_nothing();
  selective();
  formats();
  waits(FI_WAIT_UNSPEC, FI_PROGRESS_MANUAL);
  waits(FI_WAIT_FD, FI_PROGRESS_MANUAL);
  waits(FI_WAIT_UNSPEC, FI_PROGRESS_AUTO);
  waits(FI_WAIT_FD, FI_PROGRESS_AUTO);
  try_wait();
  addresses(FI_AV_TABLE);
  addresses(FI_AV_MAP);
  events();
  flood();
  puts("fi_messages: well");
  return 0;
}
