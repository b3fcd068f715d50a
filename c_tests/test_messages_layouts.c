/* Tagged messages whose memory lies in pieces, in parts, and what travels beside them. */
#include "harness.h"

enum { COMM = 4, PIECES = 1000 };
#define EXACT RDMA_MSG_TAG_MASK

/* Memory for so many bytes, of one kind; `bytes` is their image, in order. */
typedef struct place {
  uint32_t kind; /* 0: in one piece */
  size_t n;
  char *memory;
  size_t total;
  rdma_msg_piece_t pieces[PIECES];
  rdma_msg_layout_t layout;
} place;

static const uint32_t kinds[] = {0, RDMA_MSG_IOVEC, RDMA_MSG_STRIDED};

static void place_set(place *p, uint32_t kind, size_t n) {
  *p = (place){.kind = kind, .n = n};
  p->layout.struct_size = sizeof p->layout;
  p->layout.kind = kind;
  p->total = n;
  if (kind == RDMA_MSG_STRIDED) {
    size_t block = n % 64 == 0 ? 64 : n % 7 == 0 ? 7 : 1;
    p->layout.block = block;
    p->layout.stride = block + (block > 1 ? 30 : 2);
    p->layout.count = n / block;
    p->total = p->layout.count * p->layout.stride;
  } else if (kind == RDMA_MSG_IOVEC) {
    p->layout.count = PIECES;
    p->total = n + PIECES;
  }
  p->memory = scratch(p->total + 1);
  memset(p->memory, 0x5a, p->total + 1);
  p->layout.base = kind == RDMA_MSG_STRIDED ? p->memory : NULL;
  if (kind == RDMA_MSG_IOVEC) {
    /* Backwards, with a byte between them, some empty. */
    char *at = p->memory + p->total;
    size_t left = n;
    for (size_t i = 0; i < PIECES; i++) {
      size_t len = i == PIECES - 1 ? left : i % 10 == 3 ? 0 : n / PIECES + i % 2;
      if (len > left) len = left;
      left -= len;
      at -= len + 1;
      p->pieces[i] = (rdma_msg_piece_t){at, len};
    }
    p->layout.pieces = p->pieces;
  }
}

static rdma_msg_options_t options_for(const place *p) {
  rdma_msg_options_t options = {.struct_size = sizeof options};
  if (p->kind != 0) options.layout = &p->layout;
  return options;
}

/* Copies between the place and its image. */
static void image(const place *p, char *bytes, bool out) {
  size_t at = 0;
  for (size_t i = 0; p->kind == RDMA_MSG_IOVEC && i < PIECES; i++) {
    if (p->pieces[i].len == 0) continue;
    memcpy(out ? bytes + at : p->pieces[i].data, out ? p->pieces[i].data : bytes + at, p->pieces[i].len);
    at += p->pieces[i].len;
  }
  for (size_t i = 0; p->kind == RDMA_MSG_STRIDED && i < p->layout.count; i++) {
    char *block = p->memory + i * p->layout.stride;
    memcpy(out ? bytes + at : block, out ? block : bytes + at, p->layout.block);
    at += p->layout.block;
  }
  if (p->kind == 0) memcpy(out ? bytes : p->memory, out ? p->memory : bytes, p->n);
}

static size_t untouched(const place *p) {
  size_t n = 0;
  for (size_t i = 0; i < p->total + 1; i++) n += p->memory[i] == 0x5a;
  return n;
}

static rdma_msg_request_t send_place(rdma_mgr_t *mgr, rdma_peer_t to, uint64_t tag, const place *p, uint32_t mode) {
  rdma_msg_options_t options = options_for(p);
  rdma_msg_request_t request = 77;
  options.mode = mode;
  bool whole = p->kind == 0;
  CHECK_OK(rdma_msg_isend(mgr, to, COMM, tag, whole ? p->memory : NULL, whole ? p->n : 0, &options, &request));
  return request;
}

