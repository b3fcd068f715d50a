/* Collectives and floods of MPI with more ranks than processors: see docs/libfabric.md.
 * usage: rdma_peer_mpi_crowd SECONDS [NAME [BYTES]]
 * Writes for each what one takes, what the first took, and how often all ranks together lost their processor in one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { FLOOD = 100, LARGEST = 4096, BATCH = 64 };
static int me, ranks;
static char *in, *out;

static void barrier(int size) {
  (void)size;
  MPI_Barrier(MPI_COMM_WORLD);
}
static void alltoall(int size) { MPI_Alltoall(in, size, MPI_BYTE, out, size, MPI_BYTE, MPI_COMM_WORLD); }
static void allgather(int size) { MPI_Allgather(in, size, MPI_BYTE, out, size, MPI_BYTE, MPI_COMM_WORLD); }
static void allreduce(int size) { MPI_Allreduce(in, out, size / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }
static void hear(int from, int size) {
  MPI_Recv(out, size, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static void say(int to, int size) { MPI_Send(in, size, MPI_BYTE, to, 0, MPI_COMM_WORLD); }

/* Each rank sends to rank 0, which takes them as they come. */
static void flood(int size) {
  if (me > 0)
    for (int i = 0; i < FLOOD; i++) say(0, size);
  else
    for (int i = 0; i < FLOOD * (ranks - 1); i++) hear(MPI_ANY_SOURCE, size);
}

/* Rank 0 hears each in turn, then answers each. */
static void star(int size) {
  if (me > 0) {
    say(0, size);
    hear(0, size);
    return;
  }
  for (int i = 1; i < ranks; i++) hear(i, size);
  for (int i = 1; i < ranks; i++) say(i, size);
}

static double switches(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_nvcsw + used.ru_nivcsw);
}

static void measure(const char *name, void (*one)(int), int size, double seconds) {
  double start = MPI_Wtime();
  one(size);
  const double first = MPI_Wtime() - start;
  MPI_Barrier(MPI_COMM_WORLD);
  double lost = switches(), all = 0;
  long done = 0, batch = 1;
  int more = 1;
  start = MPI_Wtime();
  while (more) {
    for (long i = 0; i < batch; i++) one(size);
    done += batch;
    if (batch < BATCH) batch *= 2;
    more = MPI_Wtime() - start < seconds;
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  const double each = (MPI_Wtime() - start) / (double)done;
  lost = (switches() - lost) / (double)done;
  MPI_Reduce(&lost, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (me > 0) return;
  printf("%-9s %4d B %10.1f us, first %8.0f us, %7.1f switches\n", name, size, each * 1e6, first * 1e6, all);
  fflush(stdout);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*one)(int);
  } all[] = {{"barrier", barrier},     {"alltoall", alltoall}, {"allgather", allgather},
             {"allreduce", allreduce}, {"star", star},         {"flood", flood}};
  static const int sizes[] = {8, LARGEST};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const double seconds = argc > 1 ? atof(argv[1]) : 0.2;
  in = calloc((size_t)ranks, LARGEST);
  out = calloc((size_t)ranks, LARGEST);
  if (in == NULL || out == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
      if (argc > 2 && strcmp(argv[2], all[i].name) != 0) continue;
      if (argc > 3 && atoi(argv[3]) != sizes[s]) continue;
      if (all[i].one == barrier && s > 0) continue;
      measure(all[i].name, all[i].one, sizes[s], seconds);
    }
  }
  free(in);
  free(out);
  MPI_Finalize();
  return 0;
}
