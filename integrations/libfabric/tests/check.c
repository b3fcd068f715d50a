#include "check.h"
#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

int rank, ranks;
long progress;
static char name[96];
static atomic_long faults;
static uint64_t ordered;
static _Atomic uint64_t loose;
static MPI_Comm own = MPI_COMM_NULL; /* of nobody but this file */
static int limit;

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t draw(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15u); }

int below(uint64_t *state, int bound) { return (int)(draw(state) % (uint64_t)bound); }

static uint64_t digest(uint64_t start, const void *content, size_t length) {
  const unsigned char *from = content;
  uint64_t sum = start ^ mix(length + 1), word;
  for (; length >= 8; length -= 8, from += 8) {
    memcpy(&word, from, 8);
    sum = (sum ^ word) * 0x9fb21c651e98df25u;
    sum ^= sum >> 29;
  }
  word = 0;
  if (length > 0) memcpy(&word, from, length);
  return mix(sum ^ word);
}

void see(const void *content, size_t length) { ordered = digest(ordered, content, length); }
void see_number(int64_t number) { see(&number, sizeof number); }
void see_loose(const void *content, size_t length) { atomic_fetch_add(&loose, digest(1, content, length)); }

void fill(void *memory, size_t length, uint64_t key) {
  unsigned char *to = memory;
  for (size_t at = 0; at < length; at += 8) {
    uint64_t word = mix(key * 0x9e3779b97f4a7c15u + at);
    memcpy(to + at, &word, length - at < 8 ? length - at : 8);
  }
}

bool filled(const void *memory, size_t length, uint64_t key) {
  const unsigned char *from = memory;
  for (size_t at = 0; at < length; at += 8) {
    uint64_t word = mix(key * 0x9e3779b97f4a7c15u + at);
    if (memcmp(from + at, &word, length - at < 8 ? length - at : 8) != 0) return false;
  }
  return true;
}

bool all_are(const void *memory, size_t length, unsigned char value) {
  const unsigned char *from = memory;
  for (size_t i = 0; i < length; i++)
    if (from[i] != value) return false;
  return true;
}

/* Says where this rank is, from within the signal: a test that hangs shall not be silent. One that counts its steps, and is at another
   step than the last time, does not hang: the machine is slow. */
static void hangs(int number) {
  (void)number;
  static long last_seen;
  if (progress != last_seen) {
    last_seen = progress;
    alarm((unsigned)limit);
    return;
  }
  char text[160];
  int length = snprintf(text, sizeof text, "rank %d hangs in %s, after %d s, at step %ld:\n", rank, name[0] ? name : "no case", limit, progress);
  if (write(2, text, (size_t)length) < 0) _exit(8);
  void *frames[32];
  backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
  _exit(7);
}

/* Before the first case, and after the last. */
void check_open(void);
int check_close(void);

static int usual(void) {
  const char *said = getenv("MPI_TESTS_SECONDS");
  return said ? atoi(said) : 120;
}

void patience(int seconds) { alarm((unsigned)(limit = usual() + seconds)); }

/* Before MPI_Init: it ends before the patience of who started this process does. */
void check_starts(void) {
  void *frame;
  backtrace(&frame, 1); /* the first call may allocate */
  signal(SIGALRM, hangs);
  patience(-usual() / 4);
}

void check_open(void) {
  check_starts();
  patience(0);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
}

static long in_all;

void begin(const char *form, ...) {
  va_list list;
  va_start(list, form);
  vsnprintf(name, sizeof name, form, list);
  va_end(list);
  patience(0);
  atomic_store(&faults, 0);
  atomic_store(&loose, 0);
  ordered = 0;
  progress = 0;
}

void end(void) {
  uint64_t mine[2] = {mix(ordered + 3 * atomic_load(&loose)), (uint64_t)atomic_load(&faults)};
  uint64_t *all = room((size_t)ranks * sizeof mine);
  MPI_Allgather(mine, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, own); /* nobody goes on before all have come here */
  if (rank == 0) {
    uint64_t wrong = 0;
    for (int i = 0; i < ranks; i++) wrong += all[2 * i + 1];
    printf("%s %s:", wrong ? "FAILED" : "case", name);
    for (int i = 0; i < ranks; i++) printf(" %016llx", (unsigned long long)all[2 * i]);
    puts("");
    fflush(stdout);
    in_all += (long)wrong;
  }
  free(all);
  name[0] = 0;
}

void skip(const char *what, const char *why) {
  if (rank == 0) printf("SKIPPED %s: %s\n", what, why), fflush(stdout);
}

void failed(const char *file, int line, const char *form, ...) {
  if (atomic_fetch_add(&faults, 1) >= 8) return; /* the rest is more of the same */
  char text[300];
  va_list list;
  va_start(list, form);
  vsnprintf(text, sizeof text, form, list);
  va_end(list);
  const char *base = strrchr(file, '/');
  fprintf(stderr, "rank %d in %s: %s:%d: %s\n", rank, name, base ? base + 1 : file, line, text);
}

int check_close(void) {
  MPI_Bcast(&in_all, 1, MPI_LONG, 0, own);
  MPI_Comm_free(&own);
  return in_all != 0;
}

void *room(size_t length) {
  void *memory = malloc(length ? length : 1);
  if (!memory) {
    fprintf(stderr, "rank %d: no memory of %zu bytes\n", rank, length);
    MPI_Abort(MPI_COMM_WORLD, 9);
  }
  return memory;
}

int length_of(const MPI_Status *status) {
  int length;
  MPI_Get_count(status, MPI_BYTE, &length);
  return length;
}

int class_of(int code) {
  int class;
  MPI_Error_class(code, &class);
  return class;
}

void tell(int to) { MPI_Send(NULL, 0, MPI_BYTE, to, 7, own); }
void hear(int from) { MPI_Recv(NULL, 0, MPI_BYTE, from, 7, own, MPI_STATUS_IGNORE); }
