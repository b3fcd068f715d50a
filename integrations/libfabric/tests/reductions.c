/* Collectives that compute: MPI's operators, the program's own, those that do not commute; and several nonblocking ones at once. */
#include "coll.h"

static const int COUNTS[] = {0, 1, 7, 1000, 50001};
enum { KINDS = sizeof COUNTS / sizeof COUNTS[0], PRIME = 32749 };

/* 2 x 2 matrices modulo a prime: their product is associative and does not commute. */
struct matrix {
  int32_t a, b, c, d;
};
static MPI_Datatype matrix_type;
static MPI_Op product, strange;

static struct matrix times(struct matrix x, struct matrix y) {
  return (struct matrix){(x.a * y.a + x.b * y.c) % PRIME, (x.a * y.b + x.b * y.d) % PRIME, (x.c * y.a + x.d * y.c) % PRIME,
                         (x.c * y.b + x.d * y.d) % PRIME};
}

static void multiply(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  struct matrix *x = in, *y = inout;
  for (int i = 0; i < *count; i++) y[i] = times(x[i], y[i]);
}

/* One that commutes: the larger, and how often. */
static void larger(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  int *x = in, *y = inout;
  for (int i = 0; i < *count; i++) y[i] = x[i] % 1000 > y[i] % 1000 ? x[i] + y[i] / 1000 * 1000 : y[i] + x[i] / 1000 * 1000;
}

static struct matrix matrix_of(int of, int i) { return (struct matrix){of + 2, i % 100 + 1, i % 7, of * 3 + 1}; }

static struct matrix *matrices(int count, int of) {
  struct matrix *made = room((size_t)count * sizeof *made);
  for (int i = 0; i < count; i++) made[i] = matrix_of(of, i);
  return made;
}

/* The product of those of ranks `from` to `to`, that excluded. */
static struct matrix whole(int from, int to, int i) {
  struct matrix product_of = {1, 0, 0, 1};
  for (int of = from; of < to; of++) product_of = times(product_of, matrix_of(of, i));
  return product_of;
}

static void want(const struct matrix *got, int count, int first, int from, int to, const char *what) {
  for (int i = 0; i < count; i++) {
    struct matrix wanted = whole(from, to, first + i);
    CHECK(memcmp(&wanted, &got[i], sizeof wanted) == 0, "%s: matrix %d of %d", what, i, count);
  }
  see(got, (size_t)count * sizeof *got);
}

/* Every reducing collective on matrices, whose order counts. */
static void ordered(int count, bool later) {
  struct matrix *got = room((size_t)(count * ranks) * sizeof *got);
  for (int in_place = 0; in_place < 2; in_place++) {
    struct matrix *mine = matrices(count * ranks, rank);
    for (int root = 0; root < ranks; root++) {
      memcpy(got, mine, (size_t)count * sizeof *got);
      RUN(MPI_Reduce, MPI_Ireduce, in_place && rank == root ? MPI_IN_PLACE : (void *)mine, got, count, matrix_type, product, root,
          MPI_COMM_WORLD);
      if (rank == root) want(got, count, 0, 0, ranks, "reduce");
    }
    memcpy(got, mine, (size_t)count * sizeof *got);
    RUN(MPI_Allreduce, MPI_Iallreduce, in_place ? MPI_IN_PLACE : (void *)mine, got, count, matrix_type, product, MPI_COMM_WORLD);
    want(got, count, 0, 0, ranks, "allreduce");
    memcpy(got, mine, (size_t)count * sizeof *got);
    RUN(MPI_Scan, MPI_Iscan, in_place ? MPI_IN_PLACE : (void *)mine, got, count, matrix_type, product, MPI_COMM_WORLD);
    want(got, count, 0, 0, rank + 1, "scan");
    memcpy(got, mine, (size_t)count * sizeof *got);
    RUN(MPI_Exscan, MPI_Iexscan, in_place ? MPI_IN_PLACE : (void *)mine, got, count, matrix_type, product, MPI_COMM_WORLD);
    if (rank > 0) want(got, count, 0, 0, rank, "exscan");
    memcpy(got, mine, (size_t)(count * ranks) * sizeof *got);
    RUN(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, in_place ? MPI_IN_PLACE : (void *)mine, got, count, matrix_type, product,
        MPI_COMM_WORLD);
    want(got, count, rank * count, 0, ranks, "reduce_scatter_block");
    int *counts = ints((size_t)ranks), first = 0;
    for (int i = 0; i < ranks; i++) {
      counts[i] = i % 3 == 1 ? 0 : count - (i % 2 && count > 0);
      if (i < rank) first += counts[i];
    }
    memcpy(got, mine, (size_t)(count * ranks) * sizeof *got);
    RUN(MPI_Reduce_scatter, MPI_Ireduce_scatter, in_place ? MPI_IN_PLACE : (void *)mine, got, counts, matrix_type, product, MPI_COMM_WORLD);
    want(got, counts[rank], first, 0, ranks, "reduce_scatter");
    free(counts), free(mine);
  }
  struct matrix *mine = matrices(count, rank);
  if (rank > 0) memcpy(got, mine, (size_t)count * sizeof *got);
  if (rank > 0) MPI_Reduce_local(got, mine, count, matrix_type, product); /* a square */
  see(mine, (size_t)count * sizeof *mine);
  free(mine), free(got);
}

