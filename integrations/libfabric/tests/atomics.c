/* One-sided: accumulate, get_accumulate, fetch_and_op, compare_and_swap, by all ranks at once. */
#include "windows.h"

enum { COUNT = 5000, TIMES = 200 };

static void accumulate(int kind, bool lock) {
  begin("atomics.accumulate.%s.%s", WINDOW[kind], lock ? "lock" : "fence");
  struct window w = window_of(kind, COUNT * sizeof(long));
  long *mine = (long *)(void *)w.memory, *out = room(COUNT * sizeof *out);
  for (int i = 0; i < COUNT; i++) out[i] = rank + i;
  if (!lock) MPI_Win_fence(0, w.win);
  for (int to = 0; to < ranks; to++) {
    if (lock) MPI_Win_lock(MPI_LOCK_SHARED, to, 0, w.win);
    MPI_Accumulate(out, COUNT, MPI_LONG, to, w.at[to], COUNT, MPI_LONG, MPI_SUM, w.win);
    MPI_Accumulate(out, COUNT / 2, MPI_LONG, to, w.at[to], COUNT / 2, MPI_LONG, MPI_SUM, w.win);
    if (lock) MPI_Win_unlock(to, w.win);
  }
  if (lock) MPI_Barrier(MPI_COMM_WORLD), MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
  else MPI_Win_fence(0, w.win);
  for (int i = 0; i < COUNT; i++) {
    long wanted = (i < COUNT / 2 ? 2 : 1) * ((long)ranks * (ranks - 1) / 2 + (long)ranks * i);
    CHECK(mine[i] == wanted, "sum %d is %ld instead of %ld", i, mine[i], wanted);
  }
  see(mine, COUNT * sizeof *mine);
  if (lock) MPI_Win_unlock(rank, w.win);
  close_window(&w);
  free(out);
  end();
}

/* Every operator, on the right neighbour's. */
static void operators(void) {
  begin("atomics.operators");
  static const MPI_Op OPS[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_REPLACE};
  enum { OPERATORS = sizeof OPS / sizeof OPS[0], EACH = 100 };
  struct window w = window_of(CREATE, OPERATORS * EACH * sizeof(int));
  int *mine = (int *)(void *)w.memory, right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, out[EACH], got[OPERATORS][EACH];
  for (int i = 0; i < OPERATORS * EACH; i++) mine[i] = i * 5 % 17 + rank;
  for (int i = 0; i < EACH; i++) out[i] = i * 3 % 13 + rank;
  MPI_Win_fence(0, w.win);
  for (int op = 0; op < OPERATORS; op++) {
    MPI_Aint where = (MPI_Aint)((size_t)(op * EACH) * sizeof(int));
    MPI_Get_accumulate(out, EACH, MPI_INT, got[op], EACH, MPI_INT, right, where, EACH, MPI_INT, OPS[op], w.win);
  }
  MPI_Win_fence(0, w.win);
  for (int op = 0; op < OPERATORS; op++)
    for (int i = 0; i < EACH; i++) {
      int was = (op * EACH + i) * 5 % 17, a = i * 3 % 13 + left, b = was + rank, wanted = 0;
      CHECK(got[op][i] == was + right, "operator %d: %d was there, not %d", op, was + right, got[op][i]);
      switch (op) {
      case 0: wanted = a + b; break;
      case 1: wanted = a * b; break;
      case 2: wanted = a > b ? a : b; break;
      case 3: wanted = a < b ? a : b; break;
      case 4: wanted = a & b; break;
      case 5: wanted = a | b; break;
      case 6: wanted = a ^ b; break;
      case 7: wanted = a && b; break;
      case 8: wanted = a || b; break;
      case 9: wanted = !a != !b; break;
      default: wanted = a;
      }
      CHECK(mine[op * EACH + i] == wanted, "operator %d: number %d is %d instead of %d", op, i, mine[op * EACH + i], wanted);
    }
  see(mine, OPERATORS * EACH * sizeof *mine);
  close_window(&w);
  end();
}

