#include <rdma_transport.h>
#include <stdio.h>
#include <stdlib.h>

static void must(rdma_code_t code) {
  char why[256];
  if (code == RDMA_OK) return;
  rdma_last_error(why, sizeof why);
  fprintf(stderr, "%s: %s\n", rdma_code_name(code), why);
  exit(1);
}

int main(int argc, char **argv) {
  int sender = argc < 2;
  float weights[4] = {1, 2, 3, 4};
  rdma_mgr_options_t o;
  rdma_mgr_t *mgr;
  rdma_tensor_t t;
  rdma_request_t request;
  must(rdma_mgr_options_init(&o, sizeof o));
  must(rdma_tensor_init(&t, sizeof t));
  o.name = sender ? "ps" : "worker";
  if (sender) o.listen = "127.0.0.1:7000";
  must(rdma_mgr_create(&o, &mgr));
  if (sender) {
    t.data = weights, t.nbytes = sizeof weights;
    must(rdma_send(mgr, "weights", 7, 0, &t, NULL, NULL, NULL));
    getchar(); /* the content is borrowed until it has been taken */
  } else {
    must(rdma_mgr_add_peer(mgr, "ps", argv[1]));
    must(rdma_recv(mgr, "ps", "weights", 7, 0, NULL, &t, &request));
    printf("%llu bytes, the last is %g\n", (unsigned long long)t.nbytes, ((const float *)t.data)[3]);
    must(rdma_request_release(mgr, request));
  }
  must(rdma_mgr_destroy(mgr));
  return 0;
}
