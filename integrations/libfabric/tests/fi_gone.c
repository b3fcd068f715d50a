/* What waits for a peer that is not there, by an application that sleeps. */
#include <poll.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_FD};

/* As the manual of fi_trywait has it: the descriptor alone ends the sleep. */
static struct fi_cq_err_entry sleep_for_error(struct side *s) {
  int fd;
  OK(fi_control(&s->cq->fid, FI_GETWAIT, &fd));
  struct fid *fids[1] = {&s->cq->fid};
  for (;;) {
    struct fi_cq_tagged_entry e;
    const ssize_t got = fi_cq_read(s->cq, &e, 1);
    if (got == -FI_EAVAIL) {
      struct fi_cq_err_entry error = {0};
      CHECK(fi_cq_readerr(s->cq, &error, 0) == 1);
      return error;
    }
    CHECK(got == -FI_EAGAIN);
    const int safe = fi_trywait(s->fabric, fids, 1);
    if (safe == -FI_EAGAIN) continue;
    OK(safe);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, 30000) == 1);
  }
}

/* Operations to the address of an endpoint that was closed, which may have been removed meanwhile. */
static void nobody(enum fi_progress progress, bool remove) {
  struct setup how = kUsual;
  how.progress = progress;
  struct side a, b;
  open_pair(&a, &b, how);
  close_side(&b);
  static char large[1 << 20];
  char in[8];
  OK(fi_send(a.ep, large, sizeof large, NULL, a.other, large));
  OK(fi_read(a.ep, large, sizeof large, NULL, a.other, 0, 1, large));
  OK(fi_write(a.ep, large, sizeof large, NULL, a.other, 0, 1, large));
  OK(fi_recv(a.ep, in, sizeof in, NULL, a.other, in));
  if (remove) OK(fi_av_remove(a.av, &a.other, 1, 0));
  const double begun = now();
  for (int i = 0; i < 4; ++i) CHECK(sleep_for_error(&a).err == FI_ECONNREFUSED);
  CHECK(now() - begun < 30);
  close_side(&a);
}

int main(void) {
  nobody(FI_PROGRESS_AUTO, false);
  nobody(FI_PROGRESS_MANUAL, false);
  nobody(FI_PROGRESS_AUTO, true);
  nobody(FI_PROGRESS_MANUAL, true);
  puts("fi_gone: well");
  return 0;
}
