/* Processes that are started by others, and ranks that meet by a port. */
#include "check.h"
#include <unistd.h>

enum { COUNT = 30000 };

/* Messages across, both ways, from each to each, and one group of both. */
static void across(MPI_Comm inter, bool high, const char *what) {
  int others, mine, size;
  MPI_Comm_remote_size(inter, &others);
  MPI_Comm_rank(inter, &mine);
  MPI_Comm_size(inter, &size);
  int *out = room(COUNT * sizeof *out), *in = room(COUNT * sizeof *in);
  MPI_Request requests[64];
  fill(out, COUNT * sizeof *out, (uint64_t)(mine * 10 + high));
  for (int to = 0; to < others; to++) MPI_Isend(out, COUNT, MPI_INT, to, 6, inter, &requests[to]);
  for (int i = 0; i < others; i++) {
    MPI_Status status;
    MPI_Recv(in, COUNT, MPI_INT, MPI_ANY_SOURCE, 6, inter, &status);
    CHECK(filled(in, COUNT * sizeof *in, (uint64_t)(status.MPI_SOURCE * 10 + !high)), "%s: message of %d", what, status.MPI_SOURCE);
    see_loose(in, COUNT * sizeof *in);
  }
  MPI_Waitall(others, requests, MPI_STATUSES_IGNORE);
  MPI_Comm merged;
  int one = 1, sum = 0, me, whole;
  MPI_Intercomm_merge(inter, high, &merged);
  MPI_Comm_rank(merged, &me);
  MPI_Comm_size(merged, &whole);
  CHECK(whole == size + others && me == (high ? others + mine : mine), "%s: rank %d of %d when merged", what, me, whole);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
  CHECK(sum == whole, "%s: sum %d of %d", what, sum, whole);
  see_number(sum);
  MPI_Comm_free(&merged);
  free(out), free(in);
}

/* What is started: tells how it went by its last message. */
void spawned(int argc, char **argv) {
  (void)argc, (void)argv;
  MPI_Comm parent;
  MPI_Comm_get_parent(&parent);
  if (parent == MPI_COMM_NULL) {
    fputs("mpi_tests spawned: nobody has started this\n", stderr);
    return;
  }
  across(parent, true, "child");
  MPI_Comm_disconnect(&parent);
}

static void children(const char *program, int count) {
  begin("spawn.%d", count);
  char *arguments[] = {"spawned", NULL};
  MPI_Comm inter;
  int *codes = room((size_t)count * sizeof *codes);
  MPI_Comm_spawn(program, arguments, count, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, codes);
  for (int i = 0; i < count; i++) CHECK(codes[i] == MPI_SUCCESS, "child %d: code %d", i, codes[i]);
  across(inter, false, "parent");
  MPI_Comm_disconnect(&inter);
  free(codes);
  end();
}

static void several(char *program) {
  begin("spawn.multiple");
  char *arguments[] = {"spawned", NULL}, **each[] = {arguments, arguments}, *programs[] = {program, program};
  int counts[] = {1, 2}, codes[3];
  MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
  MPI_Comm inter;
  MPI_Comm_spawn_multiple(2, programs, each, counts, infos, 0, MPI_COMM_WORLD, &inter, codes);
  across(inter, false, "parent of several");
  MPI_Comm_disconnect(&inter);
  end();
}

/* Even ranks open a port, odd ones connect to it. */
static void meet(void) {
  begin("spawn.connect");
  char port[MPI_MAX_PORT_NAME] = "";
  MPI_Comm half, inter;
  int side = rank % 2;
  MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
  if (rank == 0) MPI_Open_port(MPI_INFO_NULL, port);
  if (rank == 0) MPI_Send(port, sizeof port, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
  if (rank == 1) MPI_Recv(port, sizeof port, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int round = 0; round < 3; round++) {
    if (side == 0) MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &inter);
    else MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &inter);
    across(inter, side, "met");
    MPI_Comm_disconnect(&inter);
  }
  if (rank == 0) MPI_Close_port(port);
  MPI_Comm_free(&half);
  end();
}

void spawn(int argc, char **argv) {
  (void)argc, (void)argv;
  char program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) length = 0;
  program[length] = 0;
  children(program, 1);
  children(program, 3);
  several(program);
  if (ranks > 1) meet();
}
