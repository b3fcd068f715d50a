/* Two applications: a conjugate gradient with halo exchange, and a bucket sort. All sums are made in an order of their own, so
 * that the bits do not depend on what carries the messages; those of the conjugate gradient not on the number of ranks either. */
#include "check.h"
#include <math.h>

/* A square grid of unknowns, in rows that are shared out; a row above and one below are the neighbours'. */
static int side, first, mine;
static double *halo_rows(void) { return calloc((size_t)(mine + 2) * (size_t)side, sizeof(double)); }
static double *row(double *grid, int i) { return grid + (size_t)(i + 1) * (size_t)side; }

/* y = A x, A the Laplacian of five points. The rows within are done while the halo is on its way. */
static void one_row(double *x, double *y, int i) {
  const double *up = row(x, i - 1), *at = row(x, i), *down = row(x, i + 1);
  double *to = row(y, i);
  for (int j = 0; j < side; j++)
    to[j] = 4 * at[j] - up[j] - down[j] - (j > 0 ? at[j - 1] : 0) - (j < side - 1 ? at[j + 1] : 0);
}

static void apply(double *x, double *y) {
  int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below_it = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
  MPI_Request requests[4];
  MPI_Irecv(row(x, -1), side, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, &requests[0]);
  MPI_Irecv(row(x, mine), side, MPI_DOUBLE, below_it, 2, MPI_COMM_WORLD, &requests[1]);
  MPI_Isend(row(x, mine - 1), side, MPI_DOUBLE, below_it, 1, MPI_COMM_WORLD, &requests[2]);
  MPI_Isend(row(x, 0), side, MPI_DOUBLE, above, 2, MPI_COMM_WORLD, &requests[3]);
  for (int i = 1; i < mine - 1; i++) one_row(x, y, i);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  one_row(x, y, 0);
  if (mine > 1) one_row(x, y, mine - 1);
}

/* A sum for each row, then of all rows from the first to the last, on every rank. */
static double dot(double *x, double *y, double *sums, const int *counts, const int *places) {
  for (int i = 0; i < mine; i++) {
    double sum = 0;
    for (int j = 0; j < side; j++) sum += row(x, i)[j] * row(y, i)[j];
    sums[first + i] = sum;
  }
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, sums, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
  double sum = 0;
  for (int i = 0; i < side; i++) sum += sums[i];
  return sum;
}

void cg(int argc, char **argv) {
  side = argc > 0 ? atoi(argv[0]) : 200;
  begin("cg.%d", side);
  patience(60);
  int *counts = room((size_t)ranks * sizeof *counts), *places = room((size_t)ranks * sizeof *places), steps = 0;
  for (int i = 0; i < ranks; i++) {
    counts[i] = side / ranks + (i < side % ranks);
    places[i] = i == 0 ? 0 : places[i - 1] + counts[i - 1];
  }
  mine = counts[rank];
  first = places[rank];
  double *x = halo_rows(), *r = halo_rows(), *p = halo_rows(), *q = halo_rows(), *sums = room((size_t)side * sizeof *sums);
  double step = 1.0 / (side + 1), pi = acos(-1.0);
  /* The solution is sin(pi x) sin(pi y) + sin(3 pi x) sin(2 pi y), as far as the grid can tell. */
  for (int i = 0; i < mine; i++)
    for (int j = 0; j < side; j++) {
      double u = (first + i + 1) * step, v = (j + 1) * step;
      row(r, i)[j] = step * step * pi * pi * (2 * sin(pi * u) * sin(pi * v) + 13 * sin(3 * pi * u) * sin(2 * pi * v));
      row(p, i)[j] = row(r, i)[j] += 1e-9 * sin((first + i) * 12.9898 + j * 78.233); /* so that it takes its time */
    }
  double rr = dot(r, r, sums, counts, places), aim = rr * 1e-20;
  for (; rr > aim && steps < 4 * side; steps++) {
    apply(p, q);
    double alpha = rr / dot(p, q, sums, counts, places), before = rr;
    for (int i = 0; i < mine; i++)
      for (int j = 0; j < side; j++) row(x, i)[j] += alpha * row(p, i)[j], row(r, i)[j] -= alpha * row(q, i)[j];
    rr = dot(r, r, sums, counts, places);
    for (int i = 0; i < mine; i++)
      for (int j = 0; j < side; j++) row(p, i)[j] = row(r, i)[j] + rr / before * row(p, i)[j];
  }
  CHECK(rr <= aim, "after %d steps the residual is %g", steps, sqrt(rr));
  double worst = 0;
  for (int i = 0; i < mine; i++)
    for (int j = 0; j < side; j++) {
      double u = (first + i + 1) * step, v = (j + 1) * step;
      worst = fmax(worst, fabs(row(x, i)[j] - sin(pi * u) * sin(pi * v) - sin(3 * pi * u) * sin(2 * pi * v)));
    }
  CHECK(worst < 20 * step * step + 1e-3, "the solution is %g off", worst);
  see(row(x, 0), (size_t)mine * (size_t)side * sizeof *x);
  see(&rr, sizeof rr);
  see_number(steps);
  double norm = dot(x, x, sums, counts, places);
  if (rank == 0) printf("value cg.%d: %d steps, residual %a, norm %a\n", side, steps, rr, norm);
  free(x), free(r), free(p), free(q), free(sums), free(counts), free(places);
  end();
}

