/* A thread that ends inside a callback (pthread_exit, cancellation, an interpreter that ends): what the library was at goes on,
 * and the thread ends where its call does; one of the library stays. Each case is a process of its own, since it is about how one ends. */
#include "messages.h"
#include <pthread.h>
#include <setjmp.h>

/* ---- leaving ---- */
static _Atomic int came, leaving; /* callbacks that ran; those that were left */
static int way;                   /* 0: pthread_exit; 1: cancellation; 2: longjmp, which nobody may */
static pthread_t left_thread;     /* which it was */
static _Thread_local bool stays;  /* this one leaves none */
static _Thread_local jmp_buf out; /* of the call */
static _Thread_local bool jumps;  /* it is set */
static char result;               /* what it ends with, by its address */

static void told(void *unused) {
  (void)unused;
  atomic_fetch_add(&leaving, 1);
}

/* Ends this thread, once in the process. What is the application's is unwound. */
static void leave(void) {
  if (stays || (way == 2 && !jumps) || atomic_fetch_add(&came, 1) > 0) return;
  left_thread = pthread_self();
  if (way == 2) {
    told(NULL);
    longjmp(out, 1);
  }
  pthread_cleanup_push(told, NULL);
  if (way == 0) pthread_exit(&result);
  (void)pthread_cancel(pthread_self());
  pthread_testcancel();
  pthread_cleanup_pop(0);
  fprintf(stderr, "the thread goes on\n");
  _exit(5);
}

static void on_send(rdma_code_t code, const char *text, size_t len, const rdma_transfer_info_t *info, void *userdata) {
  (void)code, (void)text, (void)len, (void)info, (void)userdata;
  leave();
}
static void on_recv(rdma_code_t code, const char *text, size_t len, const rdma_tensor_t *t, const rdma_transfer_info_t *info,
                    void *userdata) {
  (void)code, (void)text, (void)len, (void)t, (void)info, (void)userdata;
  leave();
}
static void ignore_recv(rdma_code_t code, const char *text, size_t len, const rdma_tensor_t *t, const rdma_transfer_info_t *info,
                        void *userdata) {
  (void)code, (void)text, (void)len, (void)t, (void)info, (void)userdata;
}
static void *on_alloc(const rdma_tensor_t *meta, void *userdata) {
  (void)meta, (void)userdata;
  leave();
  return NULL;
}
static void on_source(rdma_mgr_t *mgr, rdma_response_t response, const char *peer, size_t peer_len, const char *key, size_t key_len,
                      int64_t step, void *userdata) {
  (void)mgr, (void)response, (void)peer, (void)peer_len, (void)key, (void)key_len, (void)step, (void)userdata;
  leave();
}
static void on_peer(rdma_mgr_t *mgr, int32_t event, const char *peer, size_t peer_len, rdma_code_t code, const char *text,
                    size_t text_len, void *userdata) {
  (void)mgr, (void)event, (void)peer, (void)peer_len, (void)code, (void)text, (void)text_len, (void)userdata;
  leave();
}
static void on_message(const rdma_msg_status_t *status, void *userdata) {
  (void)status, (void)userdata;
  leave();
}
static uint32_t on_active(rdma_mgr_t *mgr, const rdma_msg_status_t *status, const void *data, void *userdata) {
  (void)mgr, (void)status, (void)data, (void)userdata;
  leave();
  return RDMA_MSG_HANDLED;
}
static void on_room(rdma_code_t code, uint64_t bytes, void *userdata) {
  (void)code, (void)bytes, (void)userdata;
  leave();
}
static void on_buffer(rdma_buffer_t buffer, uint32_t event, rdma_code_t code, const char *text, void *userdata) {
  (void)buffer, (void)event, (void)code, (void)text, (void)userdata;
  leave();
}
static void on_copy(void *to, const void *from, uint64_t n, rdma_copy_done_fn done, void *token, void *userdata) {
  (void)to, (void)from, (void)n, (void)done, (void)token, (void)userdata;
  leave();
}
static rdma_code_t on_set(const char *key, size_t key_len, const void *value, size_t len, int64_t timeout, void *userdata) {
  (void)key, (void)key_len, (void)value, (void)len, (void)timeout, (void)userdata;
  leave();
  return RDMA_OK;
}
static rdma_code_t on_get(const char *key, size_t key_len, int64_t timeout, rdma_store_give_fn give, void *token, void *userdata) {
  (void)key, (void)key_len, (void)timeout, (void)give, (void)token, (void)userdata;
  return RDMA_NOT_FOUND;
}
static void on_log(int32_t level, const char *text, size_t len, void *userdata) {
  (void)level, (void)len, (void)userdata;
  if (strstr(text, "beta")) leave();
}

