/* A project of somebody else: sends a tensor to itself. */
#include <rdma_transport.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  rdma_mgr_options_t options;
  rdma_mgr_t *mgr = NULL;
  rdma_tensor_t in, out;
  rdma_request_t request = 0;
  char text[] = "forty-two bytes, or so, from here to there";
  char why[256];
  rdma_mgr_options_init(&options, sizeof options);
  rdma_tensor_init(&in, sizeof in);
  rdma_tensor_init(&out, sizeof out);
  options.name = "consumer";
  in.data = text;
  in.nbytes = sizeof text;
  if (rdma_mgr_create(&options, &mgr) != RDMA_OK || rdma_send(mgr, "k", 1, 0, &in, NULL, NULL, NULL) != RDMA_OK ||
      rdma_recv(mgr, NULL, "k", 1, 0, NULL, &out, &request) != RDMA_OK || out.nbytes != sizeof text ||
      memcmp(out.data, text, sizeof text) != 0) {
    rdma_last_error(why, sizeof why);
    printf("consumer FAILED: %s\n", why);
    return 1;
  }
  rdma_request_release(mgr, request);
  rdma_mgr_destroy(mgr);
  printf("consumer: rdma-transport %s works\n", rdma_version());
  return 0;
}
