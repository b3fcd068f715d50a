/* Version, log, providers, statistics, metrics, trace. */
#include "messages.h"
#include <fcntl.h>
#include <pthread.h>
#include <time.h>

static void version(void) {
  char want[32];
  snprintf(want, sizeof want, "%d.%d.%d", RDMA_VERSION_MAJOR, RDMA_VERSION_MINOR, RDMA_VERSION_PATCH);
  CHECK_STR(want, rdma_version());
  CHECK_INT(RDMA_ABI_VERSION, rdma_abi_version());
}

static void code_names(void) {
  static const char *const names[] = {
      "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
      "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
      "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};
  for (int32_t i = 0; i < (int32_t)COUNT_OF(names); i++) CHECK_STR(names[i], rdma_code_name(i));
  const int32_t odd[] = {-1, 17, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < COUNT_OF(odd); i++) CHECK(rdma_code_name(odd[i]) != NULL && rdma_code_name(odd[i])[0]);
}

static void last_error(void) {
  char text[512], cut[8];
  CHECK_CODE(RDMA_INVALID_ARGUMENT, rdma_mgr_create(NULL, NULL));
  size_t n = rdma_last_error(text, sizeof text);
  CHECK_INT(strlen(text), n);
  CHECK(n > 8);
  CHECK_INT(n, rdma_last_error(cut, sizeof cut));
  CHECK_INT(7, strlen(cut));
  CHECK(strncmp(text, cut, 7) == 0);
  CHECK_INT(n, rdma_last_error(NULL, 0));
}

static void providers(void) {
  char text[4096];
  size_t len = 0;
  CHECK_OK(rdma_providers(text, sizeof text, &len));
  CHECK_INT(strlen(text), len);
  const char *wrong = json_check(text, len);
  CHECK_MSG(!wrong, "%s in %s", wrong, text);
  CHECK_HAS(text, "\"loopback\"");
  CHECK_HAS(text, "\"shm\"");
  CHECK_HAS(text, "\"tcp\"");
  CHECK_HAS(text, "\"ibverbs\"");
  CHECK_HAS(text, "\"available\"");
  CHECK_HAS(text, "\"reason\"");
  printf("    %s\n", text);
  size_t need = len;
  text[5] = '?';
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_providers(text, 4, &len));
  CHECK_INT(need, len);
  CHECK_INT('?', text[5]);
}

/* A host without an RDMA device: auto does without, and who requires one is told what to do. */
static void required_device(void) {
  char text[4096], *ib;
  rdma_mgr_options_t o;
  rdma_mgr_t *m = NULL;
  CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
  o.provider = "auto";
  CHECK_OK(rdma_mgr_create(&o, &m));
  CHECK_OK(rdma_mgr_destroy(m));
  CHECK_OK(rdma_providers(text, sizeof text, NULL));
  CHECK((ib = strstr(text, "\"ibverbs\"")) != NULL);
  if (access("/sys/class/infiniband", F_OK) == 0) return; /* it may well be available */
  CHECK_MSG(strstr(ib, "no device") || strstr(ib, "libibverbs.so.1 not found"), "%s", ib);
  setenv("RDMA_PROVIDER", "ibverbs", 1);
  CHECK_BAD(RDMA_UNAVAILABLE, rdma_mgr_create(&o, &m));
  unsetenv("RDMA_PROVIDER");
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "provider ibverbs: ");
  CHECK_HAS(text, "PORT_ACTIVE");
  CHECK_HAS(text, "RDMA_PROVIDER=auto");
}

/* A path or an address that is not text is not taken for one that is like it. */
static void an_environment_that_is_not_text(void) {
  static const char *const names[] = {"RDMA_TRACE", "RDMA_AUTH_SECRET_FILE", "RDMA_LISTEN", "RDMA_TUNING", "RDMA_PROVIDER", "RDMA_TIMEOUT_MS"};
  rdma_mgr_options_t o;
  rdma_mgr_t *m = NULL;
  CHECK_OK(rdma_mgr_options_init(&o, sizeof o));
  for (size_t i = 0; i < COUNT_OF(names); i++) {
    char text[256];
    const char *before = getenv(names[i]);
    setenv(names[i], "/tmp/\xfft", 1);
    CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_mgr_create(&o, &m));
    rdma_last_error(text, sizeof text);
    CHECK_HAS(text, names[i]);
    CHECK_HAS(text, "/tmp/\\xFFt");
    CHECK_HAS(text, "UTF-8");
    if (before) setenv(names[i], "/dev/null", 1);
    else unsetenv(names[i]);
    CHECK(before == NULL || strcmp(names[i], "RDMA_TUNING") == 0);
  }
}

