/* Collectives that move data: each root, in place and not, blocking and not, counts of none, one, odd and large. */
#include "coll.h"

static const int COUNTS[] = {0, 1, 7, 1000, 50001};
enum { KINDS = sizeof COUNTS / sizeof COUNTS[0] };
static MPI_Comm comm;

/* Different counts for each rank, some of them none. */
static int uneven(int base, int of) { return base == 0 ? 0 : (of * 37 + base) % (base + 1); }

static void barrier(bool later) {
  for (int i = 0; i < 20; i++) {
    if (later) {
      MPI_Request started;
      MPI_Ibarrier(comm, &started);
      MPI_Wait(&started, MPI_STATUS_IGNORE);
    } else {
      MPI_Barrier(comm);
    }
  }
}

static void bcast(int count, bool later) {
  for (int root = 0; root < ranks; root++) {
    int *memory = ints((size_t)count);
    if (rank == root) put_items(memory, count, root, 0);
    RUN(MPI_Bcast, MPI_Ibcast, memory, count, MPI_INT, root, comm);
    want_items(memory, count, root, 0, "bcast");
    free(memory);
  }
}

static void gather(int count, bool later) {
  for (int root = 0; root < ranks; root++)
    for (int in_place = 0; in_place < 2; in_place++) {
      int *out = ints((size_t)count), *all = ints((size_t)(count * ranks));
      put_items(out, count, rank, root);
      const void *from = out;
      if (in_place && rank == root) {
        memcpy(all + rank * count, out, (size_t)count * sizeof *out);
        from = MPI_IN_PLACE;
      }
      RUN(MPI_Gather, MPI_Igather, from, count, MPI_INT, all, count, MPI_INT, root, comm);
      for (int i = 0; i < ranks && rank == root; i++) want_items(all + i * count, count, i, root, "gather");
      free(out), free(all);
    }
}

static void gatherv(int count, bool later) {
  int *counts = ints((size_t)ranks), *places = ints((size_t)ranks), total = 0;
  for (int i = ranks - 1; i >= 0; i--) { /* the last rank's come first, with gaps */
    counts[i] = uneven(count, i);
    places[i] = total;
    total += counts[i] + 3;
  }
  for (int root = 0; root < ranks; root++) {
    int *out = ints((size_t)count), *all = ints((size_t)total);
    put_items(out, counts[rank], rank, root);
    RUN(MPI_Gatherv, MPI_Igatherv, out, counts[rank], MPI_INT, all, counts, places, MPI_INT, root, comm);
    for (int i = 0; i < ranks && rank == root; i++) {
      want_items(all + places[i], counts[i], i, root, "gatherv");
      CHECK(all_are(all + places[i] + counts[i], 3 * sizeof *all, 0xff), "a gap behind %d", i);
    }
    free(out), free(all);
  }
  free(counts), free(places);
}

static void scatter(int count, bool later) {
  for (int root = 0; root < ranks; root++)
    for (int in_place = 0; in_place < 2; in_place++) {
      int *all = ints((size_t)(count * ranks)), *in = ints((size_t)count);
      for (int i = 0; i < ranks && rank == root; i++) put_items(all + i * count, count, root, i);
      void *to = in_place && rank == root ? MPI_IN_PLACE : in;
      RUN(MPI_Scatter, MPI_Iscatter, all, count, MPI_INT, to, count, MPI_INT, root, comm);
      want_items(to == in ? in : all + rank * count, count, root, rank, "scatter");
      free(all), free(in);
    }
}

static void scatterv(int count, bool later) {
  int *counts = ints((size_t)ranks), *places = ints((size_t)ranks), total = 0;
  for (int i = 0; i < ranks; i++) {
    counts[i] = uneven(count, i);
    places[i] = total;
    total += counts[i] + 1;
  }
  for (int root = 0; root < ranks; root++) {
    int *all = ints((size_t)total), *in = ints((size_t)count + 1);
    for (int i = 0; i < ranks && rank == root; i++) put_items(all + places[i], counts[i], root, i);
    RUN(MPI_Scatterv, MPI_Iscatterv, all, counts, places, MPI_INT, in, counts[rank], MPI_INT, root, comm);
    want_items(in, counts[rank], root, rank, "scatterv");
    CHECK(in[counts[rank]] == -1, "behind the end");
    free(all), free(in);
  }
  free(counts), free(places);
}

