/* Messages that nobody expects, more than any queue was made for; a rank that does not look for a while; ranks that stop or die. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static int length_at(int i) { return i % 1000 == 999 ? 3000 : 8 + i % 57; }

/* Rank 0 sends while its receiver does not look; then all are there, in order. */
static void in_order(int count) {
  begin("flood.in_order");
  unsigned char memory[3000];
  if (rank == 0) {
    for (int to = 1; to < ranks; to++) tell(to);
    for (int i = 0; i < count; i++)
      for (int to = 1; to < ranks; to++) {
        memset(memory, i & 255, sizeof memory);
        memcpy(memory, &i, sizeof i);
        MPI_Send(memory, length_at(i), MPI_BYTE, to, i % 7, MPI_COMM_WORLD);
        progress++;
      }
  } else {
    hear(0);
    usleep(300000);
    for (int i = 0; i < count; i++) {
      MPI_Status status;
      int number;
      MPI_Recv(memory, sizeof memory, MPI_BYTE, i % 2 ? 0 : MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
      memcpy(&number, memory, sizeof number);
      CHECK(number == i && status.MPI_TAG == i % 7 && length_of(&status) == length_at(i), "number %d, %d bytes, instead of %d", number,
            length_of(&status), i);
      see(memory, (size_t)length_of(&status));
      progress++;
    }
  }
  end();
}

/* What is received first was sent last: all the others lie at the receiver meanwhile. */
static void last_first(int count) {
  begin("flood.last_first");
  int *values = room((size_t)count * sizeof *values);
  if (rank == 0 && ranks > 1) {
    MPI_Request *requests = room((size_t)count * sizeof *requests);
    for (int i = 0; i < count; i++) {
      values[i] = i * 3;
      MPI_Isend(&values[i], 1, MPI_INT, 1, i < count - 1 ? 1 : 2, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    free(requests);
  } else if (rank == 1) {
    int last = -1;
    MPI_Recv(&last, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(last == (count - 1) * 3, "the last is %d", last);
    for (int i = 0; i < count - 1; i++) {
      MPI_Recv(&values[i], 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      CHECK(values[i] == i * 3, "%d instead of %d", values[i], i * 3);
      progress++;
    }
    see(values, (size_t)(count - 1) * sizeof *values);
  }
  free(values);
  end();
}

/* Many receives at once, whose messages come in another order. */
static void receives(int count) {
  begin("flood.receives");
  int *values = room((size_t)count * sizeof *values);
  MPI_Request *requests = room((size_t)count * sizeof *requests);
  if (rank == 0 && ranks > 1) {
    hear(1);
    for (int i = 0; i < count; i++) {
      int tag = count - 1 - i, value = tag * 5;
      MPI_Send(&value, 1, MPI_INT, 1, tag, MPI_COMM_WORLD);
      progress++;
    }
  } else if (rank == 1) {
    for (int i = 0; i < count; i++) MPI_Irecv(&values[i], 1, MPI_INT, 0, i, MPI_COMM_WORLD, &requests[i]);
    tell(0);
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) CHECK(values[i] == i * 5, "receive %d has %d", i, values[i]);
    see(values, (size_t)count * sizeof *values);
  }
  free(values), free(requests);
  end();
}

/* Long messages that nobody receives for a while. */
static void long_ones(void) {
  begin("flood.long");
  enum { COUNT = 64, LENGTH = 1 << 20 };
  unsigned char *memory = room((size_t)COUNT * LENGTH);
  MPI_Request requests[COUNT];
  if (rank == 0 && ranks > 1) {
    for (int i = 0; i < COUNT; i++) {
      fill(memory + (size_t)i * LENGTH, LENGTH, (uint64_t)i);
      MPI_Isend(memory + (size_t)i * LENGTH, LENGTH, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
    }
    tell(1);
    MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
  } else if (rank == 1) {
    hear(0);
    usleep(100000);
    for (int i = COUNT - 1; i >= 0; i--) {
      MPI_Recv(memory, LENGTH, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      CHECK(filled(memory, LENGTH, (uint64_t)i), "message %d", i);
      see(memory, LENGTH);
    }
  }
  free(memory);
  end();
}

void flood(int argc, char **argv) {
  int count = argc > 0 ? atoi(argv[0]) : 100000;
  in_order(count);
  last_first(count / 4);
  receives(count / 20);
  long_ones();
}

/* Rank 1 goes while the others wait for it, or while its message of so many bytes is on its way. */
void killed(int argc, char **argv) {
  int size = argc > 0 ? atoi(argv[0]) : 0;
  begin("killed.%d", size);
  unsigned char *memory = room((size_t)size + 1);
  MPI_Request request;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) {
    if (size > 0) MPI_Isend(memory, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &request);
    raise(SIGKILL);
  }
  MPI_Recv(memory, 1 + (rank == 0 ? size : 0), MPI_BYTE, 1, rank == 0 && size > 0 ? 1 : 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == 0) MPI_Recv(memory, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  CHECK(false, "a message from a rank that is gone");
  end();
}

/* Rank 1 is stopped for three seconds, with messages of all kinds on their way to and from it. */
void stopped(int argc, char **argv) {
  (void)argc, (void)argv;
  begin("stopped");
  enum { COUNT = 40, LONGEST = 2000000 };
  static const int length[] = {0, 64, 4097, 100000, LONGEST};
  unsigned char *out[COUNT], *in[COUNT];
  MPI_Request requests[2 * COUNT];
  int victim = (int)getpid();
  MPI_Bcast(&victim, 1, MPI_INT, 1, MPI_COMM_WORLD);
  int partner = rank == 0 ? 1 : rank == 1 ? 0 : MPI_PROC_NULL;
  for (int i = 0; i < COUNT; i++) {
    out[i] = room(LONGEST);
    in[i] = room(LONGEST);
    fill(out[i], (size_t)length[i % 5], (uint64_t)(rank * 100 + i));
  }
  for (int round = 0; round < 2; round++) {
    if (rank == 0 && round == 0) kill(victim, SIGSTOP);
    for (int i = 0; i < COUNT; i++) MPI_Isend(out[i], length[i % 5], MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[COUNT + i]);
    for (int i = 0; i < COUNT; i++) MPI_Irecv(in[i], LONGEST, MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[i]);
    if (rank == 0) {
      if (round == 1) kill(victim, SIGSTOP); /* in the middle of them */
      double until = MPI_Wtime() + 3;
      int done = 0;
      while (MPI_Wtime() < until) {
        MPI_Testall(2 * COUNT, requests, &done, MPI_STATUSES_IGNORE);
        usleep(1000);
      }
      kill(victim, SIGCONT);
    }
    MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < COUNT && partner >= 0; i++) {
      CHECK(filled(in[i], (size_t)length[i % 5], (uint64_t)(partner * 100 + i)), "message %d", i);
      see(in[i], (size_t)length[i % 5]);
      memset(in[i], 0, LONGEST);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  for (int i = 0; i < COUNT; i++) {
    free(out[i]);
    free(in[i]);
  }
  end();
}
