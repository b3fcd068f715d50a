/* The file of sizes by provider: read, refused, overridden, and written by rdma_tune. */
#include "harness.h"
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char path[400];

static void put_file(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put_file(const char *format, ...) {
  va_list args;
  if (!path[0]) snprintf(path, sizeof path, "/tmp/rdma-tuning-%d", (int)getpid());
  FILE *f = fopen(path, "w");
  CHECK(f != NULL);
  va_start(args, format);
  vfprintf(f, format, args);
  va_end(args);
  CHECK(fclose(f) == 0);
  CHECK(setenv("RDMA_TUNING", path, 1) == 0);
}

/* The largest eager content of a connection. */
static uint64_t eager_max(tweak_fn tweak) {
  pair p = pair_new(tweak);
  rdma_peer_info_t info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  drive(p.b);
  CHECK_OK(rdma_mgr_connect(p.a, "beta", CONNECT_MS));
  CHECK_OK(rdma_mgr_peer_info(p.a, "beta", &info));
  drive_stop(p.b);
  pair_end(&p);
  return info.eager_max;
}

static void five_hundred(rdma_mgr_options_t *o) { o->eager_max = 500; }

static void a_file_sets_the_sizes_of_its_provider(void) {
  uint64_t built_in = eager_max(NULL);
  put_file("# of two\n%s.eager_limit = 3000 # bytes\n", env.provider);
  CHECK_INT(3000, eager_max(NULL));
  /* What the application says goes before, and what the environment says before that. */
  CHECK_INT(500, eager_max(five_hundred));
  CHECK(setenv("RDMA_EAGER_LIMIT", "700", 1) == 0);
  CHECK_INT(700, eager_max(five_hundred));
  CHECK(unsetenv("RDMA_EAGER_LIMIT") == 0);
  put_file("%s.eager_limit = 3000\n", is_provider("shm") ? "tcp" : "shm");
  CHECK_INT(built_in, eager_max(NULL));
  remove(path);
}

static void content_goes_by_the_sizes(void) {
  if (env.protocol != RDMA_PROTOCOL_AUTO) return;
  put_file("%s.eager_limit = 3000\n", env.provider);
  pair p = pair_new(NULL);
  for (int64_t i = 0; i < 4; i++) {
    size_t n = 3000 + (size_t)i % 2;
    rdma_tensor_t t = tensor_of(NULL, n, 1);
    rdma_recv_options_t o = recv_options();
    o.dst = scratch(n);
    o.dst_len = n;
    op *s = op_send(p.b, "k", i, &t), *r = op_recv(p.a, "beta", "k", i, 1, &o);
    op_wait(r, RDMA_OK);
    op_wait(s, RDMA_OK);
    CHECK_INT(i % 2 ? RDMA_PROTOCOL_DIRECT_PUT : RDMA_PROTOCOL_EAGER, r->info.protocol);
  }
  remove(path);
}

static void a_wrong_file_is_named(void) {
  rdma_mgr_t *m;
  char why[512];
  put_file("tcp.eager_limit = 1\n\nshm.eager_limit = many\n");
  CHECK_BAD(RDMA_INVALID_ARGUMENT, mgr_try("alone", NULL, &m));
  rdma_last_error(why, sizeof why);
  CHECK_HAS(why, "RDMA_TUNING: ");
  CHECK_HAS(why, path);
  CHECK_HAS(why, ":3: \"shm.eager_limit = many\"");
  CHECK_HAS(why, "0 to 1073741824");
  remove(path);
  CHECK_BAD(RDMA_NOT_FOUND, mgr_try("alone", NULL, &m));
  rdma_last_error(why, sizeof why);
  CHECK_HAS(why, path);
}

static _Atomic int warned;
static void hear(int32_t level, const char *message, size_t len, void *userdata) {
  (void)len, (void)userdata;
  if (level == RDMA_LOG_WARN && strstr(message, "rdma-transport/tuning:1: \"nonsense\"")) warned++;
}

/* One that nobody named does not keep a program from running. */
static void a_wrong_file_of_the_user_is_a_warning(void) {
  char dir[64], sub[100];
  snprintf(dir, sizeof dir, "/tmp/rdma-config-%d", (int)getpid());
  snprintf(sub, sizeof sub, "%s/rdma-transport", dir);
  CHECK(mkdir(dir, 0700) == 0 && mkdir(sub, 0700) == 0);
  snprintf(path, sizeof path, "%s/rdma-transport/tuning", dir);
  put_file("nonsense");
  CHECK(unsetenv("RDMA_TUNING") == 0);
  CHECK(setenv("XDG_CONFIG_HOME", dir, 1) == 0);
  CHECK_OK(rdma_set_log_callback(hear, RDMA_LOG_WARN, NULL));
  mgr_end(mgr_new("alone", NULL));
  CHECK(warned > 0);
  CHECK_OK(rdma_set_log_callback(NULL, RDMA_LOG_WARN, NULL));
  put_file("%s.eager_limit = 3000\n", env.provider);
  CHECK(unsetenv("RDMA_TUNING") == 0);
  CHECK_INT(3000, eager_max(NULL));
  remove(path), rmdir(sub), rmdir(dir);
}

/* What rdma_tune writes is what the library takes. */
static void rdma_tune_writes_such_a_file(void) {
  char command[1024], line[256];
  if (!is_provider("shm") && !is_provider("tcp")) return; /* of two processes on this machine */
  uint64_t built_in = eager_max(NULL), limit = 0;
  put_file("%s", "");
  snprintf(command, sizeof command, "'%s' --quick --provider %s --output '%s' 2>&1", RDMA_TUNE, env.provider, path);
  FILE *out = popen(command, "r");
  CHECK(out != NULL);
  while (fgets(line, sizeof line, out)) fputs(line, stdout);
  int status = pclose(out);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rdma_tune ended with status %#x", (unsigned)status);
  FILE *f = fopen(path, "r");
  CHECK(f != NULL);
  char set[64], measured[64];
  snprintf(set, sizeof set, "%s.eager_limit = ", env.provider);
  snprintf(measured, sizeof measured, "# %s, eager and put", env.provider);
  int figures = 0;
  while (fgets(line, sizeof line, f)) {
    figures += !strncmp(line, measured, strlen(measured));
    if (!strncmp(line, set, strlen(set))) limit = strtoull(line + strlen(set), NULL, 10);
  }
  fclose(f);
  CHECK_INT(1, figures);
  CHECK_INT(limit ? limit : built_in, eager_max(NULL));
  remove(path);
}

static void rdma_tune_names_wrong_arguments(void) {
  static const char *const wrong[][2] = {
      {"--provider rdma", "allowed are shm, tcp and ibverbs, not 'rdma'"},
      {"--output", "a value is missing behind '--output'"},
      {"quick", "not an argument: 'quick'"},
  };
  for (size_t i = 0; i < COUNT_OF(wrong); i++) {
    char command[512], said[4096];
    snprintf(command, sizeof command, "'%s' %s 2>&1", RDMA_TUNE, wrong[i][0]);
    FILE *out = popen(command, "r");
    CHECK(out != NULL);
    said[fread(said, 1, sizeof said - 1, out)] = 0;
    int status = pclose(out);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 2, "status %#x", (unsigned)status);
    CHECK_HAS(said, wrong[i][1]);
  }
}