/* ---- what leads to each callback; all are of beta ---- */
typedef enum kind { RECV, SEND, ALLOC, SOURCE, PEER, MESSAGE, HANDLER, ROOM, BUFFER, COPY, LOG, STORE, KINDS } kind;
static const char *const names[KINDS] = {"recv", "send",    "alloc", "source", "peer", "message",
                                         "handler", "room", "buffer", "copy",   "log",  "store"};
static kind which;
static rdma_mgr_t *a, *b;

static void options_of_beta(rdma_mgr_options_t *options) {
  if (which == SOURCE) options->source = on_source;
  if (which == PEER) options->peer_event = on_peer;
}

static void send_from(rdma_mgr_t *mgr, rdma_send_done_fn done) {
  static const char content[] = "content";
  rdma_tensor_t t = {.struct_size = sizeof t, .data = content, .nbytes = sizeof content};
  CHECK_OK(rdma_send(mgr, "k", 1, 1, &t, NULL, done, NULL));
}

static void receive(rdma_mgr_t *mgr, const char *peer, const rdma_recv_options_t *options, rdma_recv_done_fn done) {
  CHECK_OK(rdma_recv_async(mgr, peer, "k", 1, 1, options, done, NULL, NULL));
}

static void fill_a_slot(void) {
  static char from[8], to[8];
  rdma_pair_t pa, pb;
  rdma_buffer_t out, in;
  uint8_t at_a[RDMA_PAIR_ADDRESS_MAX], at_b[RDMA_PAIR_ADDRESS_MAX];
  size_t len_a = 0, len_b = 0;
  CHECK_OK(rdma_pair_create(a, 0, 0, &pa));
  CHECK_OK(rdma_pair_create(b, 1, 0, &pb));
  CHECK_OK(rdma_pair_address(a, pa, at_a, sizeof at_a, &len_a));
  CHECK_OK(rdma_pair_address(b, pb, at_b, sizeof at_b, &len_b));
  CHECK_OK(rdma_pair_connect(a, pa, at_b, len_b, 0));
  CHECK_OK(rdma_pair_connect(b, pb, at_a, len_a, 0));
  CHECK_OK(rdma_buffer_create_recv(b, pb, 1, to, sizeof to, on_buffer, NULL, &in));
  CHECK_OK(rdma_buffer_create_send(a, pa, 1, from, sizeof from, NULL, NULL, &out));
  CHECK_OK(rdma_buffer_send(a, out, 0, sizeof from, 0));
}

static void copy_to_a_device(void) {
  static char memory[64];
  uint32_t device = 0;
  rdma_device_ops_t ops = {.struct_size = sizeof ops, .copy_to_host = on_copy, .copy_from_host = on_copy};
  CHECK_OK(rdma_mgr_register_device(b, &ops, NULL, &device));
  rdma_recv_options_t options = {.struct_size = sizeof options, .timeout_ms = 60000, .dst = memory, .dst_len = sizeof memory, .device = device};
  receive(b, "alpha", &options, ignore_recv);
  send_from(a, NULL);
}

static void set_a_key(void) {
  rdma_store_t *store = NULL;
  rdma_store_ops_t ops = {.struct_size = sizeof ops, .set = on_set, .get = on_get};
  CHECK_OK(rdma_store_custom(&ops, NULL, NULL, &store));
  (void)rdma_store_set(store, "k", 1, "v", 1, 1000);
}