/* MPI's operators on integers, and on floating point, whose last bits tell the order of the sums. */
static void operators(bool later) {
  static const MPI_Op OPS[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
  enum { COUNT = 3001 };
  long *mine = room(COUNT * sizeof *mine), *got = room(COUNT * sizeof *got);
  double *real = room(COUNT * sizeof *real), *sum = room(COUNT * sizeof *sum);
  for (size_t op = 0; op < sizeof OPS / sizeof OPS[0]; op++) {
    for (int i = 0; i < COUNT; i++) mine[i] = (rank * 31 + i * 7) % 11 - (op < 4 ? 5 : 3);
    RUN(MPI_Allreduce, MPI_Iallreduce, mine, got, COUNT, MPI_LONG, OPS[op], MPI_COMM_WORLD);
    for (int i = 0; i < COUNT && op < 3; i++) {
      long wanted = mine[i], total = 0;
      for (int of = 0; of < ranks; of++) {
        long his = (of * 31 + i * 7) % 11 - 5;
        total += his;
        if (op == 0 ? his > wanted : his < wanted) wanted = his;
      }
      CHECK(got[i] == (op == 2 ? total : wanted), "operator %zu: number %d is %ld", op, i, got[i]);
    }
    see(got, COUNT * sizeof *got);
  }
  for (int i = 0; i < COUNT; i++) real[i] = 1.0 / (rank * 13 + i + 1);
  RUN(MPI_Allreduce, MPI_Iallreduce, real, sum, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < COUNT; i++) {
    double wanted = 0;
    for (int of = 0; of < ranks; of++) wanted += 1.0 / (of * 13 + i + 1);
    CHECK(sum[i] - wanted < 1e-12 && wanted - sum[i] < 1e-12, "sum %d is %g", i, sum[i]);
  }
  see(sum, COUNT * sizeof *sum);
  struct place {
    double value;
    int of;
  } at[10], best[10];
  for (int max = 0; max < 2; max++) {
    memset(at, 0, sizeof at);
    for (int i = 0; i < 10; i++) at[i] = (struct place){(rank + i) % ranks / 2, rank}; /* several have the same */
    RUN(MPI_Allreduce, MPI_Iallreduce, at, best, 10, MPI_DOUBLE_INT, max ? MPI_MAXLOC : MPI_MINLOC, MPI_COMM_WORLD);
    for (int i = 0; i < 10; i++) {
      int wanted = -1;
      double value = 0;
      for (int of = 0; of < ranks; of++) {
        double his = (of + i) % ranks / 2;
        if (wanted < 0 || (max ? his > value : his < value)) wanted = of, value = his;
      }
      CHECK(best[i].of == wanted && best[i].value == value, "place %d: %d", i, best[i].of);
      see_number(best[i].of);
    }
  }
  int own = (rank * 7 % 5) + 1000, most;
  RUN(MPI_Allreduce, MPI_Iallreduce, &own, &most, 1, MPI_INT, strange, MPI_COMM_WORLD);
  CHECK(most / 1000 == ranks, "the program's operator saw %d of %d ranks", most / 1000, ranks);
  see_number(most);
  free(mine), free(got), free(real), free(sum);
}

void reductions(int argc, char **argv) {
  (void)argc, (void)argv;
  MPI_Type_contiguous(4, MPI_INT32_T, &matrix_type);
  MPI_Type_commit(&matrix_type);
  MPI_Op_create(multiply, 0, &product);
  MPI_Op_create(larger, 1, &strange);
  for (int later = 0; later < 2; later++) {
    const char *how = later ? "nonblocking" : "blocking";
    for (int kind = 0; kind < KINDS; kind++) {
      begin("reductions.ordered.%d.%s", COUNTS[kind], how);
      ordered(kind == KINDS - 1 ? COUNTS[kind] / 4 : COUNTS[kind], later);
      end();
    }
    begin("reductions.operators.%s", how);
    operators(later);
    end();
  }
  MPI_Op_free(&product);
  MPI_Op_free(&strange);
  MPI_Type_free(&matrix_type);
}

/* Several at once on one communicator, ended in another order, with messages between them. */
static void at_once(void) {
  begin("nonblocking.at_once");
  enum { ROUNDS = 12, COUNT = 3000 };
  MPI_Request requests[ROUNDS * 4];
  int *memory[ROUNDS * 4], used = 0;
  for (int r = 0; r < ROUNDS; r++) {
    int *one = memory[used] = ints(COUNT);
    if (rank == r % ranks) put_items(one, COUNT, r, 1);
    MPI_Ibcast(one, COUNT, MPI_INT, r % ranks, MPI_COMM_WORLD, &requests[used++]);
    int *two = memory[used] = ints(COUNT);
    for (int i = 0; i < COUNT; i++) two[i] = rank + r + i;
    MPI_Iallreduce(MPI_IN_PLACE, two, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[used++]);
    int *three = memory[used] = ints((size_t)(2 * ranks));
    three[2 * rank] = three[2 * rank + 1] = rank * 100 + r;
    MPI_Iallgather(MPI_IN_PLACE, 2, MPI_INT, three, 2, MPI_INT, MPI_COMM_WORLD, &requests[used++]);
    memory[used] = ints(1);
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[used++]);
    int said = rank + r, got = -1;
    MPI_Sendrecv(&said, 1, MPI_INT, (rank + 1) % ranks, r, &got, 1, MPI_INT, (rank + ranks - 1) % ranks, r, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(got == (rank + ranks - 1) % ranks + r, "a message between them: %d", got);
  }
  for (int left = used; left > 0; left--) {
    int index;
    MPI_Waitany(used, requests, &index, MPI_STATUS_IGNORE);
    CHECK(index >= 0 && index < used, "waitany: %d", index);
  }
  for (int r = 0; r < ROUNDS; r++) {
    want_items(memory[4 * r], COUNT, r, 1, "bcast");
    for (int i = 0; i < COUNT; i++)
      CHECK(memory[4 * r + 1][i] == ranks * (ranks - 1) / 2 + ranks * (r + i), "sum %d of round %d", i, r);
    for (int i = 0; i < 2 * ranks; i++) CHECK(memory[4 * r + 2][i] == i / 2 * 100 + r, "allgather %d of round %d", i, r);
    see(memory[4 * r + 1], COUNT * sizeof(int));
  }
  while (used > 0) free(memory[--used]);
  end();
}

/* On two communicators, begun in different orders by different ranks. */
static void crossed(void) {
  begin("nonblocking.crossed");
  MPI_Comm comms[2];
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
  for (int round = 0; round < 50; round++) {
    int in[2] = {rank + round, rank * 2}, out[2];
    MPI_Request requests[2];
    for (int n = 0; n < 2; n++) {
      int c = (n + rank) % 2;
      MPI_Iallreduce(&in[c], &out[c], 1, MPI_INT, c ? MPI_MAX : MPI_SUM, comms[c], &requests[c]);
    }
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    CHECK(out[0] == ranks * (ranks - 1) / 2 + ranks * round && out[1] == 2 * (ranks - 1), "round %d: %d, %d", round, out[0], out[1]);
    see(out, sizeof out);
  }
  MPI_Comm_free(&comms[0]);
  MPI_Comm_free(&comms[1]);
  end();
}

void nonblocking(int argc, char **argv) {
  (void)argc, (void)argv;
  at_once();
  crossed();
}
