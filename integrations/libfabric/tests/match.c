/* Which message meets which receive: wildcards, order, probes, cancel, and receives that are too short. */
#include "check.h"

enum { EACH = 1500 };

struct word {
  int32_t from, to, number, tag;
  uint64_t noise;
};

static struct word word_of(int from, int to, int number) {
  struct word made = {from, to, number, number * 7 % 5, (uint64_t)from * 1000003 + (uint64_t)number};
  return made;
}

static int storm_length(int number) { return number % 100 == 99 ? 20000 : (int)sizeof(struct word) + number % 40; }

/* Everybody sends to everybody (or to rank 0), who receives from anybody, by any tag: of one sender the order holds. */
static void storm(bool all) {
  begin(all ? "match.storm.all" : "match.storm.one");
  int receivers = all ? ranks : 1, sends = 0, expected = rank < receivers ? (ranks - 1) * EACH : 0;
  MPI_Request *requests = room((size_t)(ranks * EACH) * sizeof *requests);
  unsigned char **out = room((size_t)(ranks * EACH) * sizeof *out);
  int *next = calloc((size_t)ranks, sizeof *next);
  for (int number = 0; number < EACH; number++)
    for (int to = 0; to < receivers; to++) {
      if (to == rank) continue;
      struct word made = word_of(rank, to, number);
      out[sends] = room(20000);
      memset(out[sends], number & 255, (size_t)storm_length(number));
      memcpy(out[sends], &made, sizeof made);
      MPI_Isend(out[sends], storm_length(number), MPI_BYTE, to, made.tag, MPI_COMM_WORLD, &requests[sends]);
      sends++;
    }
  unsigned char *in = room(20000);
  for (int i = 0; i < expected; i++) {
    MPI_Status status;
    struct word got;
    MPI_Recv(in, 20000, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    memcpy(&got, in, sizeof got);
    int from = status.MPI_SOURCE;
    struct word wanted = word_of(from, rank, next[from]++);
    CHECK(memcmp(&got, &wanted, sizeof got) == 0, "from %d came number %d instead of %d", from, got.number, wanted.number);
    CHECK(status.MPI_TAG == wanted.tag, "tag %d instead of %d", status.MPI_TAG, wanted.tag);
    CHECK(length_of(&status) == storm_length(wanted.number), "length %d instead of %d", length_of(&status), storm_length(wanted.number));
    size_t rest = (size_t)length_of(&status) - sizeof got;
    CHECK(all_are(in + sizeof got, rest, (unsigned char)(got.number & 255)), "content of number %d", got.number);
    see_loose(&got, sizeof got);
  }
  MPI_Waitall(sends, requests, MPI_STATUSES_IGNORE);
  while (sends > 0) free(out[--sends]);
  free(out), free(in), free(next), free(requests);
  end();
}

/* Receives by tag take from the middle of what waits, those without a tag what is oldest. */
static void out_of_order(void) {
  begin("match.out_of_order");
  enum { COUNT = 200 };
  int value[COUNT];
  MPI_Request requests[COUNT];
  if (rank == 0) {
    for (int to = 1; to < ranks; to++) {
      for (int i = 0; i < COUNT; i++) {
        value[i] = to * 1000 + i;
        MPI_Isend(&value[i], 1, MPI_INT, to, i, MPI_COMM_WORLD, &requests[i]);
      }
      tell(to);
      MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
    }
  } else {
    hear(0);
    MPI_Status status;
    for (int i = COUNT - 1; i >= 0; i -= 2) { /* the odd ones, the last first */
      MPI_Recv(&value[0], 1, MPI_INT, i % 3 ? 0 : MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &status);
      CHECK(value[0] == rank * 1000 + i, "tag %d: %d", i, value[0]);
      see(value, sizeof value[0]);
    }
    for (int i = 0; i < COUNT; i += 2) {
      MPI_Recv(&value[0], 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
      CHECK(value[0] == rank * 1000 + i && status.MPI_TAG == i, "%d of tag %d instead of %d", value[0], status.MPI_TAG, i);
      see(value, sizeof value[0]);
    }
  }
  end();
}

/* Two receives that a message fits: the one that was posted first gets it. Messages of every protocol, short behind long. */
static void posted_order(void) {
  begin("match.posted_order");
  enum { COUNT = 60, LONGEST = 300000 };
  static const int length[] = {8, 5000, 100000, 12, 300000, 9};
  unsigned char *memory[COUNT];
  MPI_Request requests[COUNT];
  MPI_Status statuses[COUNT];
  bool sends = rank == 0 && ranks > 1;
  for (int i = 0; i < COUNT && rank < 2; i++) {
    memory[i] = room(LONGEST);
    if (sends) {
      fill(memory[i], (size_t)length[i % 6], (uint64_t)i);
      MPI_Isend(memory[i], length[i % 6], MPI_BYTE, 1, 3, MPI_COMM_WORLD, &requests[i]);
    } else if (rank == 1) {
      MPI_Irecv(memory[i], LONGEST, MPI_BYTE, i % 2 ? 0 : MPI_ANY_SOURCE, i % 3 ? 3 : MPI_ANY_TAG, MPI_COMM_WORLD, &requests[i]);
    }
  }
  if (ranks > 1 && rank < 2) MPI_Waitall(COUNT, requests, statuses);
  for (int i = 0; i < COUNT && rank < 2; i++) {
    if (rank == 1) {
      CHECK(length_of(&statuses[i]) == length[i % 6] && filled(memory[i], (size_t)length[i % 6], (uint64_t)i),
            "receive %d has another message, of %d bytes", i, length_of(&statuses[i]));
      see(memory[i], (size_t)length[i % 6]);
    }
    free(memory[i]);
  }
  end();
}

static void probes(void) {
  begin("match.probe");
  static const int length[] = {0, 10, 4097, 100000};
  unsigned char *memory = room(100000);
  MPI_Status status;
  int there = 1, left = rank ? (rank - 1 + ranks) % ranks : ranks - 1, right = (rank + 1) % ranks;
  MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &there, &status);
  CHECK(!there, "a message that nobody sent");
  for (int i = 0; i < 4; i++)
    for (int kind = 0; kind < 2; kind++) {
      MPI_Request request;
      unsigned char *out = room(100000);
      fill(out, (size_t)length[i], (uint64_t)(rank * 10 + i));
      MPI_Isend(out, length[i], MPI_BYTE, right, 20 + i, MPI_COMM_WORLD, &request);
      if (kind == 0) MPI_Probe(i % 2 ? left : MPI_ANY_SOURCE, i % 2 ? MPI_ANY_TAG : 20 + i, MPI_COMM_WORLD, &status);
      else
        for (there = 0; !there;) MPI_Iprobe(left, 20 + i, MPI_COMM_WORLD, &there, &status);
      CHECK(status.MPI_SOURCE == left && status.MPI_TAG == 20 + i && length_of(&status) == length[i],
            "probe says source %d tag %d length %d", status.MPI_SOURCE, status.MPI_TAG, length_of(&status));
      MPI_Recv(memory, length_of(&status), MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
      CHECK(filled(memory, (size_t)length[i], (uint64_t)(left * 10 + i)), "other content than sent, %d bytes", length[i]);
      see(memory, (size_t)length[i]);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      free(out);
    }
  free(memory);
  end();
}

/* A message that was claimed by a probe is nobody else's; what is received meanwhile is the next one. */
static void claims(void) {
  begin("match.claim");
  static const int length[] = {6, 4500, 150000};
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  unsigned char *out[2], *in = room(150000);
  out[0] = room(150000);
  out[1] = room(150000);
  for (int i = 0; i < 3; i++)
    for (int kind = 0; kind < 4; kind++) {
      MPI_Request requests[2], late;
      MPI_Message message;
      MPI_Status status;
      for (int n = 0; n < 2; n++) {
        fill(out[n], (size_t)length[i], (uint64_t)(rank * 2 + n));
        MPI_Isend(out[n], length[i], MPI_BYTE, right, 5, MPI_COMM_WORLD, &requests[n]);
      }
      int there = 0;
      if (kind % 2 == 0) MPI_Mprobe(left, 5, MPI_COMM_WORLD, &message, &status);
      else
        while (!there) MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &message, &status);
      CHECK(length_of(&status) == length[i] && status.MPI_SOURCE == left, "claimed %d bytes of %d", length_of(&status), status.MPI_SOURCE);
      MPI_Recv(in, length[i], MPI_BYTE, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      CHECK(filled(in, (size_t)length[i], (uint64_t)(left * 2 + 1)), "the receive has the claimed message, of %d bytes", length[i]);
      see(in, (size_t)length[i]);
      memset(in, 0, (size_t)length[i]);
      if (kind / 2 == 0) {
        MPI_Mrecv(in, length[i], MPI_BYTE, &message, &status);
      } else {
        MPI_Imrecv(in, length[i], MPI_BYTE, &message, &late);
        MPI_Wait(&late, &status);
      }
      CHECK(message == MPI_MESSAGE_NULL, "the claim is still there");
      CHECK(length_of(&status) == length[i] && filled(in, (size_t)length[i], (uint64_t)(left * 2)), "other content than claimed");
      see(in, (size_t)length[i]);
      MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
  MPI_Message none;
  MPI_Status status;
  MPI_Mprobe(MPI_PROC_NULL, 5, MPI_COMM_WORLD, &none, &status);
  CHECK(none == MPI_MESSAGE_NO_PROC, "claimed a message of nobody");
  MPI_Mrecv(in, 1, MPI_BYTE, &none, &status);
  CHECK(length_of(&status) == 0, "nobody sent something");
  free(out[0]), free(out[1]), free(in);
  end();
}

/* A receive that is cancelled takes no message; one that has its message ends with it. */
static void cancel(void) {
  begin("match.cancel");
  enum { COUNT = 50 };
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, value[COUNT], flag;
  MPI_Request requests[COUNT], send;
  MPI_Status statuses[COUNT], status;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < COUNT; i++) {
      value[i] = -1;
      MPI_Irecv(&value[i], 1, MPI_INT, i % 4 ? left : MPI_ANY_SOURCE, i % 5 ? 100 + i : 100, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = COUNT - 1; i >= 0; i--)
      if (i % 3) MPI_Cancel(&requests[i]);
    for (int i = 0; i < COUNT; i++) {
      if (i % 3 == 0) continue;
      MPI_Wait(&requests[i], &statuses[i]);
      MPI_Test_cancelled(&statuses[i], &flag);
      CHECK(flag, "receive %d was not cancelled", i);
    }
    /* What is left of them, in the order in which they were posted. */
    MPI_Barrier(MPI_COMM_WORLD);
    int sent = 0, values[COUNT];
    MPI_Request sends[COUNT];
    for (int i = 0; i < COUNT; i += 3) {
      values[sent] = rank * 100000 + round * 1000 + i;
      MPI_Isend(&values[sent], 1, MPI_INT, right, i % 5 ? 100 + i : 100, MPI_COMM_WORLD, &sends[sent]);
      sent++;
    }
    MPI_Waitall(sent, sends, MPI_STATUSES_IGNORE);
    for (int i = 0; i < COUNT; i += 3) {
      MPI_Wait(&requests[i], &status);
      CHECK(value[i] == left * 100000 + round * 1000 + i, "receive %d has %d", i, value[i]);
    }
    see(value, sizeof value);
    /* One that has arrived: cancelling it changes nothing, or it was cancelled and the message is there for another. */
    int one = rank + round, got = -1;
    MPI_Irecv(&got, 1, MPI_INT, left, 9, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&one, 1, MPI_INT, right, 9, MPI_COMM_WORLD, &send);
    if (round % 2) MPI_Barrier(MPI_COMM_WORLD);
    MPI_Cancel(&requests[0]);
    MPI_Wait(&requests[0], &status);
    MPI_Test_cancelled(&status, &flag);
    if (flag) MPI_Recv(&got, 1, MPI_INT, left, 9, MPI_COMM_WORLD, &status);
    CHECK(got == left + round, "got %d instead of %d", got, left + round);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
  }
  end();
}

/* A few receives from anybody, each started again when it has ended: everybody asks everybody, itself too, and waits for answers. */
static void served(void) {
  begin("match.served");
  enum { POOL = 4, ROOM = 8192, ASKS = 300 };
  unsigned char *in = room(POOL * ROOM), *answer = room(ROOM), *ask = room(ROOM);
  MPI_Request pool[POOL], waits[2];
  int served_now = 0, asked = 0, index, done;
  MPI_Status status;
  for (int i = 0; i < POOL; i++) MPI_Recv_init(in + i * ROOM, ROOM, MPI_BYTE, MPI_ANY_SOURCE, 40, MPI_COMM_WORLD, &pool[i]);
  MPI_Startall(POOL, pool);
  bool waiting = false;
  while (served_now < ASKS * ranks || asked < ASKS * ranks || waiting) {
    if (!waiting && asked < ASKS * ranks) { /* the length says who asks how often */
      int to = (rank + asked) % ranks, size = 16 + asked % 7 * (asked % 50 == 0 ? 1000 : 8);
      memset(ask, (rank * 50 + asked) & 255, (size_t)size);
      MPI_Irecv(answer, ROOM, MPI_BYTE, to, 41, MPI_COMM_WORLD, &waits[0]);
      MPI_Isend(ask, size, MPI_BYTE, to, 40, MPI_COMM_WORLD, &waits[1]);
      waiting = true;
    }
    if (waiting) {
      MPI_Status both[2];
      MPI_Testall(2, waits, &done, both);
      if (done) {
        int size = 16 + asked % 7 * (asked % 50 == 0 ? 1000 : 8);
        CHECK(length_of(&both[0]) == size && all_are(answer, (size_t)size, (unsigned char)(rank * 50 + asked + 1)), "answer %d", asked);
        see(answer, (size_t)size);
        asked++;
        waiting = false;
      }
    }
    MPI_Testany(POOL, pool, &index, &done, &status);
    if (!done || index == MPI_UNDEFINED) continue;
    int size = length_of(&status);
    for (int i = 0; i < size; i++) in[index * ROOM + i]++;
    MPI_Send(in + index * ROOM, size, MPI_BYTE, status.MPI_SOURCE, 41, MPI_COMM_WORLD);
    MPI_Start(&pool[index]);
    served_now++;
  }
  for (int i = 0; i < POOL; i++) {
    MPI_Cancel(&pool[i]);
    MPI_Wait(&pool[i], &status);
    MPI_Request_free(&pool[i]);
  }
  free(in), free(answer), free(ask);
  end();
}

/* A message that is longer than its receive: an error, nothing written behind, and the next one is right. */
static void truncation(void) {
  begin("match.truncation");
  static const int length[] = {2, 100, 5000, 70000, 2000000}, bound[] = {0, 1, 99, 4000, 65000};
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  unsigned char *out = room(2000000), *in = room(2000000);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int i = 0; i < 5; i++)
    for (int late = 0; late < 2; late++) {
      MPI_Request requests[3];
      MPI_Status statuses[2];
      fill(out, (size_t)length[i], (uint64_t)(rank + i));
      memset(in, 0x33, 2000000);
      unsigned char *next = in + 1000000;
      if (late) {
        MPI_Isend(out, length[i], MPI_BYTE, right, 1, MPI_COMM_WORLD, &requests[2]);
        tell(right);
        hear(left);
      }
      MPI_Irecv(in, bound[i], MPI_BYTE, left, 1, MPI_COMM_WORLD, &requests[0]);
      MPI_Irecv(next, 50, MPI_BYTE, left, 2, MPI_COMM_WORLD, &requests[1]);
      if (!late) MPI_Isend(out, length[i], MPI_BYTE, right, 1, MPI_COMM_WORLD, &requests[2]);
      MPI_Send(out, 50 < length[i] ? 50 : length[i], MPI_BYTE, right, 2, MPI_COMM_WORLD);
      int code = MPI_Waitall(2, requests, statuses);
      CHECK(class_of(code) == MPI_ERR_IN_STATUS, "class %d instead of MPI_ERR_IN_STATUS", class_of(code));
      CHECK(class_of(statuses[0].MPI_ERROR) == MPI_ERR_TRUNCATE, "%d into %d: class %d instead of MPI_ERR_TRUNCATE", length[i],
            bound[i], class_of(statuses[0].MPI_ERROR));
      CHECK(statuses[0].MPI_SOURCE == left && statuses[0].MPI_TAG == 1, "source %d tag %d", statuses[0].MPI_SOURCE, statuses[0].MPI_TAG);
      if (class_of(statuses[1].MPI_ERROR) == MPI_ERR_PENDING) MPI_Wait(&requests[1], &statuses[1]), statuses[1].MPI_ERROR = MPI_SUCCESS;
      CHECK(statuses[1].MPI_ERROR == MPI_SUCCESS && filled(next, (size_t)length_of(&statuses[1]), (uint64_t)(left + i)), "the next one");
      /* ob1 does write there, where a message is not sent at once. */
      if (length[i] < 1000 || getenv("MPI_TESTS_STRICT"))
        CHECK(all_are(in + bound[i], 1000000 - (size_t)bound[i], 0x33), "%d into %d%s: bytes behind it were written", length[i], bound[i],
              late ? ", unexpected" : "");
      see(next, 50);
      MPI_Wait(&requests[2], MPI_STATUS_IGNORE);
      /* and by a receive that blocks */
      if (rank % 2 == 0) MPI_Send(out, length[i], MPI_BYTE, right, 3, MPI_COMM_WORLD);
      if (rank % 2 == 1 || (ranks % 2 == 1 && rank == 0)) {
        code = MPI_Recv(in, bound[i], MPI_BYTE, left, 3, MPI_COMM_WORLD, &statuses[0]);
        CHECK(class_of(code) == MPI_ERR_TRUNCATE, "blocking: class %d instead of MPI_ERR_TRUNCATE", class_of(code));
      }
    }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  free(out), free(in);
  end();
}

void match(int argc, char **argv) {
  (void)argc, (void)argv;
  storm(false);
  storm(true);
  out_of_order();
  posted_order();
  probes();
  claims();
  cancel();
  served();
  truncation();
}
