#include "common.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(const char *what) {
  char why[512];
  rdma_last_error(why, sizeof why);
  fprintf(stderr, "\nlinear_regression: %s: %s\n", what, why);
  exit(1);
}

void must(rdma_code_t code, const char *what) {
  if (code != RDMA_OK) die(what);
}

const char *worker_name(int task) {
  static char names[MAX_WORKERS][16];
  snprintf(names[task], sizeof names[task], "worker%d", task);
  return names[task];
}

key key_of(bool from_ps, int task, const char *edge) {
  static const char ps[] = "/job:ps/replica:0/task:0/device:CPU:0";
  char worker[64];
  key k;
  rdma_parsed_key_t parts = {.struct_size = sizeof parts, .src_incarnation = 1, .frame = 0, .iter = 0};
  snprintf(worker, sizeof worker, "/job:worker/replica:0/task:%d/device:CPU:0", task);
  parts.src_device = from_ps ? ps : worker;
  parts.src_device_len = strlen(parts.src_device);
  parts.dst_device = from_ps ? worker : ps;
  parts.dst_device_len = strlen(parts.dst_device);
  parts.edge_name = edge;
  parts.edge_name_len = strlen(edge);
  must(rdma_key_build(&parts, k.text, sizeof k.text, &k.len), "key");
  return k;
}

rdma_mgr_t *manager_of(const config *c, const char *name, const char *host) {
  rdma_mgr_options_t o;
  rdma_mgr_t *mgr = NULL;
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = name;
  o.provider = c->provider;
  o.progress = RDMA_PROGRESS_MANUAL;
  must(rdma_mgr_create(&o, &mgr), "manager");
  must(rdma_mgr_listen(mgr, host, NULL, 0, NULL), "listen");
  return mgr;
}

rdma_tensor_t tensor_over(const void *data, size_t nbytes, const int64_t *one, uint32_t dtype) {
  rdma_tensor_t t;
  must(rdma_tensor_init(&t, sizeof t), "tensor");
  t.data = data;
  t.nbytes = nbytes;
  t.dims = one;
  t.ndims = 1;
  t.dtype = dtype;
  return t;
}

int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

const char *host_at(const char *hosts, int index, char buf[256]) {
  for (; index > 0 && hosts; index--) {
    hosts = strchr(hosts, ',');
    if (hosts) hosts++;
  }
  if (!hosts) return NULL;
  snprintf(buf, 256, "%.*s", (int)strcspn(hosts, ","), hosts);
  return buf;
}
