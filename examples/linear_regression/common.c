#include "common.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

static double gaussian(void) {
  return sqrt(-2 * log(1 - drand48())) * cos(6.283185307179586 * drand48());
}

void gradients(float weight, float bias, float grads[3]) {
  double x = gaussian();
  double y = 2 * x + gaussian() * 0.33 + 10;
  double error = (double)weight * x + (double)bias - y;
  grads[0] = (float)(2 * error * x);
  grads[1] = (float)(2 * error);
  grads[2] = (float)(error * error);
}

progress progress_begin(void) {
  int64_t now = now_us();
  return (progress){now, now, isatty(1)};
}

void show(progress *p, const config *c, int64_t step, const float values[3], bool last) {
  int64_t now = now_us(), pause = p->tty ? 100000 : 1000000;
  if (!last && now - p->shown_us < pause) return;
  p->shown_us = now;
  double seconds = (double)(now - p->started_us) / 1e6, rate = (double)step / seconds;
  int64_t left = c->steps - step; /* below zero: a worker's last gradients came after the end */
  int done = left > 0 ? (int)(20 * step / c->steps) : 20;
  printf("%s[%.*s%.*s] step %lld of %lld  weight %.4f  bias %.4f  loss %.4f  %.0f steps/s  %.0f s left %s",
         p->tty ? "\r" : "", done, "####################", 20 - done, "....................", (long long)step,
         (long long)c->steps, values[0], values[1], values[2], rate, (double)(left > 0 ? left : 0) / rate,
         p->tty && !last ? "  " : "\n");
  fflush(stdout);
}

int verdict(const config *c, const char *how, const char *provider, float weight, float bias) {
  double weight_error = fabs((double)weight - 2), bias_error = fabs((double)bias - 10);
  bool good = weight_error <= c->tolerance && bias_error <= c->tolerance;
  printf("%s training over %s: weight %.4f (2 within %.2f), bias %.4f (10 within %.2f): %s\n", how, provider, weight,
         c->tolerance, bias, c->tolerance, good ? "reached" : "NOT REACHED");
  return good ? 0 : 1;
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
