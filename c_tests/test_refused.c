/* System calls that are refused without which nothing works; which, RDMA_TEST_REFUSE says: environment.c. */
#include "harness.h"

/* A system call is refused (RDMA_TEST_REFUSE) without which there is no connection: it is named by the call that needs it, and nobody
 * waits until a deadline for what will not change. */
static rdma_code_t connect_to_oneself(void) {
  char address[256];
  rdma_mgr_t *a = NULL, *b = NULL;
  rdma_code_t code = mgr_try("alpha", NULL, &a);
  if (code != RDMA_OK) return code;
  snprintf(address, sizeof address, "%s:0", env.host);
  size_t len = 0;
  code = rdma_mgr_listen(a, address, address, sizeof address, &len);
  if (code != RDMA_OK) return code;
  drive(a);
  CHECK_OK(mgr_try("beta", NULL, &b));
  CHECK_OK(rdma_mgr_add_peer(b, "alpha", address));
  return rdma_mgr_connect(b, "alpha", patience(30000));
}

static void a_refused_call_is_told_at_once(void) {
  const char *refused = getenv("RDMA_TEST_REFUSE");
  char why[512];
  if (!refused) FAIL("RDMA_TEST_REFUSE says which call is refused: run it by ctest, as c.refused");
  int64_t start = lived_ms();
  rdma_code_t code = connect_to_oneself();
  rdma_last_error(why, sizeof why);
  CHECK_MSG(lived_ms() - start < patience(10000), "told after %lld ms: %s", (long long)(lived_ms() - start), why);
  CHECK_MSG(code != RDMA_OK && code != RDMA_DEADLINE_EXCEEDED, "%s: %s", rdma_code_name(code), why);
  CHECK_HAS(why, "Function not implemented");
}

static const test_case cases[] = {CASE(a_refused_call_is_told_at_once)};
TEST_MAIN(cases)