static void provoke(void) {
  static char to[8];
  rdma_recv_options_t allocating = {.struct_size = sizeof allocating, .timeout_ms = 60000, .alloc = on_alloc};
  rdma_msg_options_t telling = {.struct_size = sizeof telling, .done = on_message};
  rdma_msg_request_t request;
  rdma_msg_status_t status = {.struct_size = sizeof status};
  switch (which) {
    case RECV: receive(b, "alpha", NULL, on_recv), send_from(a, NULL); break;
    case SEND: receive(a, "beta", NULL, ignore_recv), send_from(b, on_send); break;
    case ALLOC: receive(b, "alpha", &allocating, ignore_recv), send_from(a, NULL); break;
    case SOURCE: receive(a, "beta", NULL, ignore_recv); break;
    case PEER: CHECK_OK(rdma_mgr_connect(a, "beta", 0)); break;
    case MESSAGE:
      CHECK_OK(rdma_msg_irecv(b, number_of(b, "alpha"), 1, 1, RDMA_MSG_TAG_MASK, to, sizeof to, &telling, &status, &request));
      CHECK_OK(rdma_msg_isend(a, number_of(a, "beta"), 1, 1, "message", 8, NULL, &request));
      break;
    case HANDLER:
      CHECK_OK(rdma_msg_handler(b, 7, on_active, NULL));
      CHECK_OK(rdma_msg_am_isend(a, number_of(a, "beta"), 7, 1, "message", 8, NULL, &request));
      break;
    case ROOM: CHECK_OK(rdma_msg_on_room(b, number_of(b, "alpha"), 100, on_room, NULL)); break;
    case BUFFER: fill_a_slot(); break;
    case COPY: copy_to_a_device(); break;
    case LOG:
      CHECK_OK(rdma_set_log_callback(on_log, RDMA_LOG_INFO, NULL));
      CHECK_OK(rdma_mgr_connect(a, "beta", 0));
      break;
    case STORE: set_a_key(); break;
    case KINDS: break;
  }
}

/* The thread that is left, where it is none of the library. In manual mode it drives, as a runtime's own thread does. */
static _Atomic int unwound;
static void unwinds(void *unused) {
  (void)unused;
  atomic_fetch_add(&unwound, 1);
}
static void *worker(void *unused) {
  pthread_cleanup_push(unwinds, NULL);
  provoke();
  while (is_manual() && atomic_load(&leaving) == 0) {
    (void)rdma_mgr_wait(a, 1);
    (void)rdma_mgr_wait(b, 1);
  }
  /* Not reached by a thread that has left. */
  if (is_manual()) _exit(7);
  pthread_cleanup_pop(0);
  return unused;
}

static void destroy_both(void) {
  rdma_code_t codes[2] = {rdma_mgr_destroy(b), rdma_mgr_destroy(a)};
  char text[300] = "";
  if (codes[0] == RDMA_OK && codes[1] == RDMA_OK) return;
  (void)rdma_last_error(text, sizeof text);
  fprintf(stderr, "beta's end: %s, alpha's: %s, %s\n", rdma_code_name(codes[0]), rdma_code_name(codes[1]), text);
  _exit(6);
}

/* Of a thread of the application: it has ended, as it was about to, with what is the application's outside of the call unwound, too. */
static void ends_as_it_was_about_to(pthread_t thread) {
  void *value = NULL;
  CHECK(pthread_join(thread, &value) == 0);
  if (!pthread_equal(thread, left_thread)) return;
  CHECK_MSG(value == (way == 0 ? (void *)&result : PTHREAD_CANCELED), "it ended with %p", value);
  CHECK(atomic_load(&unwound) == 1);
}

/* Arguments: the callback, how it is left, and what the main thread does then: 0 returns, 1 destroys first, 2 destroys in a
 * handler of exit. */
static int left_role(int argc, char **argv) {
  pthread_t thread;
  if (argc < 3) return 2;
  for (which = 0; which < KINDS && strcmp(names[which], argv[0]) != 0;) which++;
  way = atoi(argv[1]);
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_ERROR, NULL)); /* not a warning for each */
  a = mgr_new("alpha", NULL);
  b = mgr_new("beta", options_of_beta);
  char at_a[256], at_b[256];
  mgr_listen(a, at_a), mgr_listen(b, at_b);
  CHECK_OK(rdma_mgr_add_peer(a, "beta", at_b));
  CHECK_OK(rdma_mgr_add_peer(b, "alpha", at_a));
  if (argv[2][0] == '2') CHECK(atexit(destroy_both) == 0);
  CHECK(pthread_create(&thread, NULL, worker, NULL) == 0);
  while (atomic_load(&leaving) == 0) usleep(100);
  if (argv[2][0] != '0') ends_as_it_was_about_to(thread);
  if (argv[2][0] == '1') destroy_both();
  if (argc > 3) usleep((useconds_t)atoi(argv[3]));
  return 0;
}

