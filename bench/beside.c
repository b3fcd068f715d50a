/* Half a round trip of a message of 8 bytes on shm, alone and beside peers that say nothing.
   usage: rdma_beside PEERS PROVIDER thread|manual ROUNDS, the idle peers' number and provider. Each end has as many, in its own process. */
#define _GNU_SOURCE
#include <rdma_transport.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ADDRESS = 256, WARM_UP = 100 };

static void must(rdma_code_t code, const char *what) {
  char text[512] = "";
  if (code == RDMA_OK) return;
  rdma_last_error(text, sizeof text);
  fprintf(stderr, "rdma_beside: %s: %s: %s\n", what, rdma_code_name(code), text);
  _exit(1);
}

static rdma_mgr_t *open_manager(const char *name, const char *provider, bool thread, char address[ADDRESS]) {
  rdma_mgr_options_t o;
  rdma_mgr_t *m = NULL;
  must(rdma_mgr_options_init(&o, sizeof o), "options");
  o.name = name;
  o.provider = provider;
  o.progress = thread ? RDMA_PROGRESS_THREAD : RDMA_PROGRESS_MANUAL;
  must(rdma_mgr_create(&o, &m), "rdma_mgr_create");
  must(rdma_mgr_listen(m, "127.0.0.1:0", address, ADDRESS, NULL), "rdma_mgr_listen");
  return m;
}

static void exchange(int to, int from, const char mine[ADDRESS], char theirs[ADDRESS]) {
  if (write(to, mine, ADDRESS) != ADDRESS || read(from, theirs, ADDRESS) != ADDRESS) _exit(1);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Microseconds of half a round trip. */
static double ping_pong(rdma_mgr_t *m, rdma_peer_t peer, bool first, long rounds) {
  char bytes[8] = {0};
  double began = 0;
  rdma_msg_status_t st;
  memset(&st, 0, sizeof st);
  st.struct_size = sizeof st;
  for (long i = -WARM_UP; i < rounds; i++) {
    if (i == 0) began = seconds();
    if (first) must(rdma_msg_send(m, peer, 0, 7, bytes, sizeof bytes, NULL), "rdma_msg_send");
    must(rdma_msg_recv(m, peer, 0, 7, RDMA_MSG_TAG_MASK, bytes, sizeof bytes, NULL, &st), "rdma_msg_recv");
    if (!first) must(rdma_msg_send(m, peer, 0, 7, bytes, sizeof bytes, NULL), "rdma_msg_send");
  }
  return (seconds() - began) / (double)rounds / 2 * 1e6;
}

int main(int argc, char **argv) {
  int there[2], back[2];
  if (argc != 5 || pipe(there) != 0 || pipe(back) != 0) {
    fprintf(stderr, "usage: rdma_beside PEERS PROVIDER thread|manual ROUNDS\n");
    return 2;
  }
  int peers = atoi(argv[1]);
  bool thread = strcmp(argv[3], "thread") == 0;
  long rounds = atol(argv[4]);
  pid_t child = fork();
  bool first = child != 0;
  char mine[ADDRESS], theirs[ADDRESS];
  const char *other = first ? "second" : "first";
  rdma_mgr_t *m = open_manager(first ? "first" : "second", NULL, thread, mine);
  exchange(first ? there[1] : back[1], first ? back[0] : there[0], mine, theirs);
  must(rdma_mgr_add_peer(m, other, theirs), "rdma_mgr_add_peer");
  if (first) must(rdma_mgr_connect(m, other, 10000), "rdma_mgr_connect");
  rdma_peer_t peer = 0;
  must(rdma_peer_lookup(m, other, &peer), "rdma_peer_lookup");
  double alone = ping_pong(m, peer, first, rounds);
  for (int i = 0; i < peers; i++) {
    char name[32], address[ADDRESS];
    snprintf(name, sizeof name, "idle %d of %s", i, first ? "first" : "second");
    for (char *c = name; *c; c++) *c = *c == ' ' ? '-' : *c;
    (void)open_manager(name, argv[2], true, address);
    must(rdma_mgr_add_peer(m, name, address), "rdma_mgr_add_peer");
    must(rdma_mgr_connect(m, name, 10000), "rdma_mgr_connect");
  }
  double beside = ping_pong(m, peer, first, rounds);
  if (!first) pause(); /* its idle peers end with it */
  printf("alone %.3f us, beside %d on %s %.3f us\n", alone, peers, argv[2], beside);
  fflush(stdout);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  _exit(0);
}
