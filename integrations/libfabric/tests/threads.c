/* MPI_THREAD_MULTIPLE: several threads of each rank, on communicators of their own and on one that they share. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 150, LONGEST = 100000 };
static MPI_Comm own[THREADS], shared;
static pthread_barrier_t together;

static int length(int i) { return i % 10 == 9 ? LONGEST : i % 5 == 4 ? 5000 : i * 3; }
static uint64_t key(int from, int thread, int i) { return (uint64_t)(from * 1000003 + thread * 1009 + i); }

static int left(void) { return (rank + ranks - 1) % ranks; }
static int right(void) { return (rank + 1) % ranks; }

/* To the right, from the left. */
static void ring(int thread, MPI_Comm comm, int tag) {
  unsigned char *out = room(LONGEST), *in = room(LONGEST);
  for (int i = 0; i < ROUNDS; i++) {
    MPI_Status status;
    fill(out, (size_t)length(i), key(rank, thread, i));
    if (i % 2) {
      MPI_Sendrecv(out, length(i), MPI_BYTE, right(), tag, in, LONGEST, MPI_BYTE, left(), tag, comm, &status);
    } else {
      MPI_Request requests[2];
      MPI_Status both[2];
      MPI_Irecv(in, LONGEST, MPI_BYTE, left(), tag, comm, &requests[0]);
      MPI_Isend(out, length(i), MPI_BYTE, right(), tag, comm, &requests[1]);
      MPI_Waitall(2, requests, both);
      status = both[0];
    }
    CHECK(length_of(&status) == length(i) && filled(in, (size_t)length(i), key(left(), thread, i)), "thread %d, message %d of %d bytes",
          thread, i, length_of(&status));
    see_loose(in, (size_t)length(i));
  }
  free(out), free(in);
}

static void *on_own(void *at) {
  int thread = (int)(intptr_t)at;
  ring(thread, own[thread], 1);
  return NULL;
}

static void *by_tags(void *at) {
  int thread = (int)(intptr_t)at;
  ring(thread, shared, thread);
  return NULL;
}

static void *computing(void *at) {
  int thread = (int)(intptr_t)at;
  MPI_Comm comm = own[thread];
  int *many = room(5000 * sizeof *many), *all = room((size_t)ranks * 500 * sizeof *all);
  for (int i = 0; i < 40; i++) {
    int value = rank + thread + i, sum;
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == ranks * (ranks - 1) / 2 + ranks * (thread + i), "thread %d: sum %d", thread, sum);
    if (rank == i % ranks) fill(many, 20000, key(i, thread, 7));
    MPI_Bcast(many, 5000, MPI_INT, i % ranks, comm);
    CHECK(filled(many, 20000, key(i, thread, 7)), "thread %d: bcast %d", thread, i);
    for (int n = 0; n < 500 * ranks; n++) all[n] = rank * 1000 + n / 500 * 100 + thread;
    MPI_Alltoall(MPI_IN_PLACE, 500, MPI_INT, all, 500, MPI_INT, comm);
    for (int n = 0; n < 500 * ranks; n++) CHECK(all[n] == n / 500 * 1000 + rank * 100 + thread, "thread %d: alltoall", thread);
    see_loose(all, (size_t)ranks * 500 * sizeof *all);
  }
  free(many), free(all);
  return NULL;
}

/* Each thread sends some to each rank; all of them claim what comes, from anybody. */
enum { EACH = 60 };
static atomic_int tickets;
static void *claiming(void *at) {
  int thread = (int)(intptr_t)at, total = THREADS * EACH * ranks;
  unsigned char *in = room(LONGEST), *out = room((size_t)EACH * LONGEST);
  MPI_Request *requests = room((size_t)(EACH * ranks) * sizeof *requests);
  for (int i = 0; i < EACH; i++) {
    fill(out + (size_t)i * LONGEST, (size_t)length(i), key(rank, thread, i));
    for (int to = 0; to < ranks; to++)
      MPI_Isend(out + (size_t)i * LONGEST, length(i), MPI_BYTE, to, thread * 100 + i, shared, &requests[i * ranks + to]);
  }
  while (atomic_fetch_add(&tickets, 1) < total) {
    MPI_Message message;
    MPI_Status status;
    MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, shared, &message, &status);
    int size = length_of(&status);
    MPI_Mrecv(in, size, MPI_BYTE, &message, &status);
    int i = status.MPI_TAG % 100;
    CHECK(size == length(i) && filled(in, (size_t)size, key(status.MPI_SOURCE, status.MPI_TAG / 100, i)), "claimed: tag %d, %d bytes",
          status.MPI_TAG, size);
    see_loose(in, (size_t)size);
  }
  MPI_Waitall(EACH * ranks, requests, MPI_STATUSES_IGNORE);
  free(in), free(out), free(requests);
  return NULL;
}

/* One waits in a receive for what another thread of this rank sends; and for a request that another made. */
static MPI_Request handed[2];
static int handed_value[2];
static void *waiting(void *at) {
  int thread = (int)(intptr_t)at, value = -1;
  for (int i = 0; i < 100; i++) {
    if (thread < 2) {
      MPI_Recv(&value, 1, MPI_INT, rank, 10 + thread, shared, MPI_STATUS_IGNORE);
      CHECK(value == i, "thread %d has %d instead of %d", thread, value, i);
      MPI_Send(&value, 1, MPI_INT, right(), 20 + thread, shared);
    } else {
      MPI_Send(&i, 1, MPI_INT, rank, 8 + thread, shared);
      MPI_Recv(&value, 1, MPI_INT, left(), 18 + thread, shared, MPI_STATUS_IGNORE);
      CHECK(value == i, "thread %d has %d instead of %d", thread, value, i);
      see_loose(&value, sizeof value);
    }
  }
  int half = thread % 2, said = thread;
  if (thread < 2) MPI_Irecv(&handed_value[half], 1, MPI_INT, left(), 30 + half, shared, &handed[half]);
  pthread_barrier_wait(&together);
  if (thread >= 2) MPI_Wait(&handed[half], MPI_STATUS_IGNORE), CHECK(handed_value[half] == half, "handed over: %d", handed_value[half]);
  else MPI_Send(&said, 1, MPI_INT, right(), 30 + half, shared);
  return NULL;
}

static void with_threads(const char *name, void *(*run)(void *)) {
  begin("threads.%s", name);
  pthread_t running[THREADS];
  for (int i = 1; i < THREADS; i++) pthread_create(&running[i], NULL, run, (void *)(intptr_t)i);
  run((void *)(intptr_t)0);
  for (int i = 1; i < THREADS; i++) pthread_join(running[i], NULL);
  end();
}

void threads(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &own[i]);
  MPI_Comm_dup(MPI_COMM_WORLD, &shared);
  pthread_barrier_init(&together, NULL, THREADS);
  with_threads("own", on_own);
  with_threads("tags", by_tags);
  with_threads("collectives", computing);
  with_threads("claims", claiming);
  with_threads("waits", waiting);
  pthread_barrier_destroy(&together);
  for (int i = 0; i < THREADS; i++) MPI_Comm_free(&own[i]);
  MPI_Comm_free(&shared);
}