/* Before it measures. */
static void rdma_tune_says_first_that_it_cannot_write(void) {
  static const char *const wrong[] = {"/nonexistent/tuning", "/tmp"};
  for (size_t i = 0; i < COUNT_OF(wrong); i++) {
    char command[512], said[4096];
    snprintf(command, sizeof command, "'%s' --quick --output %s 2>&1", RDMA_TUNE, wrong[i]);
    FILE *out = popen(command, "r");
    CHECK(out != NULL);
    said[fread(said, 1, sizeof said - 1, out)] = 0;
    int status = pclose(out);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %#x", (unsigned)status);
    CHECK_HAS(said, "rdma_tune: cannot write '");
    CHECK_HAS(said, wrong[i]);
    CHECK_MSG(!strstr(said, "eager takes"), "it has measured: %s", said);
  }
}

static const test_case cases[] = {
    CASE(a_file_sets_the_sizes_of_its_provider), CASE(content_goes_by_the_sizes), CASE(a_wrong_file_is_named),
    CASE(a_wrong_file_of_the_user_is_a_warning), SLOW(rdma_tune_writes_such_a_file, 300),
    CASE(rdma_tune_names_wrong_arguments), CASE(rdma_tune_says_first_that_it_cannot_write),
};
TEST_MAIN(cases)
