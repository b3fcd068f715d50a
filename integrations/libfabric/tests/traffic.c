/* Seeded operations of all ranks against a model of MPI's matching.
 *
 * In a round each rank sends some messages and posts some receives, whose sources and tags are drawn without regard to what
 * comes. What none of them has taken is found by probes, and on one communicator claimed; when as much has come as was sent,
 * the receives that are left are cancelled. Then each rank checks the order of matching: a message goes to the first receive
 * that it fits, a receive takes the first message of a sender that fits it. */
#include "check.h"

/* Synchronous sends go where receives do not claim: Open MPI's mtl ofi tells no sender of a message that was claimed. */
enum { COMMS = 3, CLAIMED = 1, TAGS = 4, MOST = 48, LONGEST = 200000 };

struct message {
  int32_t from, to, comm, tag, size, mode;
  uint32_t order; /* among those of this sender, receiver and communicator */
  int32_t taken;  /* by which receive, in order of posting; -1: none yet */
};
struct receive {
  int comm, from, tag; /* what it asks for */
  MPI_Request request;
  MPI_Status status;
  unsigned char *memory;
  bool open;
};

static MPI_Comm comms[COMMS];
static int turned; /* this rank in communicator 2, which counts from the end */
static struct message *plan;
static struct receive *receives;
static int messages, posted, arrived, due;

static int rank_in(int comm, int world) { return comm == 2 ? ranks - 1 - world : world; }

static int draw_size(uint64_t *state) {
  int kind = below(state, 100);
  if (kind < 70) return below(state, 64);
  if (kind < 88) return below(state, 5000);
  if (kind < 98) return 3900 + below(state, 10000);
  return below(state, LONGEST - 64);
}

/* Every rank draws the same plan of the round; messages of a sender are in the order in which it sends them. */
static void make_plan(uint64_t *shared) {
  messages = 0;
  due = 0;
  for (int from = 0; from < ranks; from++) {
    int count = below(shared, MOST / 2) + (below(shared, 8) == 0 ? MOST / 2 : 0);
    for (int i = 0; i < count; i++) {
      struct message *m = &plan[messages++];
      *m = (struct message){.from = from, .to = below(shared, ranks), .comm = below(shared, COMMS), .tag = below(shared, TAGS),
                            .size = draw_size(shared), .mode = below(shared, 3), .taken = -1};
      for (struct message *before = plan; before < m; before++)
        if (before->from == from && before->to == m->to && before->comm == m->comm) m->order = before->order + 1;
      due += m->to == rank;
    }
  }
}

/* A message's content: where it is in the plan, then bytes that follow from that, as far as it is long enough. */
static void content(unsigned char *memory, int index, uint64_t round) {
  int size = plan[index].size;
  fill(memory, (size_t)size, round * 1000 + (uint64_t)index);
}

static bool fits(const struct receive *r, const struct message *m) {
  return r->comm == m->comm && (r->from == MPI_ANY_SOURCE || r->from == m->from) && (r->tag == MPI_ANY_TAG || r->tag == m->tag);
}

/* Receive number `at` has ended: with which message? The first of this sender, communicator, tag, length and content that is
 * not taken. Of those that are alike the first goes to the first receive, so this is asked in the order of the receives. */
static void find(int at, uint64_t round) {
  const struct receive *r = &receives[at];
  int from = rank_in(r->comm, r->status.MPI_SOURCE), size = length_of(&r->status);
  for (int i = 0; i < messages; i++) {
    struct message *m = &plan[i];
    if (m->to != rank || m->from != from || m->comm != r->comm || m->tag != r->status.MPI_TAG || m->size != size || m->taken >= 0) continue;
    if (!filled(r->memory, (size_t)size, round * 1000 + (uint64_t)i)) continue;
    m->taken = at;
    CHECK(fits(r, m), "receive %d (source %d tag %d) took a message of %d, tag %d", at, r->from, r->tag, m->from, m->tag);
    see_loose(r->memory, (size_t)size);
    return;
  }
  CHECK(false, "round %d: receive %d has a message that nobody sent: source %d tag %d length %d", (int)round, at, from,
        r->status.MPI_TAG, size);
}

static void ended(int at) {
  receives[at].open = false;
  arrived++;
}

static void check_order(uint64_t round) {
  for (int at = 0; at < posted; at++)
    if (!receives[at].open) find(at, round);
  for (int i = 0; i < messages; i++) {
    const struct message *m = &plan[i];
    if (m->to != rank || m->taken < 0) continue;
    for (int at = 0; at < m->taken; at++)
      if (receives[at].open) CHECK(!fits(&receives[at], m), "message %d from %d went past receive %d, which waited", i, m->from, at);
    for (int j = 0; j < messages; j++) {
      const struct message *l = &plan[j];
      if (l->to != rank || l->from != m->from || l->comm != m->comm || l->order <= m->order || l->taken < 0) continue;
      /* l was sent after m: where l's receive fits m, m's comes before it. */
      CHECK(l->taken > m->taken || !fits(&receives[l->taken], m), "messages %d and %d from %d: receives %d and %d", i, j, m->from,
            m->taken, l->taken);
    }
  }
}