static rdma_msg_request_t recv_place(rdma_mgr_t *mgr, uint64_t tag, const place *p, rdma_msg_status_t *status) {
  rdma_msg_options_t options = options_for(p);
  rdma_msg_request_t request = 77;
  bool whole = p->kind == 0;
  status->struct_size = sizeof *status;
  CHECK_OK(rdma_msg_irecv(mgr, RDMA_PEER_ANY, COMM, tag, EXACT, whole ? p->memory : NULL, whole ? p->n : 0, &options,
                          status, &request));
  return request;
}

static void exchange(pair p, bool own, size_t n) {
  static place from, to;
  rdma_peer_t peer = number_of(own ? p.b : p.a, "beta");
  rdma_mgr_t *sender = own ? p.b : p.a;
  char *bytes = scratch(n + 1), *got = scratch(n + 1);
  for (size_t f = 0; f < COUNT_OF(kinds); f++) {
    for (size_t t = 0; t < COUNT_OF(kinds); t++) {
      for (int first = 0; first < 2; first++) {
        uint64_t seed = n + f * 100 + t * 10 + (uint64_t)first;
        rdma_msg_status_t st;
        rdma_msg_request_t r = 0, s;
        place_set(&from, kinds[f], n);
        place_set(&to, kinds[t], n);
        fill(bytes, n, seed);
        image(&from, bytes, false);
        size_t gaps = untouched(&to) - n;
        if (first) r = recv_place(p.b, seed, &to, &st);
        s = send_place(sender, peer, seed, &from, first ? RDMA_MSG_READY : RDMA_MSG_STANDARD);
        if (!first) {
          pump_for(2);
          r = recv_place(p.b, seed, &to, &st);
        }
        st = end_of(p.b, r, &st);
        CHECK_INT(RDMA_OK, st.code);
        CHECK_INT(n, st.bytes);
        image(&to, got, true);
        CHECK_MSG(mismatch(got, n, seed) < 0, "kinds %zu to %zu, %zu bytes: wrong at %lld", f, t, n,
                  mismatch(got, n, seed));
        CHECK(untouched(&to) >= gaps);
        if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
      }
    }
  }
}

/* Around what shm and ibverbs send along, what the call gathers, what tcp sends along, and the longest leg. */
static const size_t sizes[] = {0, 8, 999, 5000, 70000, 1600000, AROUND(4 << 10), AROUND(11 << 10), AROUND(12 << 10),
                               AROUND(32 << 10), AROUND(512 << 10)};

static void each_pair_of_layouts(void) {
  pair p = pair_new(NULL);
  for (size_t i = 0; i < COUNT_OF(sizes); i++) exchange(p, false, sizes[i]);
}

static void each_pair_of_layouts_to_oneself(void) {
  pair p = pair_new(NULL);
  for (size_t i = 0; i < COUNT_OF(sizes); i++) exchange(p, true, sizes[i]);
}

static void set_checksum(rdma_mgr_options_t *options) { options->checksum = true; }

/* With checksums each leg has its own. */
static void with_checksums(void) {
  pair p = pair_new(set_checksum);
  exchange(p, false, 999);
  exchange(p, false, 1600000);
}

/* A message that is too long leaves all pieces as they are. */
static void truncation(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static place from, to;
  for (size_t i = 0; i < 2; i++) {
    size_t n = i == 0 ? 1001 : 700001;
    rdma_msg_status_t st;
    place_set(&from, RDMA_MSG_IOVEC, n);
    place_set(&to, RDMA_MSG_STRIDED, n - 1);
    rdma_msg_request_t r = recv_place(p.b, 1, &to, &st);
    rdma_msg_request_t s = send_place(p.a, to_b, 1, &from, RDMA_MSG_STANDARD);
    st = end_of(p.b, r, &st);
    CHECK_INT(RDMA_OUT_OF_RANGE, st.code);
    CHECK_INT(n, st.bytes);
    CHECK(strstr(st.text, "the destination given has") != NULL);
    CHECK_INT(to.total + 1, untouched(&to));
    if (s != 0) CHECK_INT(RDMA_OK, end_of(p.a, s, NULL).code);
  }
}

