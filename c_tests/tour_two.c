/* Two ends of a tour: this process, and a child. */
#include "tour.h"
#include <errno.h>
#include <sys/wait.h>

int64_t tour_deadline_ms = 20000;
const char *tour_child_limit = "";
static void with_deadline(rdma_mgr_options_t *o) { o->timeout_ms = tour_deadline_ms; }

/* What the child has said after this; NULL: it has ended, however. */
const char *tour_word(proc *p, const char *after) {
  for (;;) {
    const char *found = strstr(p->buffer, after);
    if (found && strchr(found, '\n')) return found + strlen(after);
    ssize_t n = TEMP_FAILURE_RETRY(read(p->out, p->buffer + p->have, sizeof p->buffer - p->have - 1));
    if (n <= 0) return NULL;
    p->have += (size_t)n;
    p->buffer[p->have] = 0;
  }
}

/* Has the child end; its exit status. */
int tour_finish(proc *p) {
  int status = 0;
  (void)!TEMP_FAILURE_RETRY(write(p->in, "quit\n", 5));
  CHECK(TEMP_FAILURE_RETRY(waitpid(p->pid, &status, 0)) == p->pid);
  close(p->in);
  close(p->out);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

rdma_code_t tour_together(tour_ends *e, int64_t child_ms, int child_rounds) {
  char mine[256], theirs[256], ms[24], rounds[24];
  memset(e, 0, sizeof *e);
  e->t = (tourist){.name = "alpha", .other = "beta", .rank = 0, .timeout_ms = tour_deadline_ms};
  snprintf(ms, sizeof ms, "%lld", (long long)child_ms);
  snprintf(rounds, sizeof rounds, "%d", child_rounds);
  e->t.at = "rdma_mgr_create";
  rdma_code_t code = mgr_try("alpha", with_deadline, &e->t.mgr);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  snprintf(mine, sizeof mine, "%s:0", env.host);
  size_t len = 0;
  e->t.at = "rdma_mgr_listen";
  code = rdma_mgr_listen(e->t.mgr, mine, mine, sizeof mine, &len);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  char listen[256];
  snprintf(listen, sizeof listen, "%s:0", peer_host());
  e->child = proc_start("tour", (const char *const[]){"beta", listen, "alpha", mine, ms, rounds, tour_child_limit, NULL});
  const char *said = tour_word(e->child, "addr ");
  if (!said) return snprintf(e->t.why, sizeof e->t.why, "the child ended"), RDMA_UNAVAILABLE;
  snprintf(theirs, sizeof theirs, "%.*s", (int)strcspn(said, "\n"), said);
  e->t.at = "rdma_mgr_add_peer";
  code = rdma_mgr_add_peer(e->t.mgr, "beta", theirs);
  if (code != RDMA_OK) return rdma_last_error(e->t.why, sizeof e->t.why), code;
  return tour_begin(&e->t);
}

void tour_apart(tour_ends *e) {
  mgr_end(e->t.mgr);
  tour_end(&e->t);
}