static void allgather(int count, bool later) {
  for (int in_place = 0; in_place < 2; in_place++) {
    int *out = ints((size_t)count), *all = ints((size_t)(count * ranks));
    put_items(in_place ? all + rank * count : out, count, rank, 0);
    RUN(MPI_Allgather, MPI_Iallgather, in_place ? MPI_IN_PLACE : out, count, MPI_INT, all, count, MPI_INT, comm);
    for (int i = 0; i < ranks; i++) want_items(all + i * count, count, i, 0, "allgather");
    free(out), free(all);
  }
}

static void allgatherv(int count, bool later) {
  int *counts = ints((size_t)ranks), *places = ints((size_t)ranks), total = 0;
  for (int i = 0; i < ranks; i++) {
    counts[i] = uneven(count, i);
    places[i] = total;
    total += counts[i] + 2;
  }
  for (int in_place = 0; in_place < 2; in_place++) {
    int *out = ints((size_t)count), *all = ints((size_t)total);
    put_items(in_place ? all + places[rank] : out, counts[rank], rank, 0);
    RUN(MPI_Allgatherv, MPI_Iallgatherv, in_place ? MPI_IN_PLACE : out, counts[rank], MPI_INT, all, counts, places, MPI_INT, comm);
    for (int i = 0; i < ranks; i++) {
      want_items(all + places[i], counts[i], i, 0, "allgatherv");
      CHECK(all_are(all + places[i] + counts[i], 2 * sizeof *all, 0xff), "a gap behind %d", i);
    }
    free(out), free(all);
  }
  free(counts), free(places);
}

static void alltoall(int count, bool later) {
  for (int in_place = 0; in_place < 2; in_place++) {
    int *out = ints((size_t)(count * ranks)), *in = ints((size_t)(count * ranks));
    for (int i = 0; i < ranks; i++) put_items((in_place ? in : out) + i * count, count, rank, i);
    RUN(MPI_Alltoall, MPI_Ialltoall, in_place ? MPI_IN_PLACE : out, count, MPI_INT, in, count, MPI_INT, comm);
    for (int i = 0; i < ranks; i++) want_items(in + i * count, count, i, rank, "alltoall");
    free(out), free(in);
  }
}

/* So many from one rank to another. */
static int between(int count, int from, int to) { return uneven(count, from * 5 + to * 3); }

static void alltoallv(int count, bool later) {
  int *counts[2], *places[2], total[2] = {0, 0};
  for (int way = 0; way < 2; way++) {
    counts[way] = ints((size_t)ranks);
    places[way] = ints((size_t)ranks);
    for (int i = 0; i < ranks; i++) {
      counts[way][i] = way ? between(count, i, rank) : between(count, rank, i);
      places[way][i] = total[way];
      total[way] += counts[way][i] + 1;
    }
  }
  int *out = ints((size_t)total[0]), *in = ints((size_t)total[1]);
  for (int i = 0; i < ranks; i++) put_items(out + places[0][i], counts[0][i], rank, i);
  RUN(MPI_Alltoallv, MPI_Ialltoallv, out, counts[0], places[0], MPI_INT, in, counts[1], places[1], MPI_INT, comm);
  for (int i = 0; i < ranks; i++) {
    want_items(in + places[1][i], counts[1][i], i, rank, "alltoallv");
    CHECK(in[places[1][i] + counts[1][i]] == -1, "a gap behind %d", i);
  }
  /* w: a type and a place in bytes for each; odd ranks' numbers are received with gaps. */
  MPI_Datatype *types[2], gapped;
  MPI_Type_vector(1, 1, 1, MPI_INT, &gapped);
  MPI_Datatype wide;
  MPI_Type_create_resized(gapped, 0, 2 * sizeof(int), &wide);
  MPI_Type_commit(&wide);
  int at = 0;
  for (int way = 0; way < 2; way++) {
    types[way] = room((size_t)ranks * sizeof **types);
    for (int i = 0; i < ranks; i++) {
      types[way][i] = way && i % 2 ? wide : MPI_INT;
      if (way) {
        places[1][i] = at * (int)sizeof(int);
        at += counts[1][i] * 2;
      } else {
        places[0][i] *= (int)sizeof(int);
      }
    }
  }
  int *spread = ints((size_t)at);
  RUN(MPI_Alltoallw, MPI_Ialltoallw, out, counts[0], places[0], types[0], spread, counts[1], places[1], types[1], comm);
  for (int i = 0; i < ranks; i++) {
    const int *from = spread + places[1][i] / (int)sizeof(int);
    for (int n = 0; n < counts[1][i]; n++) {
      int got = from[i % 2 ? 2 * n : n];
      CHECK(got == item(i, rank, n), "alltoallw from %d: number %d is %d", i, n, got);
    }
  }
  see(spread, (size_t)at * sizeof *spread);
  MPI_Type_free(&gapped);
  MPI_Type_free(&wide);
  for (int way = 0; way < 2; way++) free(counts[way]), free(places[way]), free(types[way]);
  free(out), free(in), free(spread);
}