/* Cancelled at some point of the way; then the connection is as good as before. */
static void cancellation(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  static place from, to;
  size_t n = 3000000;
  for (int i = 0; i < 6; i++) {
    rdma_msg_status_t st;
    place_set(&from, i % 2 ? RDMA_MSG_IOVEC : 0, n);
    place_set(&to, RDMA_MSG_STRIDED, n);
    rdma_msg_request_t r = recv_place(p.b, 1, &to, &st);
    rdma_msg_request_t s = send_place(p.a, to_b, 1, &from, RDMA_MSG_STANDARD);
    for (int k = 0; k < i; k++) pump_for(1);
    rdma_msg_cancel(p.b, r);
    st = end_of(p.b, r, &st);
    CHECK(st.code == RDMA_OK || st.code == RDMA_CANCELLED);
    memset(to.memory, 1, to.total);
    if (st.code == RDMA_CANCELLED && s != 0) {
      rdma_msg_cancel(p.a, s);
    }
    st = end_of(p.a, s, NULL);
    CHECK(st.code == RDMA_OK || st.code == RDMA_CANCELLED);
    for (size_t k = 0; k < to.total; k++) CHECK(to.memory[k] == 1);
  }
  exchange(p, false, 999);
}

/* Memory of pieces that is unregistered ends what waits with it. */
static void memory_that_goes(void) {
  pair p = pair_new(NULL);
  static place to;
  rdma_msg_status_t st;
  place_set(&to, RDMA_MSG_IOVEC, 5000);
  CHECK_OK(rdma_mem_register(p.b, to.memory, to.total, RDMA_DEVICE_HOST));
  rdma_msg_request_t r = recv_place(p.b, 1, &to, &st);
  CHECK_OK(rdma_mem_unregister(p.b, to.memory));
  CHECK_INT(RDMA_FAILED_PRECONDITION, end_of(p.b, r, NULL).code);
}

/* Fills memory that was freed meanwhile, as an application does at once: a status may point to none of it. */
static void churn(void) {
  for (size_t n = 16; n <= 1024; n += 16) {
    volatile char *memory = malloc(n);
    if (memory == NULL) continue;
    for (size_t i = 0; i < n; i++) memory[i] = (char)0xEE;
    free((void *)(uintptr_t)memory);
  }
}

static void check_header(const rdma_msg_status_t *st, const char *want, size_t n) {
  churn();
  CHECK_INT(n, st->header_len);
  CHECK(n == 0 ? st->header == NULL : memcmp(st->header, want, n) == 0);
}

static _Atomic int told;
static size_t head; /* length of the header that is sent */
static void on_end(const rdma_msg_status_t *status, void *userdata) {
  check_header(status, userdata, head);
  atomic_fetch_add(&told, 1);
}

/* A header is seen by probes, by statuses of all kinds, and by callbacks. */
static void headers_of(size_t length) {
  head = length;
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), self = number_of(p.b, "beta");
  static char header[RDMA_MSG_MAX_HEADER + 1];
  fill(header, sizeof header, 1);
  static const size_t lens[] = {0, 8, 3000, 300000};
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    for (int own = 0; own < 2; own++) {
      size_t n = lens[i];
      char *from = scratch(n + 1), *to = scratch(n + 1);
      fill(from, n, i);
      rdma_msg_options_t options = {.struct_size = sizeof options, .header = header, .header_len = head};
      rdma_msg_status_t st = {.struct_size = sizeof st};
      rdma_msg_request_t s = 0, r = 77;
      rdma_mgr_t *sender = own ? p.b : p.a;
      CHECK_OK(rdma_msg_isend(sender, own ? self : to_b, COMM, i, from, n, &options, &s));
      drive(p.a);
      CHECK_OK(rdma_msg_probe(p.b, RDMA_PEER_ANY, COMM, i, EXACT, false, 30000, &st));
      drive_stop(p.a);
      check_header(&st, header, head);
      CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, to, n, NULL, &st, &r));
      st = end_of(p.b, r, &st);
      CHECK_INT(RDMA_OK, st.code);
      check_header(&st, header, head);
      CHECK(mismatch(to, n, i) < 0);
      if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
      /* The next has none. */
      options.header_len = 0;
      CHECK_OK(rdma_msg_isend(sender, own ? self : to_b, COMM, i, from, n, &options, &s));
      CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, to, n, NULL, &st, &r));
      st = end_of(p.b, r, &st);
      check_header(&st, NULL, 0);
      if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
      /* And a callback. */
      rdma_msg_options_t hears = {.struct_size = sizeof hears, .done = on_end, .userdata = header};
      int before = told;
      CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, to, n, &hears, NULL, NULL));
      options.header_len = head;
      CHECK_OK(rdma_msg_isend(sender, own ? self : to_b, COMM, i, from, n, &options, &s));
      CHECK(count_reached(&told, before + 1, 30000));
      if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
    }
  }
  pair_end(&p);
}

