/* One way of each kind between two processes. */
#include "tour.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

enum { COMM = 7, ADDRESSES = 8, HANDLER = 11, SLOT = 5, HEAD = 40 };
static const size_t sizes[] = {0, 8, 3000, 65539, TOUR_BYTES};

/* Names what is done, and leaves with the error, its text kept. */
#define TRY(what, call)                                                  \
  do {                                                                   \
    t->at = what, t->since = now_ms();                                                      \
    rdma_code_t tried = (call);                                          \
    if (tried != RDMA_OK) {                                              \
      if (!t->why[0]) rdma_last_error(t->why, sizeof t->why);            \
      return tried;                                                      \
    }                                                                    \
  } while (0)

static uint64_t seed_of(int from, int round, size_t i) { return (uint64_t)round * 100 + (uint64_t)from * 50 + i; }

static rdma_code_t right(tourist *t, const void *memory, size_t n, uint64_t seed) {
  long long at = mismatch(memory, n, seed);
  if (at < 0) return RDMA_OK;
  snprintf(t->why, sizeof t->why, "WRONG BYTE %lld of %zu", at, n);
  return RDMA_DATA_LOSS;
}

/* ---- tensors ---- */
typedef struct sent {
  _Atomic int ended;
  rdma_code_t code;
} sent;
static void on_sent(rdma_code_t code, const char *message, size_t message_len, const rdma_transfer_info_t *info,
                    void *userdata) {
  sent *s = userdata;
  (void)message, (void)message_len, (void)info;
  s->code = code;
  atomic_store(&s->ended, 1);
}

static rdma_code_t give_tensor(tourist *t, int round, size_t i) {
  rdma_tensor_t tensor;
  rdma_send_options_t options;
  sent s = {0, RDMA_OK};
  char key[32];
  TRY("options", rdma_send_options_init(&options, sizeof options));
  TRY("options", rdma_tensor_init(&tensor, sizeof tensor));
  options.timeout_ms = t->timeout_ms;
  fill(t->out, sizes[i], seed_of(t->rank, round, i));
  tensor.data = t->out, tensor.nbytes = sizes[i];
  int n = snprintf(key, sizeof key, "t%d/%zu", t->rank, i);
  TRY("rdma_send", rdma_send(t->mgr, key, (size_t)n, round, &tensor, &options, on_sent, &s));
  /* Its memory is borrowed until then, and `s` is on the stack. */
  while (!atomic_load(&s.ended)) (void)rdma_mgr_wait(t->mgr, 1000);
  TRY("end of rdma_send", s.code);
  return RDMA_OK;
}

static rdma_code_t take_tensor(tourist *t, int round, size_t i) {
  rdma_recv_options_t options;
  rdma_tensor_t tensor;
  rdma_request_t request = 0;
  char key[32];
  TRY("options", rdma_recv_options_init(&options, sizeof options));
  TRY("options", rdma_tensor_init(&tensor, sizeof tensor));
  options.timeout_ms = t->timeout_ms;
  if (round % 2) options.dst = t->in, options.dst_len = TOUR_BYTES;
  int n = snprintf(key, sizeof key, "t%d/%zu", 1 - t->rank, i);
  rdma_code_t code = rdma_recv(t->mgr, t->other, key, (size_t)n, round, &options, &tensor, &request);
  if (code != RDMA_OK) rdma_last_error(t->why, sizeof t->why);
  else code = right(t, tensor.data, sizes[i], seed_of(1 - t->rank, round, i));
  if (request) (void)rdma_request_release(t->mgr, request);
  TRY("rdma_recv", code);
  return RDMA_OK;
}

static rdma_code_t tensors(tourist *t, int round) {
  for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
    rdma_code_t code = (int)(i % 2) == t->rank ? give_tensor(t, round, i / 2) : take_tensor(t, round, i / 2);
    if (code != RDMA_OK) return code;
  }
  return RDMA_OK;
}

/* ---- messages ---- */
static rdma_msg_options_t msg_options(const tourist *t) {
  rdma_msg_options_t options;
  (void)rdma_msg_options_init(&options, sizeof options);
  options.timeout_ms = t->timeout_ms;
  return options;
}

