/* What gloo_speed measures, by MPI: the ranks exchange in pairs, or add up. See bench/gloo. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 100000 };
static int me, size;
static float *out, *in;

/* As Gloo's: the content, and then word that it is there. */
static void exchange(int bytes) {
  MPI_Sendrecv(out, bytes, MPI_BYTE, me ^ 1, 0, in, bytes, MPI_BYTE, me ^ 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Sendrecv(out, 4, MPI_BYTE, me ^ 1, 1, in, 4, MPI_BYTE, me ^ 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static void allreduce(int bytes) {
  MPI_Allreduce(MPI_IN_PLACE, in, bytes / (int)sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The time of one, in a batch that takes at least so many seconds. */
static double measure(void (*one)(int), int bytes, double seconds) {
  for (int batch = 1;;) {
    MPI_Barrier(MPI_COMM_WORLD);
    double took = MPI_Wtime();
    for (int i = 0; i < batch; i++) one(bytes);
    took = MPI_Wtime() - took;
    int next = took >= seconds || batch >= MOST ? 0 : took < seconds / 16 ? batch * 8 : batch * 2;
    MPI_Bcast(&next, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (next == 0) return took / batch;
    batch = next;
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc < 4) {
    fputs("usage: mpirun -n RANKS rdma_peer_mpi_group exchange|allreduce SECONDS BYTES...; prints bytes,microseconds\n", stderr);
    return 2;
  }
  bool pairs = strcmp(argv[1], "exchange") == 0;
  double seconds = atof(argv[2]);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (pairs && size % 2 != 0) MPI_Abort(MPI_COMM_WORLD, 2);
  for (int i = 3; i < argc; i++) {
    int bytes = atoi(argv[i]);
    out = calloc(1, (size_t)bytes + 4);
    in = calloc(1, (size_t)bytes + 4);
    if (!out || !in || bytes < 4) MPI_Abort(MPI_COMM_WORLD, 1);
    double each = measure(pairs ? exchange : allreduce, bytes, seconds);
    if (me == 0) printf("%d,%.3f\n", bytes, each * 1e6);
    free(out);
    free(in);
  }
  MPI_Finalize();
  return 0;
}