static void headers(void) {
  static const size_t lengths[] = {1, 8, 24, 25, RDMA_MSG_MAX_HEADER};
  for (size_t i = 0; i < COUNT_OF(lengths); i++) headers_of(lengths[i]);
}

/* Keys, values and lengths in one message, each to a place of its own that may be longer. */
static void parts(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), self = number_of(p.b, "beta");
  static const size_t lens[][3] = {{16, 80, 8}, {8000, 400000, 4000}, {0, 0, 0}, {0, 9, 0}};
  for (size_t i = 0; i < COUNT_OF(lens); i++) {
    for (int k = 0; k < 4; k++) {
      bool own = k % 2, first = k / 2;
      char *from[3], *to[3];
      rdma_msg_piece_t out[3], in[4];
      size_t sum = 0;
      for (size_t j = 0; j < 3; j++) {
        from[j] = scratch(lens[i][j] + 1);
        to[j] = scratch(lens[i][j] + 11);
        fill(from[j], lens[i][j], j);
        memset(to[j], 7, lens[i][j] + 11);
        out[j] = (rdma_msg_piece_t){from[j], lens[i][j]};
        in[j] = (rdma_msg_piece_t){to[j], lens[i][j] + 10};
        sum += lens[i][j];
      }
      in[3] = (rdma_msg_piece_t){NULL, 0};
      rdma_msg_layout_t gives = {.struct_size = sizeof gives, .kind = RDMA_MSG_PARTS, .pieces = out, .count = 3};
      rdma_msg_layout_t takes = {.struct_size = sizeof takes, .kind = RDMA_MSG_PARTS, .pieces = in, .count = 4};
      rdma_msg_options_t send = {.struct_size = sizeof send, .layout = &gives}, recv = send;
      recv.layout = &takes;
      rdma_msg_request_t s = 0, r = 0;
      rdma_msg_status_t st = {.struct_size = sizeof st};
      rdma_mgr_t *sender = own ? p.b : p.a;
      if (first) CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, NULL, 0, &recv, &st, &r));
      CHECK_OK(rdma_msg_isend(sender, own ? self : to_b, COMM, i, NULL, 0, &send, &s));
      pump_for(2);
      if (!first) CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, NULL, 0, &recv, &st, &r));
      st = end_of(p.b, r, &st);
      CHECK_INT(RDMA_OK, st.code);
      CHECK_INT(sum, st.bytes);
      CHECK_INT(3, st.parts);
      for (size_t j = 0; j < 3; j++) {
        CHECK_INT(lens[i][j], st.part_lens[j]);
        CHECK(mismatch(to[j], lens[i][j], j) < 0);
        for (size_t m = 0; m < 11; m++) CHECK_INT(7, to[j][lens[i][j] + m]);
      }
      if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
      /* A part that is too long, and a place too few. */
      for (int bad = 0; bad < 2 && sum > 0; bad++) {
        in[1].len = bad ? lens[i][1] : lens[i][1] - 1;
        takes.count = bad ? 2 : 4;
        CHECK_OK(rdma_msg_isend(sender, own ? self : to_b, COMM, i, NULL, 0, &send, &s));
        CHECK_OK(rdma_msg_irecv(p.b, RDMA_PEER_ANY, COMM, i, EXACT, NULL, 0, &recv, &st, &r));
        st = end_of(p.b, r, &st);
        CHECK_INT(RDMA_OUT_OF_RANGE, st.code);
        CHECK_INT(sum, st.bytes);
        CHECK(strstr(st.text, bad ? "3 parts" : "part 1") != NULL);
        if (s != 0) CHECK_INT(RDMA_OK, end_of(sender, s, NULL).code);
      }
    }
  }
}

