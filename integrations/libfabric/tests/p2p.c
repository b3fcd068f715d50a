/* Point to point: standard, buffered, synchronous and ready mode, blocking and not, persistent; sizes about each threshold. */
#include "check.h"

enum { STANDARD, BUFFERED, SYNCHRONOUS, READY, MODES, LARGEST = (1 << 20) + 1, ROUNDS = 5 };
static const char *const MODE[] = {"standard", "buffered", "synchronous", "ready"};
static const int SIZES[] = {0,     1,     4095,  4096,    4097,    8191,    8192, 8193,
                            65535, 65536, 65537, 1048575, 1048576, 1048577};
enum { COUNT = sizeof SIZES / sizeof SIZES[0] };
static int (*const SEND[])(const void *, int, MPI_Datatype, int, int, MPI_Comm) = {MPI_Send, MPI_Bsend, MPI_Ssend, MPI_Rsend};
static int (*const ISEND[])(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = {MPI_Isend, MPI_Ibsend, MPI_Issend,
                                                                                                   MPI_Irsend};
static int (*const INIT[])(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = {MPI_Send_init, MPI_Bsend_init,
                                                                                                  MPI_Ssend_init, MPI_Rsend_init};

static uint64_t key(int from, int to, int tag) { return ((uint64_t)from << 40) + ((uint64_t)to << 20) + (uint64_t)tag; }

/* What came is what this rank's partner sent. */
static void arrived(const void *memory, int size, int from, int tag, const MPI_Status *status) {
  CHECK(status->MPI_SOURCE == from && status->MPI_TAG == tag && length_of(status) == size,
        "source %d tag %d length %d instead of %d, %d, %d", status->MPI_SOURCE, status->MPI_TAG, length_of(status), from, tag, size);
  CHECK(filled(memory, (size_t)size, key(from, rank, tag)), "%d bytes from %d are not what was sent", size, from);
  see(memory, (size_t)size);
}

static void attach(int messages) {
  int length = messages * (LARGEST + MPI_BSEND_OVERHEAD);
  MPI_Buffer_attach(room((size_t)length), length);
}

/* Waits for what is in it, too. */
static void detach(void) {
  void *memory;
  int length;
  MPI_Buffer_detach(&memory, &length);
  free(memory);
}

static void blocking_send(int mode, int partner, void *memory) {
  for (int i = 0; i < COUNT; i++) {
    fill(memory, (size_t)SIZES[i], key(rank, partner, i));
    if (mode == READY) hear(partner);
    SEND[mode](memory, SIZES[i], MPI_BYTE, partner, i, MPI_COMM_WORLD);
    memset(memory, 0x55, (size_t)SIZES[i]); /* it is the program's again */
  }
}

static void blocking_receive(int mode, int partner, unsigned char *memory) {
  for (int i = 0; i < COUNT; i++) {
    MPI_Status status;
    memset(memory, 0xee, LARGEST + 8);
    if (mode == READY) {
      MPI_Request request;
      MPI_Irecv(memory, LARGEST, MPI_BYTE, partner, i, MPI_COMM_WORLD, &request);
      tell(partner);
      MPI_Wait(&request, &status);
    } else {
      MPI_Recv(memory, LARGEST, MPI_BYTE, partner, i, MPI_COMM_WORLD, &status);
    }
    arrived(memory, SIZES[i], partner, i, &status);
    CHECK(all_are(memory + SIZES[i], (size_t)(LARGEST + 8 - SIZES[i]), 0xee), "bytes behind %d were written", SIZES[i]);
  }
}

static void blocking(int mode, int partner) {
  begin("p2p.blocking.%s", MODE[mode]);
  unsigned char *memory = room(LARGEST + 8);
  if (mode == BUFFERED) attach(COUNT);
  for (int turn = 0; turn < 2 && partner < ranks; turn++) {
    if (rank % 2 == turn) blocking_send(mode, partner, memory);
    else blocking_receive(mode, partner, memory);
  }
  if (mode == BUFFERED) detach();
  free(memory);
  end();
}

/* All sizes at once, both ways; then again, with the receives behind the sends. */
static void at_once(int mode, int partner) {
  begin("p2p.nonblocking.%s", MODE[mode]);
  static unsigned char *out[COUNT], *in[COUNT];
  if (mode == BUFFERED) attach(COUNT);
  for (int i = 0; i < COUNT; i++) {
    out[i] = room(LARGEST);
    in[i] = room(LARGEST);
    fill(out[i], (size_t)SIZES[i], key(rank, partner, i));
  }
  for (int round = 0; round < 2 && partner < ranks; round++) {
    MPI_Request requests[2 * COUNT];
    MPI_Status statuses[2 * COUNT];
    bool late = round == 1 && mode != READY;
    for (int step = 0; step < 2; step++) {
      if ((step == 1) == late)
        for (int i = 0; i < COUNT; i++) MPI_Irecv(in[i], LARGEST, MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[i]);
      else
        for (int i = 0; i < COUNT; i++) ISEND[mode](out[i], SIZES[i], MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[COUNT + i]);
      if (step == 0) {
        tell(partner);
        hear(partner);
      }
    }
    MPI_Waitall(2 * COUNT, requests, statuses);
    for (int i = 0; i < COUNT; i++) {
      arrived(in[i], SIZES[i], partner, i, &statuses[i]);
      memset(in[i], 0, LARGEST);
    }
  }
  if (mode == BUFFERED) detach();
  for (int i = 0; i < COUNT; i++) {
    free(out[i]);
    free(in[i]);
  }
  end();
}

/* The same requests over and over, with other content each time. */
static void persistent(int mode, int partner) {
  begin("p2p.persistent.%s", MODE[mode]);
  enum { KINDS = 4 };
  static const int length[KINDS] = {1, 4097, 65537, 300000};
  unsigned char *out[KINDS], *in[KINDS];
  MPI_Request requests[2 * KINDS];
  MPI_Status statuses[2 * KINDS];
  /* When it starts a buffered one again, Open MPI 4.1 sends other content, whatever carries it. */
  int rounds = mode == BUFFERED ? 1 : ROUNDS;
  if (mode == BUFFERED) attach(KINDS * ROUNDS);
  for (int i = 0; i < KINDS && partner < ranks; i++) {
    out[i] = room((size_t)length[i]);
    in[i] = room((size_t)length[i]);
    MPI_Recv_init(in[i], length[i], MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[i]);
    INIT[mode](out[i], length[i], MPI_BYTE, partner, i, MPI_COMM_WORLD, &requests[KINDS + i]);
  }
  for (int round = 0; round < rounds && partner < ranks; round++) {
    for (int i = 0; i < KINDS; i++) fill(out[i], (size_t)length[i], key(rank, partner, i) + (uint64_t)round * 1000003);
    MPI_Startall(KINDS, requests);
    tell(partner);
    hear(partner);
    for (int i = 0; i < KINDS; i++) MPI_Start(&requests[KINDS + i]);
    MPI_Waitall(2 * KINDS, requests, statuses);
    for (int i = 0; i < KINDS; i++) {
      CHECK(length_of(&statuses[i]) == length[i], "length %d instead of %d", length_of(&statuses[i]), length[i]);
      CHECK(filled(in[i], (size_t)length[i], key(partner, rank, i) + (uint64_t)round * 1000003), "round %d: not what was sent", round);
      see(in[i], (size_t)length[i]);
    }
  }
  for (int i = 0; i < KINDS && partner < ranks; i++) {
    MPI_Request_free(&requests[i]);
    MPI_Request_free(&requests[KINDS + i]);
    free(out[i]);
    free(in[i]);
  }
  if (mode == BUFFERED) detach();
  end();
}

/* A synchronous send does not end before its receive has begun. */
static void synchronous_waits(int partner) {
  begin("p2p.synchronous_waits");
  static const int length[] = {0, 100, 70000};
  unsigned char *memory = room(70000);
  for (int i = 0; i < 3 && partner < ranks; i++) {
    if (rank % 2 == 0) {
      MPI_Request request;
      int done = 0;
      fill(memory, (size_t)length[i], key(rank, partner, i));
      MPI_Issend(memory, length[i], MPI_BYTE, partner, i, MPI_COMM_WORLD, &request);
      tell(partner);
      hear(partner); /* the partner has seen the message, and has not received it */
      for (int n = 0; n < 2000 && !done; n++) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      CHECK(!done, "synchronous send of %d bytes ended without a receive", length[i]);
      tell(partner);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
      MPI_Status status;
      hear(partner);
      MPI_Probe(partner, i, MPI_COMM_WORLD, &status);
      tell(partner);
      hear(partner);
      MPI_Recv(memory, length[i], MPI_BYTE, partner, i, MPI_COMM_WORLD, &status);
      arrived(memory, length[i], partner, i, &status);
    }
  }
  free(memory);
  end();
}

/* What does not fit into the attached buffer is refused, and what fits arrives. */
static void buffer_bound(int partner) {
  begin("p2p.buffer_bound");
  enum { LENGTH = 1000 };
  MPI_Comm apart; /* where ob1 was refused once, nothing else gets through */
  MPI_Comm_dup(MPI_COMM_WORLD, &apart);
  if (partner < ranks && rank % 2 == 0) {
    int length = LENGTH + MPI_BSEND_OVERHEAD, given;
    void *memory = room((size_t)length), *back;
    unsigned char *content = room(100000);
    fill(content, LENGTH, key(rank, partner, 0));
    MPI_Comm_set_errhandler(apart, MPI_ERRORS_RETURN);
    MPI_Buffer_attach(memory, length);
    int code = MPI_Bsend(content, 100000, MPI_BYTE, partner, 1, apart);
    CHECK(code != MPI_SUCCESS && class_of(code) == MPI_ERR_BUFFER, "class %d instead of MPI_ERR_BUFFER", class_of(code));
    code = MPI_Bsend(content, LENGTH, MPI_BYTE, partner, 0, MPI_COMM_WORLD);
    CHECK(code == MPI_SUCCESS, "what fits was refused: class %d", class_of(code));
    MPI_Buffer_detach(&back, &given);
    CHECK(back == memory && given == length, "another buffer was detached");
    free(memory);
    free(content);
  } else if (partner < ranks) {
    unsigned char memory[LENGTH];
    MPI_Status status;
    MPI_Recv(memory, LENGTH, MPI_BYTE, partner, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    arrived(memory, LENGTH, partner, 0, &status);
  }
  MPI_Comm_free(&apart);
  end();
}

static void large(int partner) {
  begin("p2p.large");
  int size = 64 << 20;
  if (rank < 2 && partner < ranks) {
    MPI_Status status;
    unsigned char *memory = room((size_t)size);
    if (rank == 0) fill(memory, (size_t)size, key(0, 1, 9));
    if (rank == 0) MPI_Send(memory, size, MPI_BYTE, 1, 9, MPI_COMM_WORLD);
    else MPI_Recv(memory, size, MPI_BYTE, 0, 9, MPI_COMM_WORLD, &status);
    if (rank == 1) arrived(memory, size, 0, 9, &status);
    free(memory);
  }
  end();
}

/* To itself, and to nobody. */
static void self_and_null(void) {
  begin("p2p.self_and_null");
  unsigned char *out = room(LARGEST), *in = room(LARGEST);
  MPI_Status status;
  MPI_Request requests[2];
  for (int i = 0; i < COUNT; i++) {
    fill(out, (size_t)SIZES[i], key(rank, rank, i));
    if (i % 2 == 0) MPI_Isend(out, SIZES[i], MPI_BYTE, rank, i, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(in, LARGEST, MPI_BYTE, i % 3 ? rank : MPI_ANY_SOURCE, i % 4 == 3 ? MPI_ANY_TAG : i, MPI_COMM_WORLD, &requests[1]);
    if (i % 2 == 1) MPI_Isend(out, SIZES[i], MPI_BYTE, rank, i, MPI_COMM_WORLD, &requests[0]);
    MPI_Wait(&requests[1], &status);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    arrived(in, SIZES[i], rank, i, &status);
  }
  MPI_Send(out, 10, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
  MPI_Recv(in, 10, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status);
  CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG && length_of(&status) == 0, "nobody sent something");
  free(out);
  free(in);
  end();
}

void p2p(int argc, char **argv) {
  (void)argc, (void)argv;
  int partner = rank ^ 1;
  for (int mode = 0; mode < MODES; mode++) {
    blocking(mode, partner);
    at_once(mode, partner);
    persistent(mode, partner);
  }
  synchronous_waits(partner);
  buffer_bound(partner);
  large(partner);
  self_and_null();
}