static void ends(kind k, int how, int then, int us) {
  char numbers[3][16];
  snprintf(numbers[0], 16, "%d", how), snprintf(numbers[1], 16, "%d", then), snprintf(numbers[2], 16, "%d", us);
  proc *p = proc_start("left", (const char *const[]){names[k], numbers[0], numbers[1], numbers[2], NULL});
  int status = proc_finish(p);
  CHECK_MSG(status == 0, "%s, way %d, then %d after %d us: the process ended with %d", names[k], how, then, us, status);
}

static void r04_a_process_ends_after_a_thread_that_left_a_callback(void) {
  unsigned seed = (unsigned)now_ms();
  printf("    seed %u\n", seed);
  for (int k = 0; k < KINDS; k++)
    for (int how = 0; how < 2; how++) ends((kind)k, how, 0, rand_r(&seed) % 20000);
}

static void r04_a_manager_ends_after_a_thread_that_left_a_callback(void) {
  for (int k = 0; k < KINDS; k++) ends((kind)k, k % 2, 1, 0);
}

static void r04_so_it_does_in_a_handler_of_exit(void) {
  for (int k = 0; k < KINDS; k++) ends((kind)k, (k + 1) % 2, 2, 0);
}

/* Each of several callbacks ends its thread, and has two handlers, of which the inner one has gone when the outer one runs. (The C library
 * keeps the handlers of C in a list through the stack, and a thread that stays must not be left with those of its callbacks.) */
enum { OFTEN = 8 };
static _Atomic int inner, outer;
static void counts(void *counter) { atomic_fetch_add((_Atomic int *)counter, 1); }
__attribute__((noinline)) static void leave_deeply(void) {
  volatile char used[4096]; /* the inner handler lies far below the outer one, where it is overwritten soon */
  memset((char *)used, 1, sizeof used);
  pthread_cleanup_push(counts, &inner);
  pthread_exit(&result);
  pthread_cleanup_pop(0);
}
static void on_each(const rdma_msg_status_t *status, void *userdata) {
  (void)status, (void)userdata;
  atomic_fetch_add(&came, 1);
  pthread_cleanup_push(counts, &outer);
  leave_deeply();
  pthread_cleanup_pop(0);
}
static void *drives_once(void *unused) {
  pthread_cleanup_push(unwinds, NULL);
  for (int i = 0; i < 100; i++) (void)rdma_mgr_wait(b, 10);
  pthread_cleanup_pop(0);
  return unused;
}

static int often_role(int argc, char **argv) {
  (void)argv;
  if (argc != 0) return 2;
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_ERROR, NULL));
  b = mgr_new("beta", NULL);
  static char to[OFTEN][8];
  rdma_peer_t self = number_of(b, "beta");
  rdma_msg_options_t options = {.struct_size = sizeof options, .done = on_each};
  for (int i = 0; i < OFTEN; i++) CHECK_OK(rdma_msg_irecv(b, self, 1, (uint64_t)i, RDMA_MSG_TAG_MASK, to[i], 8, &options, NULL, NULL));
  for (int i = 0; i < OFTEN; i++) CHECK_OK(rdma_msg_isend(b, self, 1, (uint64_t)i, "message", 8, NULL, NULL));
  for (int ends = 1; is_manual() && atomic_load(&came) < OFTEN; ends++) {
    pthread_t thread;
    void *value = NULL;
    CHECK(pthread_create(&thread, NULL, drives_once, NULL) == 0 && pthread_join(thread, &value) == 0);
    CHECK_MSG(value == &result && atomic_load(&unwound) == ends, "it ended with %p, %d handlers of its own", value, atomic_load(&unwound));
  }
  while (atomic_load(&outer) < OFTEN) usleep(100);
  CHECK_INT(OFTEN, atomic_load(&inner));
  CHECK_INT(OFTEN, atomic_load(&came));
  CHECK_OK(rdma_mgr_destroy(b));
  return 0;
}

static void r04_a_thread_leaves_several_callbacks_that_have_handlers(void) {
  for (int i = 0; i < 5; i++) {
    int status = proc_finish(proc_start("often", (const char *const[]){NULL}));
    CHECK_MSG(status == 0, "the process ended with %d", status);
  }
}