/* A counter at rank 0 that all count up: each number is seen once, and a rank's numbers grow. */
static void counter(int kind) {
  begin("atomics.counter.%s", WINDOW[kind]);
  struct window w = window_of(kind, 2 * sizeof(long));
  long one = 1, last = -1, *seen = calloc((size_t)(TIMES * ranks), sizeof *seen), *all = calloc((size_t)(TIMES * ranks), sizeof *all);
  MPI_Win_lock_all(0, w.win);
  for (int i = 0; i < TIMES; i++) {
    long got = -1;
    MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, w.at[0], MPI_SUM, w.win);
    MPI_Win_flush(0, w.win);
    CHECK(got > last && got < TIMES * ranks, "number %ld after %ld", got, last);
    last = got;
    if (got >= 0 && got < TIMES * ranks) seen[got]++;
  }
  long now = -1;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Fetch_and_op(NULL, &now, MPI_LONG, 0, w.at[0], MPI_NO_OP, w.win);
  MPI_Win_flush(0, w.win);
  MPI_Win_unlock_all(w.win);
  CHECK(now == TIMES * ranks, "the counter is at %ld", now);
  MPI_Allreduce(seen, all, TIMES * ranks, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < TIMES * ranks; i++) CHECK(all[i] == 1, "number %d was seen %ld times", i, all[i]);
  see_number(now);
  close_window(&w);
  free(seen), free(all);
  end();
}

/* A lock of compare-and-swap at rank 0, around a number that is read and written. */
static void swap(int kind) {
  begin("swaps.%s", WINDOW[kind]);
  enum { ROUNDS = 15 };
  struct window w = window_of(kind, 2 * sizeof(long));
  long none = 0, me = rank + 1, was, value;
  MPI_Aint number = w.at[0] + (MPI_Aint)sizeof(long);
  MPI_Win_lock_all(0, w.win);
  for (int i = 0; i < ROUNDS; i++) {
    do {
      MPI_Compare_and_swap(&me, &none, &was, MPI_LONG, 0, w.at[0], w.win);
      MPI_Win_flush(0, w.win);
    } while (was != 0);
    MPI_Get(&value, 1, MPI_LONG, 0, number, 1, MPI_LONG, w.win);
    MPI_Win_flush(0, w.win);
    value += 1 + rank;
    MPI_Put(&value, 1, MPI_LONG, 0, number, 1, MPI_LONG, w.win);
    MPI_Win_flush(0, w.win);
    MPI_Compare_and_swap(&none, &me, &was, MPI_LONG, 0, w.at[0], w.win);
    MPI_Win_flush(0, w.win);
    CHECK(was == me, "rank %ld had taken the lock of %ld", was - 1, me - 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Get(&value, 1, MPI_LONG, 0, number, 1, MPI_LONG, w.win);
  MPI_Win_unlock_all(w.win);
  CHECK(value == ROUNDS * (long)ranks * (ranks + 1) / 2, "the number is %ld", value);
  see_number(value);
  close_window(&w);
  end();
}

/* With requests, and in order: two to one place from one rank happen as they were called. */
static void in_order(void) {
  begin("atomics.order");
  struct window w = window_of(ALLOCATE, (size_t)ranks * 8 * sizeof(int));
  int *mine = (int *)(void *)w.memory, right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, values[64][8], got[8];
  MPI_Aint where = (MPI_Aint)((size_t)(rank * 8) * sizeof(int));
  MPI_Request requests[64];
  MPI_Win_lock(MPI_LOCK_SHARED, right, 0, w.win);
  for (int i = 0; i < 64; i++) {
    for (int n = 0; n < 8; n++) values[i][n] = i * 10 + n + rank;
    MPI_Raccumulate(values[i], 8, MPI_INT, right, where, 8, MPI_INT, MPI_REPLACE, w.win, &requests[i]);
  }
  MPI_Waitall(64, requests, MPI_STATUSES_IGNORE);
  MPI_Rget_accumulate(values[0], 8, MPI_INT, got, 8, MPI_INT, right, where, 8, MPI_INT, MPI_SUM, w.win, &requests[0]);
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  for (int n = 0; n < 8; n++) CHECK(got[n] == 630 + n + rank, "the last one is %d", got[n]);
  MPI_Win_unlock(right, w.win);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
  for (int n = 0; n < 8; n++) CHECK(mine[left * 8 + n] == 630 + 2 * (n + left), "number %d is %d", n, mine[left * 8 + n]);
  see(mine, (size_t)ranks * 8 * sizeof *mine);
  MPI_Win_unlock(rank, w.win);
  close_window(&w);
  end();
}

void atomics(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int kind = 0; kind < 3; kind++) {
    accumulate(kind, false);
    accumulate(kind, true);
    counter(kind);
  }
  operators();
  in_order();
}

void swaps(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int kind = 0; kind < 3; kind++) swap(kind);
}