static rdma_code_t give_message(tourist *t, int round, size_t i) {
  static const uint32_t modes[] = {RDMA_MSG_STANDARD, RDMA_MSG_SYNCHRONOUS, RDMA_MSG_BUFFERED};
  rdma_msg_options_t options = msg_options(t);
  fill(t->out, sizes[i], seed_of(t->rank, round, i));
  options.mode = modes[(i + (size_t)round) % COUNT_OF(modes)];
  TRY("rdma_msg_send", rdma_msg_send(t->mgr, t->peer, COMM, i, t->out, sizes[i], &options));
  return RDMA_OK;
}

static rdma_code_t take_message(tourist *t, int round, size_t i) {
  rdma_msg_options_t options = msg_options(t);
  rdma_msg_status_t status = {.struct_size = sizeof status};
  TRY("rdma_msg_recv", rdma_msg_recv(t->mgr, t->peer, COMM, i, RDMA_MSG_TAG_MASK, t->in, TOUR_BYTES, &options, &status));
  TRY("content of rdma_msg_recv", right(t, t->in, sizes[i], seed_of(1 - t->rank, round, i)));
  return RDMA_OK;
}

/* The end of a request; 0 has ended well. */
static rdma_code_t ended(tourist *t, rdma_msg_request_t request) {
  rdma_msg_status_t status = {.struct_size = sizeof status};
  size_t count = 0;
  if (request == 0) return RDMA_OK;
  TRY("rdma_msg_wait", rdma_msg_wait(t->mgr, &request, 1, RDMA_MSG_ALL, RDMA_MSG_FOREVER, NULL, &status, &count));
  if (status.code != RDMA_OK) snprintf(t->why, sizeof t->why, "%s", status.text);
  TRY("a request's end", status.code);
  return RDMA_OK;
}

/* Three parts, the second in a place of its own, and a header. */
static rdma_code_t parts(tourist *t, int round) {
  size_t n = round % 3 == 0 ? 3000 : 100000;
  uint64_t head = (uint64_t)round, got = 0;
  rdma_msg_options_t options = msg_options(t);
  rdma_msg_status_t status = {.struct_size = sizeof status};
  rdma_msg_piece_t pieces[3];
  char *memory = t->rank == 0 ? t->out : t->in;
  for (int i = 0; i < 3; i++) pieces[i] = (rdma_msg_piece_t){memory + (size_t)i * (n + 64), n};
  rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_PARTS, .pieces = pieces, .count = 3};
  options.layout = &layout;
  if (t->rank == 0) {
    for (int i = 0; i < 3; i++) fill(pieces[i].data, n, seed_of(i, round, 20));
    options.header = &head, options.header_len = sizeof head;
    TRY("parts sent", rdma_msg_send(t->mgr, t->peer, COMM, 100, NULL, 0, &options));
    return RDMA_OK;
  }
  rdma_msg_request_t request = 0;
  TRY("parts", rdma_msg_irecv(t->mgr, t->peer, COMM, 100, RDMA_MSG_TAG_MASK, NULL, 0, &options, &status, &request));
  bool at_once = request == 0;
  rdma_code_t code = ended(t, request);
  if (code != RDMA_OK) return code;
  for (int i = 0; i < 3; i++) TRY("content of parts", right(t, pieces[i].data, n, seed_of(i, round, 20)));
  if (at_once && status.header_len == sizeof got) memcpy(&got, status.header, sizeof got);
  TRY("header", !at_once || got == (uint64_t)round ? RDMA_OK : RDMA_DATA_LOSS);
  return RDMA_OK;
}

static rdma_code_t messages(tourist *t, int round) {
  for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
    rdma_code_t code = (int)(i % 2) == t->rank ? give_message(t, round, i / 2) : take_message(t, round, i / 2);
    if (code != RDMA_OK) return code;
  }
  return parts(t, round);
}

/* ---- active messages: the handler checks, and the end is told by a usual message ---- */
/* What callbacks may call: a tensor and its end, texts. It takes stack below the call that runs the callback. */
static void call_inside(rdma_mgr_t *mgr, int64_t step) {
  static char content[12 * 1024], text[1 << 16];
  size_t len = 0;
  rdma_tensor_t tensor;
  CHECK_OK(rdma_tensor_init(&tensor, sizeof tensor));
  tensor.data = content, tensor.nbytes = sizeof content;
  CHECK_OK(rdma_send(mgr, "inside", 6, step, &tensor, NULL, NULL, NULL));
  CHECK_OK(rdma_step_cleanup(mgr, step));
  CHECK_OK(rdma_mgr_stats_json(mgr, text, sizeof text, &len));
}

