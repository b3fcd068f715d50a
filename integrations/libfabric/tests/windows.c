/* One-sided: windows that are created, allocated, dynamic; puts and gets in each way to synchronise. */
#include "windows.h"

const char *const WINDOW[] = {"create", "allocate", "dynamic"};

struct window window_of(int kind, size_t length) {
  struct window w = {.length = length, .kind = kind};
  w.at = calloc((size_t)ranks, sizeof *w.at);
  if (kind == ALLOCATE) {
    MPI_Win_allocate((MPI_Aint)length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.memory, &w.win);
  } else {
    w.memory = room(length);
    if (kind == CREATE) {
      MPI_Win_create(w.memory, (MPI_Aint)length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
    } else {
      MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
      MPI_Win_attach(w.win, w.memory, (MPI_Aint)length);
      MPI_Aint mine;
      MPI_Get_address(w.memory, &mine);
      MPI_Allgather(&mine, 1, MPI_AINT, w.at, 1, MPI_AINT, MPI_COMM_WORLD);
    }
  }
  memset(w.memory, 0, length);
  MPI_Barrier(MPI_COMM_WORLD);
  return w;
}

void close_window(struct window *w) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (w->kind == DYNAMIC) MPI_Win_detach(w->win, w->memory);
  MPI_Win_free(&w->win);
  if (w->kind != ALLOCATE) free(w->memory);
  free(w->at);
}

/* Everybody in a ring puts into the right neighbour's, and gets from the left one's, several sizes. */
static const int LENGTHS[] = {0, 1, 8, 4097, 70000, 1 << 20};
enum { KINDS = sizeof LENGTHS / sizeof LENGTHS[0], SLOT = 1 << 20, LENGTH = KINDS * SLOT };
static uint64_t key(int from, int i, int round) { return (uint64_t)(from * 1000 + i * 10 + round); }

enum { FENCE, PSCW, LOCK, SHARED, ALL, FLUSH, REQUESTS, WAYS };
static const char *const WAY[] = {"fence", "post_start", "lock", "lock_shared", "lock_all", "flush", "requests"};

static void open_epoch(int way, MPI_Win win, int target, MPI_Group to, MPI_Group from) {
  if (way == FENCE) MPI_Win_fence(0, win);
  else if (way == PSCW) MPI_Win_post(from, 0, win), MPI_Win_start(to, 0, win);
  else if (way == LOCK) MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, win);
  else if (way == SHARED) MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
  else MPI_Win_lock_all(0, win);
}

static void close_epoch(int way, MPI_Win win, int target) {
  if (way == FENCE) MPI_Win_fence(0, win);
  else if (way == PSCW) MPI_Win_complete(win), MPI_Win_wait(win);
  else if (way == LOCK || way == SHARED) MPI_Win_unlock(target, win);
  else MPI_Win_unlock_all(win);
  MPI_Barrier(MPI_COMM_WORLD); /* a lock says nothing to its target */
}