/* As NAS IS: keys in buckets, buckets to ranks so that each has about as many keys, all to all, and counted there. */
enum { KEY_BITS = 19, BUCKET_BITS = 10, BUCKETS = 1 << BUCKET_BITS, PASSES = 5 };

static int bucket_of(int key) { return key >> (KEY_BITS - BUCKET_BITS); }

/* Sorts this rank's share; returns it, its length in `*got`. */
static int *sorted(const int *keys, int count, int *got) {
  int here[BUCKETS] = {0}, all[BUCKETS], owner[BUCKETS];
  for (int i = 0; i < count; i++) here[bucket_of(keys[i])]++;
  MPI_Allreduce(here, all, BUCKETS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  long total = 0, before = 0;
  for (int b = 0; b < BUCKETS; b++) total += all[b];
  for (int b = 0; b < BUCKETS; before += all[b++]) owner[b] = total ? (int)(before * ranks / total) : 0;
  int *sends = calloc((size_t)ranks * 4, sizeof *sends), *gets = sends + ranks, *from = gets + ranks, *to = from + ranks;
  for (int b = 0; b < BUCKETS; b++) sends[owner[b]] += here[b];
  MPI_Alltoall(sends, 1, MPI_INT, gets, 1, MPI_INT, MPI_COMM_WORLD);
  for (int i = 1; i < ranks; i++) from[i] = from[i - 1] + sends[i - 1], to[i] = to[i - 1] + gets[i - 1];
  *got = to[ranks - 1] + gets[ranks - 1];
  int *grouped = room((size_t)count * sizeof *grouped), *mine_now = room((size_t)*got * sizeof *mine_now);
  int next[BUCKETS], at = 0;
  for (int b = 0; b < BUCKETS; at += here[b++]) next[b] = at;
  for (int i = 0; i < count; i++) grouped[next[bucket_of(keys[i])]++] = keys[i];
  MPI_Alltoallv(grouped, sends, from, MPI_INT, mine_now, gets, to, MPI_INT, MPI_COMM_WORLD);
  int *counts = calloc(1 << KEY_BITS, sizeof *counts);
  for (int i = 0; i < *got; i++) counts[mine_now[i]]++;
  for (int key = 0, i = 0; key < 1 << KEY_BITS; key++)
    for (int n = counts[key]; n > 0; n--) mine_now[i++] = key;
  free(counts), free(grouped), free(sends);
  return mine_now;
}

void sorting(int argc, char **argv) {
  int count = (argc > 0 ? atoi(argv[0]) : 1 << 20) / ranks;
  uint64_t state = 314159265 + (uint64_t)rank;
  int *keys = room((size_t)count * sizeof *keys);
  for (int i = 0; i < count; i++) { /* the mean of four, as IS has it */
    long sum = 0;
    for (int n = 0; n < 4; n++) sum += below(&state, 1 << KEY_BITS);
    keys[i] = (int)(sum / 4);
  }
  for (int pass = 0; pass < PASSES; pass++) {
    begin("sort.%d.%d", count * ranks, pass);
    keys[pass % count] = pass; /* each pass has others */
    keys[(pass + PASSES) % count] = (1 << KEY_BITS) - 1 - pass;
    int got, last = -1, edge = -1;
    int *share = sorted(keys, count, &got);
    long sums[2] = {count, 0}, after[2] = {got, 0}, total[4];
    for (int i = 0; i < count; i++) sums[1] += keys[i];
    for (int i = 0; i < got; i++) {
      CHECK(share[i] >= last, "key %d after %d", share[i], last);
      last = share[i];
      after[1] += last;
    }
    /* Nobody's first is below the last of those before. */
    MPI_Exscan(&last, &edge, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(rank == 0 || got == 0 || share[0] >= edge, "the first is %d, below %d", share[0], edge);
    MPI_Allreduce(sums, total, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(after, total + 2, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(total[0] == total[2] && total[1] == total[3], "%ld keys became %ld, their sum %ld %ld", total[0], total[2], total[1], total[3]);
    see(share, (size_t)got * sizeof *share);
    free(share);
    end();
  }
  free(keys);
}