static _Atomic int logged;
static void on_log(int32_t level, const char *message, size_t message_len, void *userdata) {
  CHECK(userdata == &logged);
  CHECK(level >= RDMA_LOG_ERROR && level <= RDMA_LOG_DEBUG);
  CHECK(message != NULL && message_len > 0 && message[message_len] == 0);
  atomic_fetch_add(&logged, 1);
}
static void log_callback(void) {
  CHECK_OK(rdma_set_log_callback(on_log, RDMA_LOG_DEBUG, &logged));
  setenv("RDMA_TIMEOUT_MS", "7000", 1); /* overrides an option: the log says so */
  pair p = pair_new(NULL);
  unsetenv("RDMA_TIMEOUT_MS");
  rdma_tensor_t t = tensor_of(NULL, 10, 0);
  op *s = op_send(p.b, "k", 1, &t), *r = op_recv(p.a, "beta", "k", 1, 0, NULL);
  op_wait(r, RDMA_OK);
  op_wait(s, RDMA_OK);
  CHECK_MSG(atomic_load(&logged) > 0, "nothing was logged");
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_ERROR, NULL));
  pair_end(&p); /* what was under way reached the function until here */
  int before = atomic_load(&logged);
  p = pair_new(NULL);
  pair_end(&p);
  CHECK_INT(before, atomic_load(&logged));
}

static pair traffic(void) {
  pair p = pair_new(NULL);
  static const size_t n[] = {10, 5000, 2 * MIB};
  for (size_t i = 0; i < 9; i++) {
    rdma_tensor_t t = tensor_of(NULL, n[i % 3], i);
    op *s = op_send(p.b, "k", (int64_t)i, &t), *r = op_recv(p.a, "beta", "k", (int64_t)i, i, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
  return p;
}

static void stats(void) {
  pair p = traffic();
  static char text[1 << 18];
  size_t len = 0;
  CHECK_OK(rdma_mgr_stats_json(p.a, text, sizeof text, &len));
  CHECK_INT(strlen(text), len);
  const char *wrong = json_check(text, len);
  CHECK_MSG(!wrong, "%s in %s", wrong, text);
  CHECK_HAS(text, "alpha");
  CHECK_HAS(text, "beta");
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_mgr_stats_json(p.a, text, 1, &len));
}

/* What is counted of messages: each end, once, by its code. */
static void stats_of_messages(void) {
  pair p = pair_new(NULL);
  rdma_peer_t to_b = number_of(p.a, "beta"), to_a = number_of(p.b, "alpha");
  drive(p.a);
  drive(p.b);
  /* What ends before an end knows of the connection is counted of the peer, and of no provider. */
  CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
  CHECK_OK(rdma_mgr_connect(p.b, "alpha", CONNECT_MS));
  char to[8];
  rdma_msg_options_t o;
  CHECK_OK(rdma_msg_options_init(&o, sizeof o));
  for (int i = 0; i < 3; i++) {
    rdma_msg_status_t st = {.struct_size = sizeof st};
    rdma_msg_request_t r = irecv(p.b, to_a, 1, EXACT, to, sizeof to, &st);
    CHECK_OK(rdma_msg_cancel(p.b, r));
    CHECK_INT(RDMA_CANCELLED, end_of(p.b, r, NULL).code);
    CHECK_OK(rdma_msg_send(p.a, to_b, COMM, 2, "too long for it", 15, NULL));
    CHECK_CODE(RDMA_OUT_OF_RANGE, rdma_msg_recv(p.b, to_a, COMM, 2, EXACT, to, sizeof to, NULL, &st));
    o.mode = RDMA_MSG_SYNCHRONOUS;
    o.timeout_ms = 20;
    CHECK_CODE(RDMA_DEADLINE_EXCEEDED, rdma_msg_send(p.a, to_b, COMM, 3, "abc", 3, &o));
    CHECK_OK(rdma_msg_send(p.a, to_b, COMM, 4, "abc", 3, NULL));
    CHECK_OK(rdma_msg_recv(p.b, to_a, COMM, 4, EXACT, to, sizeof to, NULL, &st));
    o.timeout_ms = 20000;
    r = irecv(p.b, to_a, 5, EXACT, to, sizeof to, &st);
    CHECK_OK(rdma_msg_send(p.a, to_b, COMM, 5, "abcd", 4, &o));
    CHECK_INT(RDMA_OK, received(p.b, r, st).code);
  }
  static char text[1 << 18];
  CHECK_OK(rdma_mgr_stats_json(p.b, text, sizeof text, NULL));
  CHECK_HAS(text, "\"completions\":{\"OK\":6,\"CANCELLED\":3,\"OUT_OF_RANGE\":3}");
  CHECK_HAS(text, "\"bytes_received\":21,");
  CHECK_OK(rdma_mgr_stats_json(p.a, text, sizeof text, NULL));
  CHECK_HAS(text, "\"completions\":{\"OK\":9,\"DEADLINE_EXCEEDED\":3}");
  CHECK_HAS(text, "\"bytes_sent\":66,");
}

static void check_metric_line(const char *line, size_t n) {
  const char *p = line, *end = line + n;
  CHECK_MSG(n > 0, "empty line in the metrics");
  if (*p == '#') {
    CHECK_MSG(n > 7 && (memcmp(p, "# HELP ", 7) == 0 || memcmp(p, "# TYPE ", 7) == 0), "%.*s", (int)n, line);
    return;
  }
  CHECK_MSG(n > 5 && memcmp(p, "rdma_", 5) == 0, "%.*s", (int)n, line);
  while (p < end && *p != ' ' && *p != '{') p++;
  if (p < end && *p == '{')
    while (p < end && *p++ != '}') {
    }
  CHECK_MSG(p < end && *p == ' ', "%.*s", (int)n, line);
  char *stop;
  strtod(p + 1, &stop);
  CHECK_MSG(stop == end && stop != p + 1, "not a number: %.*s", (int)n, line);
}

static void metrics(void) {
  pair p = traffic();
  static char text[1 << 18];
  size_t len = 0;
  CHECK_OK(rdma_mgr_metrics(p.a, text, sizeof text, &len));
  CHECK_INT(strlen(text), len);
  CHECK(len > 0 && text[len - 1] == '\n');
  for (char *line = text, *end; *line; line = end + 1) {
    end = strchr(line, '\n');
    check_metric_line(line, (size_t)(end - line));
  }
  CHECK_HAS(text, "# TYPE rdma_");
  CHECK_HAS(text, "# TYPE rdma_stale_messages_total counter\n"); /* it never falls */
  CHECK_HAS(text, "peer=\"beta\"");
  CHECK_MSG(!strstr(text, " Not described.") && !strstr(text, "documentation"), "a metric without a description: %s", text);
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_mgr_metrics(p.a, text, 1, &len));
}