static uint32_t on_active(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  tourist *t = userdata;
  if (mismatch(data, status->bytes, status->tag) >= 0) atomic_store(&t->active_bad, 1);
  call_inside(mgr, 1000000 + atomic_fetch_add(&t->active_came, 1));
  return RDMA_MSG_HANDLED;
}

static rdma_code_t give_active(tourist *t, int round, size_t i) {
  rdma_msg_options_t options = msg_options(t);
  rdma_msg_request_t request = 0;
  uint64_t seed = seed_of(0, round, i);
  options.mode = RDMA_MSG_SYNCHRONOUS;
  fill(t->out, sizes[i], seed);
  TRY("rdma_msg_am_isend", rdma_msg_am_isend(t->mgr, t->peer, HANDLER, seed, t->out, sizes[i], &options, &request));
  return ended(t, request);
}

static rdma_code_t actives(tourist *t, int round) {
  char done = 0;
  rdma_msg_options_t options = msg_options(t);
  rdma_msg_status_t status = {.struct_size = sizeof status};
  if (t->rank == 0) {
    for (size_t i = 0; i < 3; i++) {
      rdma_code_t code = give_active(t, round, i);
      if (code != RDMA_OK) return code;
    }
    TRY("answer to active", rdma_msg_recv(t->mgr, t->peer, COMM, 101, RDMA_MSG_TAG_MASK, &done, 1, &options, &status));
    TRY("active messages, seen by the other", done ? RDMA_OK : RDMA_DATA_LOSS);
    return RDMA_OK;
  }
  for (int64_t end = now_ms() + t->timeout_ms; atomic_load(&t->active_came) < 3 * (round + 1);) {
    if (now_ms() > end) TRY("active messages to come", RDMA_DEADLINE_EXCEEDED);
    rdma_peer_info_t info = {.struct_size = sizeof info};
    if (rdma_mgr_peer_info(t->mgr, t->other, &info) == RDMA_OK && info.state != RDMA_PEER_CONNECTED) {
      snprintf(t->why, sizeof t->why, "%s", info.reason);
      TRY("active messages to come", RDMA_UNAVAILABLE);
    }
    (void)rdma_mgr_wait(t->mgr, 20);
  }
  done = !atomic_load(&t->active_bad);
  TRY("content of active messages", done ? RDMA_OK : RDMA_DATA_LOSS);
  TRY("answer sent", rdma_msg_send(t->mgr, t->peer, COMM, 101, &done, 1, &options));
  return RDMA_OK;
}

/* ---- a pair: its buffers live for one round ---- */
static rdma_code_t over_pair(tourist *t, int round, rdma_buffer_t out, rdma_buffer_t in) {
  size_t n = round % 2 ? 2000 : 200000;
  fill(t->out, n, seed_of(t->rank, round, 30));
  TRY("rdma_buffer_send", rdma_buffer_send(t->mgr, out, 0, n, HEAD));
  TRY("rdma_buffer_wait_recv", rdma_buffer_wait_recv(t->mgr, in, t->timeout_ms));
  TRY("content of the buffer", right(t, t->in + HEAD, n, seed_of(1 - t->rank, round, 30)));
  TRY("rdma_buffer_wait_send", rdma_buffer_wait_send(t->mgr, out, t->timeout_ms));
  return RDMA_OK;
}

static rdma_code_t pairs(tourist *t, int round) {
  rdma_buffer_t out = 0, in = 0;
  TRY("rdma_buffer_create_send",
      rdma_buffer_create_send(t->mgr, t->pair, SLOT + (uint64_t)round, t->out, TOUR_BYTES, NULL, NULL, &out));
  rdma_code_t code =
      rdma_buffer_create_recv(t->mgr, t->pair, SLOT + (uint64_t)round, t->in, TOUR_BYTES, NULL, NULL, &in);
  t->at = "rdma_buffer_create_recv";
  if (code == RDMA_OK) code = over_pair(t, round, out, in);
  else rdma_last_error(t->why, sizeof t->why);
  if (in) (void)rdma_buffer_destroy(t->mgr, in);
  (void)rdma_buffer_destroy(t->mgr, out);
  return code;
}

