/* y = weight * x + bias, trained by any number of workers: with a parameter server, or among themselves.
 *
 * With a parameter server the tensors travel by TensorFlow's names. Per worker and round:
 *   ps -> worker   weight, bias, global_step     (dead tensors end the training)
 *   worker -> ps   the gradients of weight and bias, and the loss
 * A round of a worker is one step of the library: round * workers + task.
 *
 * Without one (--allreduce) each worker has weight and bias of its own. The workers meet through a store, and in each step
 * sum their gradients by the collectives of ../collectives, so that all take the same step. */
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <rdma_transport.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MAX_WORKERS 64
#define KEY_MAX 512

typedef struct config {
  const char *job_name;      /* "ps", "worker"; NULL: launch all of them here */
  int task_index;
  bool allreduce;            /* without parameter server */
  const char *store;         /* through which the workers then meet */
  const char *ps_hosts;      /* host:port */
  const char *worker_hosts;  /* host:port,host:port... */
  int workers;
  bool issync;
  double learning_rate;
  int64_t steps;             /* of all workers together */
  double tolerance;
  const char *provider;
} config;

typedef struct key {
  char text[KEY_MAX];
  size_t len;
} key;

void die(const char *what);                          /* with the library's last error */
void must(rdma_code_t code, const char *what);
const char *worker_name(int task);                   /* static buffer per task */
key key_of(bool from_ps, int task, const char *edge);
rdma_mgr_t *manager_of(const config *c, const char *name, const char *host);
rdma_tensor_t tensor_over(const void *data, size_t nbytes, const int64_t *one, uint32_t dtype);
int64_t now_us(void);
void gradients(float weight, float bias, float grads[3]); /* of one random point: weight's, bias's, and the loss */

typedef struct progress {
  int64_t started_us, shown_us;
  bool tty;
} progress;
progress progress_begin(void);
void show(progress *p, const config *c, int64_t step, const float values[3], bool last); /* weight, bias, loss */
int verdict(const config *c, const char *how, const char *provider, float weight, float bias);
const char *host_at(const char *hosts, int index, char buf[256]);

int run_ps(const config *c);
int run_worker(const config *c);
int run_allreduce(const config *c);

#endif
