/* One rank: meets the others through a store, and checks each collective against the sums that it must give.
 *
 * usage: collectives RANK SIZE STORE [PROVIDER]; --help
 * STORE is file:DIRECTORY, redis:HOST:PORT, or tcp:HOST:PORT, which rank 0 serves. */
#include "collectives.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static group g;

static void must_at(rdma_code_t code, const char *what) {
  char why[600] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(why, sizeof why);
  fprintf(stderr, "rank %u: %s: %s: %s\n", g.rank, what, rdma_code_name(code), why);
  exit(1);
}
#define MUST(expr) must_at(expr, #expr)

static void wrong(const char *what, size_t count, size_t at, double got, double want) {
  fprintf(stderr, "rank %u: %s of %zu: number %zu is %g, not %g\n", g.rank, what, count, at, got, want);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Whole numbers, whose sums are exact in any order. */
static double number(uint32_t rank, size_t i) { return (rank + 1.0) * (double)(i % 1000 + 1); }
static double total(size_t i) { return number(0, i) * g.size * (g.size + 1) / 2; }
static void fill(double *data, size_t count) {
  for (size_t i = 0; i < count; i++) data[i] = number(g.rank, i);
}
static void check_sums(const char *what, const double *data, size_t count, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    if (data[i] != total(i)) wrong(what, count, i, data[i], total(i));
}

static void check_all(size_t count) {
  double *data = malloc((count + 1) * sizeof *data), *room = malloc((count + 1) * sizeof *room);
  double *all = malloc((count * g.size + 1) * sizeof *all), took[2];
  if (!data || !room || !all) exit(1);
  fill(data, count);
  MUST(reduce_scatter(&g, data, count, room));
  check_sums("reduce_scatter", data, count, part_begin(&g, count, g.rank), part_begin(&g, count, g.rank + 1));
  fill(data, count);
  MUST(barrier(&g));
  took[0] = now();
  MUST(allreduce_ring(&g, data, count, room));
  took[0] = now() - took[0];
  check_sums("allreduce_ring", data, count, 0, count);
  fill(data, count);
  MUST(barrier(&g));
  took[1] = now();
  MUST(allreduce_tree(&g, data, count, room));
  took[1] = now() - took[1];
  check_sums("allreduce_tree", data, count, 0, count);
  fill(data, count);
  MUST(allgather(&g, data, count * sizeof *data, all));
  for (size_t i = 0; i < count * g.size; i++)
    if (all[i] != number((uint32_t)(i / count), i % count)) wrong("allgather", count, i, all[i], number((uint32_t)(i / count), i % count));
  for (uint32_t root = 0; root < g.size; root++) {
    fill(data, count);
    MUST(broadcast(&g, data, count * sizeof *data, root));
    for (size_t i = 0; i < count; i++)
      if (data[i] != number(root, i)) wrong("broadcast", count, i, data[i], number(root, i));
  }
  if (g.rank == 0)
    printf("%8zu numbers: all right; allreduce %.3f ms by a ring, %.3f ms by a tree\n", count, took[0] * 1e3, took[1] * 1e3);
  free(data);
  free(room);
  free(all);
}

int main(int argc, char **argv) {
  const size_t counts[] = {0, 1, 2, 1001, 131072, 1000003};
  static const char usage[] = "usage: collectives RANK SIZE STORE [PROVIDER]\n"
                              "STORE is file:DIRECTORY, redis:HOST:PORT, or tcp:HOST:PORT, which rank 0 serves\n";
  if (argc == 2 && !strcmp(argv[1], "--help")) return fputs(usage, stdout), 0;
  if (argc < 4 || argc > 5) return fputs(usage, stderr), 2;
  MUST(group_join(&g, argv[3], "collectives", (uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), NULL, argc > 4 ? argv[4] : NULL));
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_all(counts[i]);
  MUST(group_leave(&g));
  return 0;
}