static void puts_and_gets(int kind, int way) {
  begin("windows.%s.%s", WINDOW[kind], WAY[way]);
  struct window w = window_of(kind, LENGTH);
  int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  unsigned char *out = room(LENGTH), *in = room(LENGTH);
  MPI_Group all, to, from;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, 1, &right, &to);
  MPI_Group_incl(all, 1, &left, &from);
  for (int round = 0; round < 2; round++) {
    MPI_Request requests[KINDS];
    for (int i = 0; i < KINDS; i++) fill(out + i * SLOT, (size_t)LENGTHS[i], key(rank, i, round));
    open_epoch(way, w.win, right, to, from);
    for (int i = 0; i < KINDS; i++) {
      MPI_Aint where = w.at[right] + (MPI_Aint)i * SLOT;
      if (way == REQUESTS) MPI_Rput(out + i * SLOT, LENGTHS[i], MPI_BYTE, right, where, LENGTHS[i], MPI_BYTE, w.win, &requests[i]);
      else MPI_Put(out + i * SLOT, LENGTHS[i], MPI_BYTE, right, where, LENGTHS[i], MPI_BYTE, w.win);
      if (way == FLUSH && i % 2) MPI_Win_flush(right, w.win);
      if (way == FLUSH && i % 2 == 0) MPI_Win_flush_local(right, w.win);
    }
    if (way == REQUESTS) {
      MPI_Waitall(KINDS, requests, MPI_STATUSES_IGNORE);
      memset(out, 0x5a, LENGTH); /* it is the program's again */
      MPI_Win_flush_all(w.win);
    }
    close_epoch(way, w.win, right);
    if (way >= LOCK) MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win); /* to see what others have put */
    for (int i = 0; i < KINDS; i++) {
      CHECK(filled(w.memory + i * SLOT, (size_t)LENGTHS[i], key(left, i, round)), "put of %d", LENGTHS[i]);
      CHECK(LENGTHS[i] == SLOT || w.memory[i * SLOT + LENGTHS[i]] == 0, "behind a put of %d", LENGTHS[i]);
      see(w.memory + i * SLOT, (size_t)LENGTHS[i]);
    }
    if (way >= LOCK) MPI_Win_unlock(rank, w.win);
    MPI_Barrier(MPI_COMM_WORLD);
    /* What this rank has put there comes back. */
    memset(in, 0, LENGTH);
    open_epoch(way, w.win, right, to, from);
    for (int i = 0; i < KINDS; i++) {
      MPI_Aint where = w.at[right] + (MPI_Aint)i * SLOT;
      if (way == REQUESTS) MPI_Rget(in + i * SLOT, LENGTHS[i], MPI_BYTE, right, where, LENGTHS[i], MPI_BYTE, w.win, &requests[i]);
      else MPI_Get(in + i * SLOT, LENGTHS[i], MPI_BYTE, right, where, LENGTHS[i], MPI_BYTE, w.win);
      if (way == FLUSH) MPI_Win_flush(right, w.win), CHECK(filled(in + i * SLOT, (size_t)LENGTHS[i], key(rank, i, round)), "after flush");
    }
    if (way == REQUESTS) MPI_Waitall(KINDS, requests, MPI_STATUSES_IGNORE);
    close_epoch(way, w.win, right);
    for (int i = 0; i < KINDS; i++) CHECK(filled(in + i * SLOT, (size_t)LENGTHS[i], key(rank, i, round)), "get of %d", LENGTHS[i]);
    see(in, LENGTH);
  }
  MPI_Group_free(&all);
  MPI_Group_free(&to);
  MPI_Group_free(&from);
  close_window(&w);
  free(out), free(in);
  end();
}

/* A column of one matrix becomes a row of another, and back; many small ones; an epoch for several targets. */
static void shaped(void) {
  begin("windows.types");
  enum { SIDE = 64 };
  struct window w = window_of(ALLOCATE, SIDE * SIDE * sizeof(int));
  int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, *mine = (int *)(void *)w.memory;
  int *out = room(SIDE * SIDE * sizeof *out), *in = room(SIDE * SIDE * sizeof *in);
  for (int i = 0; i < SIDE * SIDE; i++) out[i] = rank * 10000 + i;
  MPI_Datatype column;
  MPI_Type_vector(SIDE, 1, SIDE, MPI_INT, &column);
  MPI_Type_commit(&column);
  MPI_Win_fence(0, w.win);
  for (int i = 0; i < SIDE; i++) /* row i here is column i there */
    MPI_Put(out + i * SIDE, SIDE, MPI_INT, right, (MPI_Aint)((size_t)i * sizeof(int)), 1, column, w.win);
  MPI_Win_fence(0, w.win);
  for (int i = 0; i < SIDE * SIDE; i++) CHECK(mine[i] == left * 10000 + i % SIDE * SIDE + i / SIDE, "place %d is %d", i, mine[i]);
  for (int i = 0; i < SIDE; i++)
    MPI_Get(in + i, 1, column, right, (MPI_Aint)((size_t)(i * SIDE) * sizeof(int)), SIDE, MPI_INT, w.win);
  MPI_Win_fence(0, w.win);
  for (int i = 0; i < SIDE * SIDE; i++) CHECK(in[i] == out[i], "back: place %d is %d", i, in[i]);
  see(in, SIDE * SIDE * sizeof *in);
  /* One int from each to each, a thousand times. */
  for (int i = 0; i < 1000; i++) {
    int to = i % ranks;
    MPI_Put(&out[i], 1, MPI_INT, to, (MPI_Aint)((size_t)(rank * 64 + i / ranks % 64) * sizeof(int)), 1, MPI_INT, w.win);
    if (i % (64 * ranks) == 64 * ranks - 1) MPI_Win_fence(0, w.win);
  }
  MPI_Win_fence(0, w.win);
  see(mine, (size_t)ranks * 64 * sizeof *mine);
  MPI_Type_free(&column);
  close_window(&w);
  free(out), free(in);
  end();
}

void windows(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int kind = 0; kind < 3; kind++)
    for (int way = 0; way < WAYS; way++) puts_and_gets(kind, way);
  shaped();
}
