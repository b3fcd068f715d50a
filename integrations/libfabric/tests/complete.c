/* sendrecv, and the calls that wait for or test one, any, some or all of several requests. */
#include "check.h"

enum { COUNT = 24, LENGTH = 20000 };
static unsigned char *in[COUNT], *out[COUNT];
static MPI_Request requests[COUNT], sends[COUNT];

static int length(int i) { return i % 4 == 3 ? LENGTH : i * 13; }
static uint64_t key(int from, int i) { return (uint64_t)(from * 1000 + i); }

static void arrived(int i, int from, const MPI_Status *status) {
  CHECK(status->MPI_SOURCE == from && status->MPI_TAG == i && length_of(status) == length(i), "request %d: source %d tag %d length %d", i,
        status->MPI_SOURCE, status->MPI_TAG, length_of(status));
  CHECK(filled(in[i], (size_t)length(i), key(from, i)), "request %d has other content", i);
  see_loose(in[i], (size_t)length(i));
}

enum { WAITANY, WAITSOME, WAITALL, WAIT, TESTANY, TESTSOME, TESTALL, TEST, STATUS, WAYS };
static const char *const WAY[] = {"waitany", "waitsome", "waitall", "wait", "testany", "testsome", "testall", "test", "get_status"};

/* How many were done by one call; which, and their statuses. */
static int some_done(int way, int indices[], MPI_Status statuses[]) {
  int done = 0, flag = 0;
  switch (way) {
  case WAITANY:
    MPI_Waitany(COUNT, requests, indices, statuses);
    return 1;
  case TESTANY:
    MPI_Testany(COUNT, requests, indices, &flag, statuses);
    return flag;
  case WAITSOME: MPI_Waitsome(COUNT, requests, &done, indices, statuses); return done;
  case TESTSOME: MPI_Testsome(COUNT, requests, &done, indices, statuses); return done;
  case WAITALL: MPI_Waitall(COUNT, requests, statuses); break;
  case TESTALL:
    MPI_Testall(COUNT, requests, &flag, statuses);
    if (!flag) return 0;
    break;
  default:
    for (int i = 0; i < COUNT; i++) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      if (way == STATUS) {
        MPI_Request_get_status(requests[i], &flag, statuses);
        CHECK(requests[i] != MPI_REQUEST_NULL, "get_status took the request away");
        if (flag) MPI_Wait(&requests[i], statuses);
      } else if (way == TEST) {
        MPI_Test(&requests[i], &flag, statuses);
      } else {
        MPI_Wait(&requests[i], statuses), flag = 1;
      }
      if (flag) return indices[0] = i, 1;
    }
    return 0;
  }
  for (int i = 0; i < COUNT; i++) indices[i] = i;
  return COUNT;
}

static void by(int way) {
  begin("complete.%s", WAY[way]);
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, indices[COUNT];
  MPI_Status statuses[COUNT];
  for (int round = 0; round < 5; round++) {
    bool was[COUNT] = {false};
    for (int i = 0; i < COUNT; i++) {
      memset(in[i], 0, LENGTH);
      MPI_Irecv(in[i], LENGTH, MPI_BYTE, left, i, MPI_COMM_WORLD, &requests[i]);
    }
    for (int n = 0; n < COUNT; n++) {
      int i = (n * 7 + round) % COUNT; /* in another order than the receives */
      fill(out[i], (size_t)length(i), key(rank, i));
      MPI_Isend(out[i], length(i), MPI_BYTE, right, i, MPI_COMM_WORLD, &sends[i]);
    }
    for (int done = 0; done < COUNT;) {
      int now = some_done(way, indices, statuses);
      CHECK(now >= 0 && now <= COUNT - done, "%d done of %d that are left", now, COUNT - done);
      if (now < 0 || now > COUNT - done) break;
      for (int n = 0; n < now; n++) {
        int i = indices[n];
        CHECK(i >= 0 && i < COUNT && !was[i] && requests[i] == MPI_REQUEST_NULL, "request %d is done again", i);
        if (i < 0 || i >= COUNT) continue;
        was[i] = true;
        arrived(i, left, &statuses[n]);
      }
      done += now;
    }
    MPI_Waitall(COUNT, sends, MPI_STATUSES_IGNORE);
  }
  end();
}

/* Of requests that are none. */
static void nothing(void) {
  begin("complete.nothing");
  int index = 0, flag = 0, done = 0, indices[2];
  MPI_Request none[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  MPI_Status statuses[2];
  MPI_Waitany(2, none, &index, statuses);
  CHECK(index == MPI_UNDEFINED, "waitany: %d", index);
  MPI_Testany(2, none, &index, &flag, statuses);
  CHECK(flag && index == MPI_UNDEFINED, "testany: %d, %d", flag, index);
  MPI_Waitsome(2, none, &done, indices, statuses);
  CHECK(done == MPI_UNDEFINED, "waitsome: %d", done);
  MPI_Testall(2, none, &flag, statuses);
  CHECK(flag && length_of(&statuses[1]) == 0, "testall: %d", flag);
  end();
}

static void sendrecv(void) {
  begin("complete.sendrecv");
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  static const int sizes[] = {0, 1, 4096, 8193, 65536, 1000000};
  unsigned char *from = room(1000000), *to = room(1000000);
  for (int i = 0; i < 6; i++) {
    MPI_Status status;
    fill(from, (size_t)sizes[i], key(rank, i));
    MPI_Sendrecv(from, sizes[i], MPI_BYTE, right, i, to, 1000000, MPI_BYTE, left, i, MPI_COMM_WORLD, &status);
    CHECK(length_of(&status) == sizes[i] && filled(to, (size_t)sizes[i], key(left, i)), "sendrecv of %d", sizes[i]);
    see(to, (size_t)sizes[i]);
    MPI_Sendrecv_replace(from, sizes[i], MPI_BYTE, left, i, MPI_ANY_SOURCE, i, MPI_COMM_WORLD, &status);
    CHECK(status.MPI_SOURCE == right && filled(from, (size_t)sizes[i], key(right, i)), "sendrecv_replace of %d", sizes[i]);
    see(from, (size_t)sizes[i]);
  }
  free(from), free(to);
  end();
}

/* Sends whose request is given up before they are done arrive all the same. */
static void given_up(void) {
  begin("complete.request_free");
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  static unsigned char content[4][100000];
  for (int i = 0; i < 4; i++) {
    MPI_Request request;
    fill(content[i], sizeof content[i], key(rank, i));
    MPI_Isend(content[i], i % 2 ? 100000 : 100, MPI_BYTE, right, i, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
  }
  unsigned char *to = room(100000);
  for (int i = 3; i >= 0; i--) {
    MPI_Recv(to, 100000, MPI_BYTE, left, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(filled(to, i % 2 ? 100000 : 100, key(left, i)), "message %d", i);
    see(to, i % 2 ? 100000 : 100);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  free(to);
  end();
}

void complete(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int i = 0; i < COUNT; i++) {
    in[i] = room(LENGTH);
    out[i] = room(LENGTH);
  }
  for (int way = 0; way < WAYS; way++) by(way);
  nothing();
  sendrecv();
  given_up();
  for (int i = 0; i < COUNT; i++) {
    free(in[i]);
    free(out[i]);
  }
}