static const struct {
  const char *name;
  void (*run)(int count, bool later);
} ALL[] = {{"bcast", bcast},       {"gather", gather},         {"gatherv", gatherv},   {"scatter", scatter},    {"scatterv", scatterv},
           {"allgather", allgather}, {"allgatherv", allgatherv}, {"alltoall", alltoall}, {"alltoallv_w", alltoallv}};

/* Of two groups: what one has goes to the other. */
static void between_groups(bool later) {
  if (ranks < 2) return;
  begin("collectives.inter.%s", later ? "nonblocking" : "blocking");
  MPI_Comm half, inter;
  int side = rank % 2, mine, others;
  MPI_Comm_split(comm, side, rank, &half);
  MPI_Intercomm_create(half, 0, comm, 1 - side, 4, &inter);
  MPI_Comm_rank(half, &mine);
  MPI_Comm_remote_size(inter, &others);
  enum { COUNT = 500 };
  int *in = ints((size_t)(COUNT * others)), *out = ints((size_t)(COUNT * others)), sum = 0, got = 0, one = rank + 1;
  put_items(out, COUNT, rank, 0);
  RUN(MPI_Allgather, MPI_Iallgather, out, COUNT, MPI_INT, in, COUNT, MPI_INT, inter);
  for (int i = 0; i < others; i++) want_items(in + i * COUNT, COUNT, 2 * i + 1 - side, 0, "allgather");
  for (int i = 0; i < others; i++) put_items(out + i * COUNT, COUNT, rank, i);
  RUN(MPI_Alltoall, MPI_Ialltoall, out, COUNT, MPI_INT, in, COUNT, MPI_INT, inter);
  for (int i = 0; i < others; i++) want_items(in + i * COUNT, COUNT, 2 * i + 1 - side, mine, "alltoall");
  RUN(MPI_Allreduce, MPI_Iallreduce, &one, &got, 1, MPI_INT, MPI_SUM, inter);
  for (int i = 1 - side; i < ranks; i += 2) sum += i + 1;
  CHECK(got == sum, "allreduce of the others is %d, not %d", got, sum);
  int root = side == 0 ? (mine == 0 ? MPI_ROOT : MPI_PROC_NULL) : 0;
  if (root == MPI_ROOT) put_items(in, COUNT, 99, 0);
  RUN(MPI_Bcast, MPI_Ibcast, in, COUNT, MPI_INT, root, inter);
  if (side == 1) want_items(in, COUNT, 99, 0, "bcast");
  if (later) {
    MPI_Request started;
    MPI_Ibarrier(inter, &started);
    MPI_Wait(&started, MPI_STATUS_IGNORE);
  } else {
    MPI_Barrier(inter);
  }
  free(in), free(out);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
  end();
}

void collectives(int argc, char **argv) {
  (void)argc, (void)argv;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  for (int later = 0; later < 2; later++) {
    const char *how = later ? "nonblocking" : "blocking";
    begin("collectives.barrier.%s", how);
    barrier(later);
    end();
    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++) {
      begin("collectives.%s.%s", ALL[i].name, how);
      for (int kind = 0; kind < KINDS; kind++) ALL[i].run(COUNTS[kind], later);
      end();
    }
    between_groups(later);
  }
  MPI_Comm_free(&comm);
}