/* Statuses have the text of each error, and a wait for all names what is not known at once. */
static void errors_have_texts(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_a = number_of(p.b, "alpha");
  char to[2][8];
  rdma_msg_request_t r[2];
  rdma_msg_status_t st[2];
  size_t n = 0;
  st[0].struct_size = sizeof st[0];
  for (size_t i = 0; i < 2; i++) {
    CHECK_OK(rdma_msg_irecv(p.b, to_a, COMM, i, EXACT, to[i], sizeof to[i], NULL, NULL, &r[i]));
    if (i == 1) {
      rdma_msg_request_t unknown[2] = {r[0], 4711};
      CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_wait(p.b, unknown, 2, RDMA_MSG_ALL, RDMA_MSG_FOREVER, NULL, NULL, &n));
    }
  }
  for (size_t i = 0; i < 2; i++) CHECK_OK(rdma_msg_cancel(p.b, r[i]));
  CHECK_OK(rdma_msg_wait(p.b, r, 2, RDMA_MSG_ALL, 30000, NULL, st, &n));
  CHECK_INT(2, n);
  for (size_t i = 0; i < 2; i++) {
    CHECK_INT(RDMA_CANCELLED, st[i].code);
    CHECK(strstr(st[i].text, "cancelled") != NULL);
  }
}

static void bad_arguments(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta");
  char byte = 0;
  rdma_msg_piece_t piece = {&byte, 1}, null = {NULL, 1};
  rdma_msg_layout_t layout = {.struct_size = sizeof layout, .kind = RDMA_MSG_IOVEC, .pieces = &piece, .count = 1};
  rdma_msg_options_t options = {.struct_size = sizeof options, .layout = &layout};
#define REFUSED CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, to_b, COMM, 1, NULL, 0, &options, NULL))
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_msg_isend(p.a, to_b, COMM, 1, &byte, 1, &options, NULL));
  options.device = 1;
  REFUSED;
  options.device = 0;
  layout.kind = 0;
  REFUSED;
  layout.kind = 9;
  REFUSED;
  layout.kind = RDMA_MSG_IOVEC;
  layout.reserved = 1;
  REFUSED;
  error_has("options.layout->reserved is 1, allowed is 0");
  layout.reserved = 0;
  layout.count = RDMA_MSG_MAX_PIECES + 1;
  REFUSED;
  layout.count = 1;
  layout.pieces = NULL;
  REFUSED;
  layout.pieces = &null;
  REFUSED;
  layout.kind = RDMA_MSG_PARTS;
  layout.pieces = &piece;
  layout.count = 0;
  REFUSED;
  layout.count = RDMA_MSG_MAX_PARTS + 1;
  REFUSED;
  layout.kind = RDMA_MSG_STRIDED;
  layout.count = 2;
  layout.block = 8;
  layout.stride = 4;
  REFUSED; /* no base */
  layout.base = &byte;
  REFUSED; /* blocks that overlap */
  layout.stride = SIZE_MAX;
  REFUSED;
  layout.struct_size = 3;
  REFUSED;
  options.layout = NULL;
  options.header_len = 1;
  REFUSED;
  options.header = &byte;
  options.header_len = RDMA_MSG_MAX_HEADER + 1;
  REFUSED;
  options.header_len = 0;
  options.device = UINT32_MAX;
  CHECK_BAD(RDMA_NOT_FOUND, rdma_msg_isend(p.a, to_b, COMM, 1, &byte, 1, &options, NULL));
}

static const test_case cases[] = {
    CASE(each_pair_of_layouts), CASE(each_pair_of_layouts_to_oneself), CASE(with_checksums), CASE(truncation),
    CASE(cancellation), CASE(memory_that_goes), CASE(headers), CASE(parts), CASE(errors_have_texts), CASE(bad_arguments),
};
TEST_MAIN(cases)