/* Who drives leaves a callback, and others that wait go on: one has a deadline, one waits for what comes later. */
static double waited;
static void *has_a_deadline(void *unused) {
  char to[8];
  rdma_msg_options_t options = {.struct_size = sizeof options, .timeout_ms = 1000};
  double begun = now_ms();
  stays = true;
  rdma_code_t code = rdma_msg_recv(b, RDMA_PEER_ANY, 1, 1, RDMA_MSG_TAG_MASK, to, sizeof to, &options, NULL);
  waited = now_ms() - begun;
  CHECK(code == RDMA_DEADLINE_EXCEEDED);
  return unused;
}
static void *waits_for_more(void *unused) {
  char to[8] = "";
  stays = true;
  CHECK_OK(rdma_msg_recv(b, RDMA_PEER_ANY, 2, 1, RDMA_MSG_TAG_MASK, to, sizeof to, NULL, NULL));
  CHECK(strcmp(to, "later") == 0);
  return unused;
}
static void *drives(void *unused) {
  pthread_cleanup_push(unwinds, NULL);
  jumps = true;
  if (setjmp(out) == 0)
    for (;;) (void)rdma_mgr_wait(b, 10000);
  pthread_cleanup_pop(0);
  return unused;
}

static int seat_role(int argc, char **argv) {
  pthread_t all[3];
  rdma_msg_request_t request;
  char at_b[256];
  if (argc != 1) return 2;
  way = atoi(argv[0]);
  a = mgr_new("alpha", NULL);
  b = mgr_new("beta", NULL);
  mgr_listen(b, at_b);
  CHECK_OK(rdma_mgr_add_peer(a, "beta", at_b));
  CHECK_OK(rdma_msg_handler(b, 7, on_active, NULL));
  CHECK(pthread_create(&all[0], NULL, drives, NULL) == 0);
  /* It has come back from the wait in which the peer came, and drives before the others are there. */
  CHECK_OK(rdma_mgr_connect(a, "beta", 10000));
  usleep(50000);
  CHECK(pthread_create(&all[1], NULL, has_a_deadline, NULL) == 0);
  CHECK(pthread_create(&all[2], NULL, waits_for_more, NULL) == 0);
  usleep(20000);
  while (atomic_load(&leaving) == 0) {
    CHECK_OK(rdma_msg_am_isend(a, number_of(a, "beta"), 7, 1, "message", 8, NULL, &request));
    if (is_manual()) CHECK_OK(rdma_mgr_progress(a, NULL));
    usleep(1000);
  }
  /* In thread mode the thread that has left may be one of the library, and who drives here goes on. */
  if (!pthread_equal(left_thread, all[0])) CHECK(!is_manual());
  CHECK_OK(rdma_msg_send(a, number_of(a, "beta"), 2, 1, "later", 6, NULL));
  for (int i = 1; i < 3; i++) CHECK(pthread_join(all[i], NULL) == 0);
  CHECK_MSG(waited >= 990 && waited < 5000, "%.0f ms in place of 1000", waited);
  if (way == 2) _exit(0); /* the manager of such a thread does not end */
  if (pthread_equal(left_thread, all[0])) ends_as_it_was_about_to(all[0]);
  destroy_both();
  return 0;
}

static void others_go_on(int how) {
  char number[2] = {(char)('0' + how), 0};
  proc *p = proc_start("seat", (const char *const[]){number, NULL});
  int status = proc_finish(p);
  CHECK_MSG(status == 0, "way %d: the process ended with %d", how, status);
}

static void r01_others_go_on_after_a_thread_that_left_a_callback(void) {
  for (int how = 0; how < 2; how++) others_go_on(how), others_go_on(how);
}

/* Ruby ends its threads so, a callback or not. */
static void r01_others_go_on_after_a_thread_that_was_taken_out_of_a_callback(void) {
  others_go_on(2);
}

static const test_case cases[] = {
    SLOW(r01_others_go_on_after_a_thread_that_left_a_callback, 60),
    SLOW(r01_others_go_on_after_a_thread_that_was_taken_out_of_a_callback, 60),
    SLOW(r04_a_process_ends_after_a_thread_that_left_a_callback, 180),
    SLOW(r04_a_manager_ends_after_a_thread_that_left_a_callback, 180),
    SLOW(r04_so_it_does_in_a_handler_of_exit, 180),
    SLOW(r04_a_thread_leaves_several_callbacks_that_have_handlers, 60),
};
static const test_role roles[] = {{"left", left_role}, {"seat", seat_role}, {"often", often_role}};
TEST_MAIN_ROLES(cases, roles)
