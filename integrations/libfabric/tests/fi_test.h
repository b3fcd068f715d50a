/* Two endpoints of the provider in one process, and checks. */
#ifndef FI_TEST_H
#define FI_TEST_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                       \
  do {                                                                    \
    if (!(what)) {                                                        \
      fprintf(stderr, "%s:%d: %s: failed\n", __FILE__, __LINE__, #what);  \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

#define OK(call)                                                                                       \
  do {                                                                                                 \
    const long result_ = (long)(call);                                                                 \
    if (result_ != 0) {                                                                                \
      fprintf(stderr, "%s:%d: %s: %ld (%s)\n", __FILE__, __LINE__, #call, result_, fi_strerror((int)-result_)); \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

/* How long anything may take, on a machine that does much else. */
#ifndef PATIENCE
#define PATIENCE 120.0
#endif

struct side {
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_av *av;
  struct fid_cq *cq;
  struct fid_cntr *sent, *received;
  struct fid_ep *ep;
  fi_addr_t self, other;
};

struct setup {
  uint64_t caps;
  enum fi_cq_format format;
  enum fi_wait_obj wait;
  enum fi_av_type av;
  enum fi_progress progress;
  enum fi_threading threading;
  int mr_mode;
  uint64_t bind; /* FI_SELECTIVE_COMPLETION */
};

static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* All but its fi_enable. */
static inline void prepare_side(struct side *s, struct setup how) {
  memset(s, 0, sizeof *s);
  struct fi_info *hints = fi_allocinfo();
  CHECK(hints != NULL);
  hints->fabric_attr->prov_name = strdup("rdmat");
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = how.caps;
  hints->domain_attr->av_type = how.av;
  hints->domain_attr->data_progress = hints->domain_attr->control_progress = how.progress;
  hints->domain_attr->threading = how.threading;
  hints->domain_attr->mr_mode = how.mr_mode;
  OK(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &s->info));
  fi_freeinfo(hints);
  OK(fi_fabric(s->info->fabric_attr, &s->fabric, NULL));
  OK(fi_domain(s->fabric, s->info, &s->domain, NULL));
  struct fi_av_attr av = {.type = how.av};
  OK(fi_av_open(s->domain, &av, &s->av, NULL));
  struct fi_cq_attr cq = {.format = how.format, .wait_obj = how.wait};
  OK(fi_cq_open(s->domain, &cq, &s->cq, NULL));
  struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  OK(fi_cntr_open(s->domain, &cntr, &s->sent, NULL));
  OK(fi_cntr_open(s->domain, &cntr, &s->received, NULL));
  OK(fi_endpoint(s->domain, s->info, &s->ep, NULL));
  OK(fi_ep_bind(s->ep, &s->av->fid, 0));
  OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV | how.bind));
  OK(fi_ep_bind(s->ep, &s->sent->fid, FI_SEND));
  OK(fi_ep_bind(s->ep, &s->received->fid, FI_RECV));
}

static inline void open_side(struct side *s, struct setup how) {
  prepare_side(s, how);
  OK(fi_enable(s->ep));
}

static inline void close_side(struct side *s) {
  OK(fi_close(&s->ep->fid));
  OK(fi_close(&s->sent->fid));
  OK(fi_close(&s->received->fid));
  OK(fi_close(&s->cq->fid));
  OK(fi_close(&s->av->fid));
  OK(fi_close(&s->domain->fid));
  OK(fi_close(&s->fabric->fid));
  fi_freeinfo(s->info);
}

static inline size_t address_of(struct side *s, void *out, size_t room) {
  size_t len = room;
  OK(fi_getname(&s->ep->fid, out, &len));
  return len;
}

static inline void open_pair(struct side *a, struct side *b, struct setup how) {
  open_side(a, how);
  open_side(b, how);
  char names[2][64];
  const size_t len = address_of(a, names[0], sizeof names[0]);
  CHECK(len <= FI_NAME_MAX && address_of(b, names[1], sizeof names[1]) == len);
  CHECK(fi_av_insert(a->av, names[0], 1, &a->self, 0, NULL) == 1);
  CHECK(fi_av_insert(a->av, names[1], 1, &a->other, 0, NULL) == 1);
  CHECK(fi_av_insert(b->av, names[1], 1, &b->self, 0, NULL) == 1);
  CHECK(fi_av_insert(b->av, names[0], 1, &b->other, 0, NULL) == 1);
}

static inline void close_pair(struct side *a, struct side *b) {
  close_side(a);
  close_side(b);
}

/* The next completion of `s`, while `t` (may be NULL) is driven, too. True: it is in *entry; false: an error in *error. */
static inline bool next(struct side *s, struct side *t, struct fi_cq_tagged_entry *entry, fi_addr_t *from,
                        struct fi_cq_err_entry *error) {
  const double until = now() + PATIENCE;
  for (;;) {
    const ssize_t got = fi_cq_readfrom(s->cq, entry, 1, from);
    if (got == 1) return true;
    if (got == -FI_EAVAIL) {
      memset(error, 0, sizeof *error);
      CHECK(fi_cq_readerr(s->cq, error, 0) == 1);
      return false;
    }
    CHECK(got == -FI_EAGAIN);
    /* Asking for nothing drives it. */
    if (t != NULL) CHECK(fi_cq_read(t->cq, NULL, 0) <= 0);
    CHECK(now() < until);
  }
}

/* A completion that is no error, of this context. */
#define expect(s, t, context) expect_at(__LINE__, s, t, context)
#define expect_error(s, t, context, err) expect_error_at(__LINE__, s, t, context, err)
static inline struct fi_cq_tagged_entry expect_at(int line, struct side *s, struct side *t, void *context) {
  struct fi_cq_tagged_entry entry;
  struct fi_cq_err_entry error;
  fi_addr_t from;
  if (!next(s, t, &entry, &from, &error)) {
    fprintf(stderr, "line %d: error %d (%s) of %p\n", line, error.err, fi_strerror(error.err), error.op_context);
    exit(1);
  }
  if (entry.op_context != context) {
    fprintf(stderr, "line %d: completion of %p, expected %p\n", line, entry.op_context, context);
    exit(1);
  }
  return entry;
}

static inline struct fi_cq_err_entry expect_error_at(int line, struct side *s, struct side *t, void *context,
                                                     int err) {
  struct fi_cq_tagged_entry entry;
  struct fi_cq_err_entry error;
  fi_addr_t from;
  CHECK(!next(s, t, &entry, &from, &error));
  if (error.op_context != context || error.err != err) {
    fprintf(stderr, "line %d: error %d (%s) of %p, expected %d of %p\n", line, error.err, fi_strerror(error.err),
            error.op_context, err, context);
    exit(1);
  }
  return error;
}

static inline void pattern(void *to, size_t len, unsigned seed) {
  for (size_t i = 0; i < len; ++i) ((unsigned char *)to)[i] = (unsigned char)(seed + i * 131 + (i >> 8));
}

static inline bool has_pattern(const void *at, size_t len, unsigned seed) {
  for (size_t i = 0; i < len; ++i) {
    if (((const unsigned char *)at)[i] != (unsigned char)(seed + i * 131 + (i >> 8))) return false;
  }
  return true;
}

#endif