static void post(uint64_t *state, int at) {
  struct receive *r = &receives[at];
  r->comm = below(state, COMMS);
  r->from = below(state, 3) == 0 ? MPI_ANY_SOURCE : below(state, ranks);
  r->tag = below(state, 3) == 0 ? MPI_ANY_TAG : below(state, TAGS);
  r->open = true;
  MPI_Irecv(r->memory, LONGEST, MPI_BYTE, r->from == MPI_ANY_SOURCE ? r->from : rank_in(r->comm, r->from), r->tag, comms[r->comm],
            &r->request);
}

static void send_it(const struct message *m, const unsigned char *memory, MPI_Request *request) {
  int to = rank_in(m->comm, m->to);
  if (m->mode == 0 && m->comm != CLAIMED) MPI_Issend(memory, m->size, MPI_BYTE, to, m->tag, comms[m->comm], request);
  else if (m->mode == 1 && m->size < 5000) MPI_Ibsend(memory, m->size, MPI_BYTE, to, m->tag, comms[m->comm], request);
  else MPI_Isend(memory, m->size, MPI_BYTE, to, m->tag, comms[m->comm], request);
}

/* Looks for what has ended, and receives a message that no receive wants. */
static void look(uint64_t *state) {
  int flag;
  for (int at = 0; at < posted; at++) {
    if (!receives[at].open) continue;
    MPI_Test(&receives[at].request, &flag, &receives[at].status);
    if (flag) ended(at);
  }
  MPI_Status status;
  struct receive *r = &receives[posted];
  r->comm = below(state, COMMS);
  if (r->comm == CLAIMED) {
    MPI_Message message;
    MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comms[r->comm], &flag, &message, &status);
    if (!flag) return;
    MPI_Mrecv(r->memory, LONGEST, MPI_BYTE, &message, &r->status);
  } else {
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comms[r->comm], &flag, &status);
    if (!flag) return;
    MPI_Recv(r->memory, LONGEST, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comms[r->comm], &r->status);
  }
  r->from = rank_in(r->comm, status.MPI_SOURCE);
  r->tag = status.MPI_TAG;
  ended(posted++);
}

static void one_round(uint64_t round, uint64_t *shared, uint64_t *state, unsigned char **out, MPI_Request *sends) {
  make_plan(shared);
  int wanted = below(state, MOST), sent = 0;
  posted = arrived = 0;
  /* Its sends and receives take turns as they come. */
  for (int next = 0; next < messages || wanted > 0;) {
    if (wanted > 0 && (next == messages || below(state, 2) == 0)) {
      post(state, posted++);
      wanted--;
      continue;
    }
    if (plan[next].from == rank) {
      content(out[sent], next, round);
      send_it(&plan[next], out[sent], &sends[sent]);
      sent++;
    }
    next++;
  }
  progress = (long)round;
  while (arrived < due) look(state);
  for (int at = 0; at < posted; at++) {
    if (!receives[at].open) continue;
    MPI_Status status;
    int cancelled;
    MPI_Cancel(&receives[at].request);
    MPI_Wait(&receives[at].request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled, "round %d: receive %d has a message too many", (int)round, at);
  }
  check_order(round);
  MPI_Waitall(sent, sends, MPI_STATUSES_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
}

void traffic(int argc, char **argv) {
  long count = argc > 0 ? atol(argv[0]) : 100000, done = 0;
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, shared = seed, mine = seed * 977 + (uint64_t)rank;
  int most = ranks * (MOST + MOST / 2);
  plan = room((size_t)most * sizeof *plan);
  receives = room((size_t)(most + MOST) * sizeof *receives);
  unsigned char **out = room((size_t)(2 * MOST) * sizeof *out);
  MPI_Request *sends = room((size_t)(2 * MOST) * sizeof *sends);
  for (int i = 0; i < most + MOST; i++) receives[i].memory = room(LONGEST);
  for (int i = 0; i < 2 * MOST; i++) out[i] = room(LONGEST);
  int attached = 2 * MOST * 2 * (5000 + MPI_BSEND_OVERHEAD);
  void *buffer = room((size_t)attached);
  MPI_Buffer_attach(buffer, attached);
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
  MPI_Comm_rank(comms[2], &turned);

  uint64_t round = 1;
  for (int part = 0; done < count; part++) {
    begin("traffic.%llu.%d", (unsigned long long)seed, part);
    CHECK(turned == ranks - 1 - rank, "rank %d of the turned communicator", turned);
    for (long until = done + count / 10; done < until; round++) {
      one_round(round, &shared, &mine, out, sends);
      done += 2 * messages;
    }
    end();
  }
  MPI_Buffer_detach(&buffer, &attached);
  for (int i = 0; i < COMMS; i++) MPI_Comm_free(&comms[i]);
  for (int i = 0; i < most + MOST; i++) free(receives[i].memory);
  for (int i = 0; i < 2 * MOST; i++) free(out[i]);
  free(buffer), free(out), free(sends), free(plan), free(receives);
}
