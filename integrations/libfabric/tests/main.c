/* MPI programs that run alike over whatever carries them, each a group of cases: mpirun -n N mpi_tests GROUP [ARGUMENTS].
 * See check.h for what they print, and compare.py for who compares it. */
#include "check.h"

void check_starts(void);
void check_open(void);
int check_close(void);

static const struct {
  const char *name;
  group *run;
  int threads;
  const char *says;
} GROUPS[] = {
    {"p2p", p2p, MPI_THREAD_SINGLE, "four modes, blocking, not, persistent, sizes about each threshold"},
    {"match", match, MPI_THREAD_SINGLE, "wildcards, probes, cancel, truncation, order"},
    {"complete", complete, MPI_THREAD_SINGLE, "sendrecv, wait and test for one, any, some, all"},
    {"flood", flood, MPI_THREAD_SINGLE, "[COUNT] messages that nobody expects"},
    {"traffic", traffic, MPI_THREAD_SINGLE, "[COUNT [SEED]] seeded operations against a model of MPI's matching"},
    {"types", types, MPI_THREAD_SINGLE, "derived types on either side, in pairs; pack and unpack"},
    {"collectives", collectives, MPI_THREAD_SINGLE, "those that move data, blocking and nonblocking"},
    {"reductions", reductions, MPI_THREAD_SINGLE, "those that compute, by MPI's operators and the program's"},
    {"nonblocking", nonblocking, MPI_THREAD_SINGLE, "several nonblocking collectives at once, between messages"},
    {"communicators", communicators, MPI_THREAD_SINGLE, "dup, split, groups, intercommunicators"},
    {"topologies", topologies, MPI_THREAD_SINGLE, "cartesian and graph, with neighbour collectives"},
    {"spawn", spawn, MPI_THREAD_SINGLE, "processes that are started later; connect and accept"},
    {"windows", windows, MPI_THREAD_SINGLE, "one-sided: puts and gets, in each synchronisation"},
    {"atomics", atomics, MPI_THREAD_SINGLE, "one-sided: accumulates, fetch-and-op"},
    {"swaps", swaps, MPI_THREAD_SINGLE, "one-sided: compare-and-swap, as a lock"},
    {"threads", threads, MPI_THREAD_MULTIPLE, "several threads of each rank"},
    {"cg", cg, MPI_THREAD_SINGLE, "[SIDE] conjugate gradient of a 2-d Poisson problem, with halo exchange"},
    {"sort", sorting, MPI_THREAD_SINGLE, "[KEYS] bucket sort of integers"},
    {"killed", killed, MPI_THREAD_SINGLE, "SIZE: rank 1 is killed while others wait for it"},
    {"stopped", stopped, MPI_THREAD_SINGLE, "a rank is stopped for three seconds"},
    {"spawned", spawned, MPI_THREAD_SINGLE, "what spawn starts"},
};

int main(int argc, char **argv) {
  size_t chosen = 0, count = sizeof GROUPS / sizeof GROUPS[0];
  while (argc > 1 && chosen < count && strcmp(GROUPS[chosen].name, argv[1]) != 0) chosen++;
  if (argc < 2 || chosen == count) {
    fputs("usage: mpirun -n RANKS mpi_tests GROUP [ARGUMENTS]\n", stderr);
    for (size_t i = 0; i < count; i++) fprintf(stderr, "  %-14s %s\n", GROUPS[i].name, GROUPS[i].says);
    return 2;
  }
  int granted;
  check_starts();
  MPI_Init_thread(&argc, &argv, GROUPS[chosen].threads, &granted);
  int code = 0;
  check_open();
  if (granted < GROUPS[chosen].threads) {
    begin("%s.threads", GROUPS[chosen].name);
    CHECK(false, "asked for thread level %d, got %d", GROUPS[chosen].threads, granted);
    end();
  } else {
    GROUPS[chosen].run(argc - 2, argv + 2);
  }
  code = check_close();
  MPI_Finalize();
  if (rank == 0 && GROUPS[chosen].run != spawned) puts("end");
  return code;
}
