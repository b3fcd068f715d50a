/* The same points by tagged messages of MPI, two ranks with a core each. See bench/run. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };
static int me, size, window;
static char *out, *in;

static void say(void) { MPI_Send(out, size, MPI_BYTE, 1 - me, 0, MPI_COMM_WORLD); }
static void hear(void) { MPI_Recv(in, size, MPI_BYTE, 1 - me, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }

/* Half of a ping-pong. */
static double latency(long total, long skip) {
  double start = 0;
  for (long i = 0; i < total; i++) {
    if (i == skip) start = MPI_Wtime();
    if (me == 0) say();
    hear();
    if (me == 1) say();
  }
  return (MPI_Wtime() - start) / (double)(total - skip) / 2;
}

/* So many at once from rank 1 to rank 0, each answered by the next; the time of each, at rank 0. */
static double stream(long total, long skip) {
  MPI_Request slots[MOST];
  double start = 0;
  for (int i = 0; i < window; i++) slots[i] = MPI_REQUEST_NULL;
  for (long i = 0; i < total; i++) {
    MPI_Request *slot = &slots[i % window];
    if (i == skip) {
      MPI_Waitall(window, slots, MPI_STATUSES_IGNORE);
      start = MPI_Wtime();
    }
    MPI_Wait(slot, MPI_STATUS_IGNORE);
    if (me == 0) MPI_Irecv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, slot);
    else MPI_Isend(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, slot);
  }
  MPI_Waitall(window, slots, MPI_STATUSES_IGNORE);
  return (MPI_Wtime() - start) / (double)(total - skip);
}

/* As osu_bw: so many at once from rank 0 to rank 1, whose arrival is answered before the next begin. */
static double windows(long total, long skip) {
  MPI_Request slots[MOST];
  double start = 0;
  for (long i = 0; i < total; i++) {
    if (i == skip) start = MPI_Wtime();
    for (int w = 0; w < window; w++) {
      if (me == 0) MPI_Isend(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &slots[w]);
      else MPI_Irecv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &slots[w]);
    }
    MPI_Waitall(window, slots, MPI_STATUSES_IGNORE);
    int word = 0;
    if (me == 0) MPI_Recv(&word, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else MPI_Send(&word, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
  }
  return (MPI_Wtime() - start) / (double)(total - skip) / window;
}

static double measure(const char *what, long total, long skip) {
  if (strcmp(what, "latency") == 0) return latency(total, skip);
  return strcmp(what, "stream") == 0 ? stream(total, skip) : windows(total, skip);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc != 5) {
    fputs("usage: mpirun -n 2 rdma_peer_mpi latency|stream|windows BYTES WINDOW ROUNDS; prints microseconds of one\n", stderr);
    return 2;
  }
  int ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  size = atoi(argv[2]);
  window = atoi(argv[3]);
  long count = atol(argv[4]), skip = count / 10 + 4;
  if (ranks != 2 || size < 1 || window < 1 || window > MOST || count < 1) MPI_Abort(MPI_COMM_WORLD, 2);
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(me, &core);
  if (sched_setaffinity(0, sizeof core, &core) != 0) perror("pinning");
  out = malloc((size_t)size);
  in = malloc((size_t)size);
  if (!out || !in) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(out, 1, (size_t)size);
  memset(in, 2, (size_t)size);
  MPI_Barrier(MPI_COMM_WORLD);
  double each = measure(argv[1], skip + count, skip);
  if (me == 0) printf("%.4f\n", each * 1e6);
  MPI_Finalize();
  free(out);
  free(in);
  return 0;
}