/* Reads a trace's file, which goes; it must be JSON. */
static const char *trace_text(int fd, const char *path) {
  static char text[1 << 18];
  ssize_t n = read(fd, text, sizeof text - 1);
  CHECK(n > 0);
  text[n] = 0;
  const char *wrong = json_check(text, (size_t)n);
  CHECK_MSG(!wrong, "%s in %s", wrong, text);
  close(fd);
  unlink(path);
  return text;
}

static void trace(void) {
  char path[] = "/tmp/rdma-trace-XXXXXX", path_b[] = "/tmp/rdma-trace-XXXXXX";
  int fd = mkstemp(path), fd_b = mkstemp(path_b);
  CHECK(fd >= 0 && fd_b >= 0);
  pair p = pair_new(NULL);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_trace_stop(p.a));
  CHECK_OK(rdma_trace_start(p.a, path));
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_trace_start(p.a, path));
  CHECK_OK(rdma_trace_start(p.b, path_b));
  CHECK_OK(rdma_mgr_disconnect(p.a, "beta"));
  for (int i = 0; i < 5; i++) {
    rdma_tensor_t t = tensor_of(NULL, 100000, 1);
    op *s = op_send(p.b, "a \"quoted\"\n\x01\xff key", i, &t);
    op *r = op_recv(p.a, "beta", "a \"quoted\"\n\x01\xff key", i, 1, NULL);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
  }
  CHECK_OK(rdma_trace_stop(p.a));
  CHECK_OK(rdma_trace_stop(p.b));
  const char *text = trace_text(fd, path);
  CHECK_HAS(text, "\"ph\"");
  CHECK_HAS(text, "\"ts\"");
  CHECK_HAS(text, "\"recv a \\\"quoted");
  CHECK_HAS(text, "quoted");
  CHECK_HAS(text, "\"connect\"");
  text = trace_text(fd_b, path_b);
  CHECK_HAS(text, "\"send a \\\"quoted");
  CHECK_HAS(text, "quoted");
  CHECK_HAS(text, "\"step\":4");
  CHECK(rdma_trace_start(p.a, "/nonexistent folder/x") != RDMA_OK);
}