/* ---- unbound buffers ---- */
static rdma_code_t over_unbound(tourist *t, int round, rdma_unbound_t out, rdma_unbound_t in) {
  size_t n = round % 2 ? 2000 : 200000;
  uint64_t slot = (uint64_t)round;
  rdma_msg_status_t status = {.struct_size = sizeof status};
  fill(t->out, n, seed_of(t->rank, round, 40));
  TRY("rdma_unbound_recv", rdma_unbound_recv(t->mgr, in, &t->peer, 1, slot, 0, n, t->timeout_ms));
  if (round % 3 == 2) TRY("rdma_unbound_ssend", rdma_unbound_ssend(t->mgr, out, t->peer, slot, 0, n, t->timeout_ms));
  else TRY("rdma_unbound_send", rdma_unbound_send(t->mgr, out, t->peer, slot, 0, n, t->timeout_ms));
  TRY("rdma_unbound_wait_recv", rdma_unbound_wait_recv(t->mgr, in, t->timeout_ms, &status));
  TRY("content of the unbound buffer", right(t, t->in, n, seed_of(1 - t->rank, round, 40)));
  TRY("rdma_unbound_wait_send", rdma_unbound_wait_send(t->mgr, out, t->timeout_ms, &status));
  return RDMA_OK;
}

static rdma_code_t unbound(tourist *t, int round) {
  rdma_unbound_t out = 0, in = 0;
  TRY("rdma_unbound_create", rdma_unbound_create(t->mgr, COMM + 1, t->out, TOUR_BYTES, &out));
  t->at = "rdma_unbound_create";
  rdma_code_t code = rdma_unbound_create(t->mgr, COMM + 1, t->in, TOUR_BYTES, &in);
  if (code == RDMA_OK) code = over_unbound(t, round, out, in);
  else rdma_last_error(t->why, sizeof t->why);
  if (in) (void)rdma_unbound_destroy(t->mgr, in);
  (void)rdma_unbound_destroy(t->mgr, out);
  return code;
}

/* ---- all of them ---- */
rdma_code_t tour_begin(tourist *t) {
  uint8_t mine[RDMA_PAIR_ADDRESS_MAX], theirs[RDMA_PAIR_ADDRESS_MAX];
  size_t n = 0;
  t->why[0] = 0;
  t->out = calloc(1, TOUR_BYTES), t->in = calloc(1, TOUR_BYTES);
  if (!t->out || !t->in) return snprintf(t->why, sizeof t->why, "no memory of the test"), RDMA_RESOURCE_EXHAUSTED;
  TRY("rdma_peer_lookup", rdma_peer_lookup(t->mgr, t->other, &t->peer));
  if (t->rank % 2)
    TRY("rdma_msg_handler", rdma_msg_handler(t->mgr, HANDLER, on_active, t));
  else
    TRY("rdma_msg_handler_in_place", rdma_msg_handler_in_place(t->mgr, HANDLER, on_active, t));
  TRY("rdma_msg_attach", rdma_msg_attach(t->mgr, 8 * TOUR_BYTES));
  TRY("rdma_pair_create", rdma_pair_create(t->mgr, (uint64_t)t->rank, t->timeout_ms, &t->pair));
  TRY("rdma_pair_address", rdma_pair_address(t->mgr, t->pair, mine, sizeof mine, &n));
  rdma_msg_options_t options = msg_options(t);
  rdma_msg_status_t status = {.struct_size = sizeof status};
  TRY("address sent", rdma_msg_send(t->mgr, t->peer, COMM, ADDRESSES + 1000, mine, n, &options));
  TRY("address", rdma_msg_recv(t->mgr, t->peer, COMM, ADDRESSES + 1000, RDMA_MSG_TAG_MASK, theirs, sizeof theirs, &options,
                               &status));
  TRY("rdma_pair_connect", rdma_pair_connect(t->mgr, t->pair, theirs, status.bytes, t->timeout_ms));
  return RDMA_OK;
}

rdma_code_t tour_round(tourist *t, int round) {
  static rdma_code_t (*const all[])(tourist *, int) = {tensors, messages, actives, pairs, unbound};
  for (size_t i = 0; i < COUNT_OF(all); i++) {
    rdma_code_t code = all[i](t, round);
    if (code != RDMA_OK) return code;
  }
  return RDMA_OK;
}

