/* The least that a callback can take which wakes a thread by a condition variable, where both have one processor: a thread that polls
 * hands over and has the processor back. Without the library. Prints microseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 200000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static int given;
static _Atomic int taken;

static void *application(void *arg) {
  pthread_mutex_lock(&lock);
  for (int seen = 0; seen < ROUNDS;) {
    while (given == seen) pthread_cond_wait(&arrived, &lock);
    atomic_store(&taken, seen = given);
  }
  pthread_mutex_unlock(&lock);
  return arg;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int main(void) {
  cpu_set_t all, one;
  pthread_t thread;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return perror("sched_getaffinity"), 1;
  CPU_ZERO(&one);
  for (int i = CPU_SETSIZE - 1; i >= 0 && CPU_COUNT(&one) == 0; i--)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) return perror("sched_setaffinity"), 1;
  if (pthread_create(&thread, NULL, application, NULL) != 0) return fputs("no thread\n", stderr), 1;
  const double begun = now();
  for (int i = 1; i <= ROUNDS; i++) {
    pthread_mutex_lock(&lock);
    given = i;
    pthread_mutex_unlock(&lock);
    pthread_cond_signal(&arrived);
    while (atomic_load(&taken) != i) sched_yield();
  }
  printf("%.2f\n", (now() - begun) / ROUNDS);
  pthread_join(thread, NULL);
  return 0;
}