static void bad_settings(void) {
  static const char *const settings[][2] = {
      {"RDMA_PROVIDER", "carrier pigeon"}, {"RDMA_PROTOCOL", "9x"}, {"RDMA_TIMEOUT_MS", "-1"},
      {"RDMA_TIMEOUT_MS", "soon"}, {"RDMA_BUSY_POLL_US", "-3"}, {"RDMA_QP_QUEUE_DEPTH", "0"},
      {"RDMA_QP_TIMEOUT", "32"}, {"RDMA_QP_RETRY_COUNT", "8"}, {"RDMA_QP_SL", "8"}, {"RDMA_QP_MTU", "1000"},
      {"RDMA_TRAFFIC_CLASS", "256"}, {"RDMA_DEVICE_PORT", "x"}, {"RDMA_GID_INDEX", "x"},
      {"RDMA_QP_PKEY_INDEX", "65536"}, {"RDMA_LISTEN", "127.0.0.1:port"}, {"RDMA_AUTH_SECRET_FILE", "/nonexistent/file"},
      {"RDMA_LOG", "loud"},
  };
  for (size_t i = 0; i < COUNT_OF(settings); i++) {
    rdma_mgr_t *m = NULL;
    char text[512];
    setenv(settings[i][0], settings[i][1], 1);
    rdma_code_t rc = mgr_try("m", NULL, &m);
    rdma_last_error(text, sizeof text);
    unsetenv(settings[i][0]);
    CHECK_MSG(rc != RDMA_OK, "%s=%s is accepted", settings[i][0], settings[i][1]);
    CHECK_HAS(text, settings[i][0]);
    CHECK_HAS(text, settings[i][1]);
  }
}

/* ---- who, when and what ---- */
static char lines[65536];
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER; /* two managers log at once */
static void keep_log(int32_t level, const char *message, size_t len, void *userdata) {
  (void)level, (void)userdata;
  CHECK(pthread_mutex_lock(&lines_lock) == 0);
  size_t at = strlen(lines);
  if (at + len + 2 < sizeof lines) snprintf(lines + at, sizeof lines - at, "%s\n", message);
  CHECK(pthread_mutex_unlock(&lines_lock) == 0);
}

static rdma_response_t owed;
static _Atomic int owing;
static void owe(rdma_mgr_t *m, rdma_response_t id, const char *peer, size_t peer_len, const char *key, size_t key_len,
                int64_t step, void *userdata) {
  (void)m, (void)peer, (void)peer_len, (void)key, (void)key_len, (void)step, (void)userdata;
  owed = id;
  atomic_store(&owing, 1);
}

/* What one receive, which the source refuses, leaves in a trace. */
static const char *traced_receive(pair *p) {
  char path[] = "/tmp/rdma-c-trace-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0);
  CHECK_OK(rdma_trace_start(p->b, path));
  atomic_store(&owing, 0);
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  op *r = op_recv_call(&(recv_call){.mgr = p->a, .peer = "beta", .key = "layer1/w", .step = 3});
  CHECK(count_reached(&owing, 1, 20000));
  CHECK_OK(rdma_response_fail(p->b, owed, RDMA_NOT_FOUND, "none", 4));
  op_wait(r, RDMA_NOT_FOUND);
  CHECK_OK(rdma_trace_stop(p->b));
  static char text[1 << 20];
  ssize_t n = read(fd, text, sizeof text - 1);
  CHECK(n > 0);
  text[n] = 0;
  CHECK(json_check(text, (size_t)n) == NULL);
  close(fd);
  unlink(path);
  return text;
}

static void r26_log_lines_and_spans_name_who_and_what(void) {
  CHECK_OK(rdma_set_log_callback(keep_log, RDMA_LOG_INFO, NULL));
  pair p = pair_new(NULL);
  CHECK_OK(rdma_mgr_set_source(p.b, owe, NULL));
  drive(p.b); /* who calls rdma_mgr_progress sleeps by itself: only a wait of the library's is in its trace */
  const char *text = NULL;
  /* A busy machine lets a progress thread look for work all the while: it sleeps in one of many traces. */
  for (int i = 0; i < 500 && (!text || !strstr(text, "\"sleep\"")); i++) {
    text = traced_receive(&p);
    CHECK_HAS(text, "\"source layer1/w\"");
    CHECK_HAS(text, "\"source callback layer1/w\"");
    CHECK_HAS(text, "\"NOT_FOUND\"");
  }
  CHECK_HAS(text, "\"sleep\"");
  pair_end(&p);
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_WARN, NULL));
  CHECK_HAS(lines, "alpha: connected to peer 'beta'");
}