void tour_end(tourist *t) {
  free(t->out);
  free(t->in);
}

/* ---- limits that are reached on the way ---- */
/* KIND=ROOM[@US]: so much more than is used now may be used (descriptors, KiB of address space; of files and locked memory so
 * much at all), from the beginning or from so many microseconds on. */
typedef struct limit {
  char kind[16];
  long room, after_us;
} limit;

static rlim_t now_used(int resource) {
  rlim_t pages = 0;
  FILE *f;
  switch (resource) {
    case RLIMIT_NOFILE: return (rlim_t)count_fds();
    case RLIMIT_AS:
      f = fopen("/proc/self/statm", "re");
      CHECK(f != NULL && fscanf(f, "%lu", &pages) == 1);
      fclose(f);
      return pages * (rlim_t)sysconf(_SC_PAGESIZE);
    default: return 0;
  }
}

static void set_limit(const limit *l) {
  static const struct {
    const char *kind;
    int resource;
    rlim_t unit;
  } all[] = {{"descriptors", RLIMIT_NOFILE, 1}, {"memory", RLIMIT_AS, KIB}, {"files", RLIMIT_FSIZE, 1}, {"locked", RLIMIT_MEMLOCK, 1}};
  for (size_t i = 0; i < COUNT_OF(all); i++) {
    if (strcmp(l->kind, all[i].kind) != 0) continue;
    struct rlimit r;
    CHECK(getrlimit(all[i].resource, &r) == 0);
    r.rlim_cur = now_used(all[i].resource) + (rlim_t)l->room * all[i].unit;
    CHECK(setrlimit(all[i].resource, &r) == 0);
    return;
  }
  FAIL("no limit \"%s\"", l->kind);
}

static void *limit_later(void *arg) {
  limit *l = arg;
  struct timespec t = {l->after_us / 1000000, l->after_us % 1000000 * 1000};
  nanosleep(&t, NULL);
  set_limit(l);
  return NULL;
}

static void limit_from(const char *text) {
  static limit l;
  pthread_t thread;
  if (!text[0]) return;
  CHECK(sscanf(text, "%15[a-z]=%ld@%ld", l.kind, &l.room, &l.after_us) >= 2);
  if (l.after_us == 0) set_limit(&l);
  else CHECK(pthread_create(&thread, NULL, limit_later, &l) == 0 && pthread_detach(thread) == 0);
}

static int64_t tour_deadline;
static void with_deadline(rdma_mgr_options_t *o) { o->timeout_ms = tour_deadline; }

int tour_role(int argc, char **argv) {
  if (argc < 6) return 2;
  int rounds = atoi(argv[5]);
  if (argc > 6) limit_from(argv[6]);
  char address[256] = "";
  size_t len = 0;
  tourist t = {.name = argv[0], .other = argv[2], .rank = 1, .timeout_ms = atoll(argv[4])};
  tour_deadline = t.timeout_ms;
  rdma_code_t code = mgr_try(argv[0], with_deadline, &t.mgr);
  t.at = "rdma_mgr_create";
  if (code == RDMA_OK) t.at = "rdma_mgr_listen", code = rdma_mgr_listen(t.mgr, argv[1], address, sizeof address, &len);
  if (code == RDMA_OK) t.at = "rdma_mgr_add_peer", code = rdma_mgr_add_peer(t.mgr, argv[2], argv[3]);
  if (code != RDMA_OK) rdma_last_error(t.why, sizeof t.why);
  printf("addr %s\n", address);
  fflush(stdout);
  if (code == RDMA_OK) code = tour_begin(&t);
  for (int round = 0; code == RDMA_OK && (rounds == 0 || round < rounds); round++) code = tour_round(&t, round);
  printf("ended %s %s: %s\n", rdma_code_name(code), t.at, t.why);
  fflush(stdout);
  /* One that failed ends at once, so that the other end hears of it. */
  char line[16];
  if (code == RDMA_OK) (void)next_line(line, sizeof line);
  if (t.mgr) CHECK_OK(rdma_mgr_destroy(t.mgr));
  if (code != RDMA_OK) (void)next_line(line, sizeof line);
  tour_end(&t);
  return 0;
}