static void a_slip_in_a_variable_is_told(void) {
  CHECK_OK(rdma_set_log_callback(keep_log, RDMA_LOG_WARN, NULL));
  CHECK(setenv("RDMA_PROVDER", "tcp", 1) == 0 && setenv("RDMA_OF_SOMEBODY_ELSE", "1", 1) == 0);
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  CHECK(unsetenv("RDMA_PROVDER") == 0 && unsetenv("RDMA_OF_SOMEBODY_ELSE") == 0);
  mgr_end(m);
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_WARN, NULL));
  CHECK_HAS(lines, "alpha: RDMA_PROVDER is no setting; is RDMA_PROVIDER meant?");
  CHECK(!strstr(lines, "SOMEBODY_ELSE"));
}

/* What the pipe had, which is empty then. */
static const char *drained(int fd) {
  static char text[1 << 18];
  size_t at = 0;
  for (ssize_t n; at < sizeof text - 1 && (n = read(fd, text + at, sizeof text - 1 - at)) > 0;) at += (size_t)n;
  text[at] = 0;
  return text;
}

static void warn_once(void) {
  CHECK(setenv("RDMA_PROVDER", "tcp", 1) == 0);
  rdma_mgr_t *m = mgr_new("alpha", NULL);
  CHECK(unsetenv("RDMA_PROVDER") == 0);
  mgr_end(m);
}

/* A terminal that is stopped, a pager: a manager that waited for it would keep no deadline. */
static void a_stderr_that_nobody_reads_holds_nothing_up(void) {
  int ends[2], kept = dup(2);
  static const char full[4096] = {0};
  CHECK(kept >= 0 && pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
  CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  while (write(ends[1], full, sizeof full) > 0) {
  }
  CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], 2) == 2);
  warn_once();
  warn_once();
  (void)drained(ends[0]);
  warn_once();
  CHECK(dup2(kept, 2) == 2);
  const char *text = drained(ends[0]);
  CHECK_HAS(text, "warn: 2 lines were left out, since nobody read stderr\n");
  CHECK_HAS(text, "RDMA_PROVDER is no setting");
  close(kept), close(ends[0]), close(ends[1]);
}

static void only_shm(rdma_mgr_options_t *o) { o->provider = "shm"; }
static void only_tcp(rdma_mgr_options_t *o) { o->provider = "tcp"; }

static void r26_not_offered_says_by_whose_word(void) {
  CHECK(setenv("RDMA_PROVIDER", "tcp", 1) == 0);
  rdma_mgr_t *b = mgr_new("beta", only_shm);
  CHECK(unsetenv("RDMA_PROVIDER") == 0);
  rdma_mgr_t *a = mgr_new("alpha", only_shm), *c = mgr_new("gamma", only_tcp);
  char address[256], text[1024];
  mgr_listen(b, address);
  CHECK_OK(rdma_mgr_add_peer(a, "beta", address));
  drive(b);
  CHECK_BAD(RDMA_FAILED_PRECONDITION, rdma_mgr_connect(a, "beta", 20000));
  rdma_last_error(text, sizeof text);
  CHECK_HAS(text, "not offered, RDMA_PROVIDER is tcp (at 'beta')");
  CHECK_HAS(text, "not offered, options.provider is shm (at 'alpha')");
  CHECK_OK(rdma_mgr_add_peer(c, "beta", address));
  CHECK_OK(rdma_mgr_connect(c, "beta", CONNECT_MS));
  mgr_end(a);
  mgr_end(b);
  mgr_end(c);
}

static const test_case cases[] = {CASE(version), CASE(code_names), CASE(last_error), CASE(providers), CASE(required_device),
                                  CASE(an_environment_that_is_not_text), CASE(log_callback), CASE(a_slip_in_a_variable_is_told),
                                  CASE(a_stderr_that_nobody_reads_holds_nothing_up), CASE(stats), CASE(stats_of_messages), CASE(metrics),
                                  CASE(trace), CASE(bad_settings),
                                  CASE(r26_log_lines_and_spans_name_who_and_what),
                                  CASE(r26_not_offered_says_by_whose_word),
};
TEST_MAIN(cases)
