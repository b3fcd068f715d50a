/* Cartesian and graph topologies, and collectives among neighbours. */
#include "coll.h"

static void cartesian(bool later) {
  begin("topologies.cart.%s", later ? "nonblocking" : "blocking");
  int dims[2] = {0, 0}, periods[] = {1, 0}, mine[2], at, left, right, up, down;
  MPI_Comm grid, row;
  MPI_Dims_create(ranks, 2, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
  MPI_Comm_rank(grid, &at);
  MPI_Cart_coords(grid, at, 2, mine);
  MPI_Cart_shift(grid, 0, 1, &up, &down);
  MPI_Cart_shift(grid, 1, 1, &left, &right);
  int sources[] = {up, down, left, right};
  CHECK((left == MPI_PROC_NULL) == (mine[1] == 0), "the left end of the row");
  enum { COUNT = 300 };
  int *out = ints(4 * COUNT), *in = ints(4 * COUNT);
  /* All have the same for each neighbour; then another for each. */
  put_items(out, COUNT, at, 0);
  RUN(MPI_Neighbor_allgather, MPI_Ineighbor_allgather, out, COUNT, MPI_INT, in, COUNT, MPI_INT, grid);
  for (int i = 0; i < 4; i++) {
    if (sources[i] == MPI_PROC_NULL) CHECK(all_are(in + i * COUNT, COUNT * sizeof *in, 0xff), "something from nobody");
    else want_items(in + i * COUNT, COUNT, sources[i], 0, "neighbor_allgather");
  }
  /* With two ranks in a direction that goes round, both neighbours are the same one, whose messages keep the order of the
   * directions; so content says only who sent it, and to whom. */
  for (int i = 0; i < 4; i++) put_items(out + i * COUNT, COUNT, at, sources[i]);
  RUN(MPI_Neighbor_alltoall, MPI_Ineighbor_alltoall, out, COUNT, MPI_INT, in, COUNT, MPI_INT, grid);
  for (int i = 0; i < 4; i++)
    if (sources[i] != MPI_PROC_NULL) want_items(in + i * COUNT, COUNT, sources[i], at, "neighbor_alltoall");
  int counts[4], places[4];
  for (int i = 0; i < 4; i++) counts[i] = sources[i] == MPI_PROC_NULL ? 5 : (at + sources[i]) * 11 % 200, places[i] = i * COUNT;
  memset(in, 0xff, 4 * COUNT * sizeof *in);
  RUN(MPI_Neighbor_alltoallv, MPI_Ineighbor_alltoallv, out, counts, places, MPI_INT, in, counts, places, MPI_INT, grid);
  for (int i = 0; i < 4; i++)
    if (sources[i] != MPI_PROC_NULL) {
      want_items(in + i * COUNT, counts[i], sources[i], at, "neighbor_alltoallv");
      CHECK(all_are(in + i * COUNT + counts[i], (size_t)(COUNT - counts[i]) * sizeof *in, 0xff), "behind the end");
    }
  MPI_Aint bytes[4];
  MPI_Datatype types[4];
  for (int i = 0; i < 4; i++) bytes[i] = places[i] * (MPI_Aint)sizeof(int), types[i] = MPI_INT;
  memset(in, 0xff, 4 * COUNT * sizeof *in);
  RUN(MPI_Neighbor_alltoallw, MPI_Ineighbor_alltoallw, out, counts, bytes, types, in, counts, bytes, types, grid);
  for (int i = 0; i < 4; i++)
    if (sources[i] != MPI_PROC_NULL) want_items(in + i * COUNT, counts[i], sources[i], at, "neighbor_alltoallw");
  int keep[] = {0, 1}, size, sum;
  MPI_Cart_sub(grid, keep, &row);
  MPI_Comm_size(row, &size);
  CHECK(size == dims[1], "a row of %d", size);
  MPI_Allreduce(&at, &sum, 1, MPI_INT, MPI_SUM, row);
  CHECK(sum == dims[1] * (2 * (mine[0] * dims[1]) + dims[1] - 1) / 2, "the sum of row %d is %d", mine[0], sum);
  free(out), free(in);
  MPI_Comm_free(&row);
  MPI_Comm_free(&grid);
  end();
}

/* A ring with a spoke to rank 0: edges of one direction, different numbers in and out. */
static void graph(bool later) {
  begin("topologies.graph.%s", later ? "nonblocking" : "blocking");
  int from[64], to[64], weights[64], ins = 0, outs = 0, weighted;
  from[ins++] = (rank + ranks - 1) % ranks;
  to[outs++] = (rank + 1) % ranks;
  if (rank > 1) to[outs++] = 0;
  for (int i = 2; i < ranks && rank == 0; i++) from[ins++] = i;
  for (int i = 0; i < 64; i++) weights[i] = 1;
  MPI_Comm graph_comm;
  MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, ins, from, weights, outs, to, weights, MPI_INFO_NULL, 0, &graph_comm);
  int seen_in, seen_out;
  MPI_Dist_graph_neighbors_count(graph_comm, &seen_in, &seen_out, &weighted);
  CHECK(seen_in == ins && seen_out == outs && weighted, "%d in, %d out", seen_in, seen_out);
  enum { COUNT = 100 };
  int *out = ints((size_t)outs * COUNT), *in = ints((size_t)ins * COUNT);
  put_items(out, COUNT, rank, 0);
  RUN(MPI_Neighbor_allgather, MPI_Ineighbor_allgather, out, COUNT, MPI_INT, in, COUNT, MPI_INT, graph_comm);
  for (int i = 0; i < ins; i++) want_items(in + i * COUNT, COUNT, from[i], 0, "neighbor_allgather");
  int counts[64], places[64];
  for (int i = 0; i < ins; i++) counts[i] = from[i] * 9 % COUNT, places[i] = i * COUNT;
  RUN(MPI_Neighbor_allgatherv, MPI_Ineighbor_allgatherv, out, rank * 9 % COUNT, MPI_INT, in, counts, places, MPI_INT, graph_comm);
  for (int i = 0; i < ins; i++) want_items(in + places[i], counts[i], from[i], 0, "neighbor_allgatherv");
  for (int i = 0; i < outs; i++) put_items(out + i * COUNT, COUNT, rank, to[i]);
  RUN(MPI_Neighbor_alltoall, MPI_Ineighbor_alltoall, out, COUNT, MPI_INT, in, COUNT, MPI_INT, graph_comm);
  for (int i = 0; i < ins; i++) want_items(in + i * COUNT, COUNT, from[i], rank, "neighbor_alltoall");
  free(out), free(in);
  MPI_Comm_free(&graph_comm);
  /* The old kind, the same on every rank: a path. */
  int *index = ints((size_t)ranks), *edges = ints((size_t)(2 * ranks)), used = 0, count, neighbours[2];
  for (int i = 0; i < ranks; i++) {
    if (i > 0) edges[used++] = i - 1;
    if (i < ranks - 1) edges[used++] = i + 1;
    index[i] = used;
  }
  MPI_Graph_create(MPI_COMM_WORLD, ranks, index, edges, 0, &graph_comm);
  MPI_Graph_neighbors_count(graph_comm, rank, &count);
  MPI_Graph_neighbors(graph_comm, rank, 2, neighbours);
  int said = rank * 3, got[2] = {-1, -1};
  RUN(MPI_Neighbor_allgather, MPI_Ineighbor_allgather, &said, 1, MPI_INT, got, 1, MPI_INT, graph_comm);
  for (int i = 0; i < count; i++) CHECK(got[i] == neighbours[i] * 3, "neighbour %d said %d", neighbours[i], got[i]);
  see(got, sizeof got);
  free(index), free(edges);
  MPI_Comm_free(&graph_comm);
  end();
}

void topologies(int argc, char **argv) {
  (void)argc, (void)argv;
  for (int later = 0; later < 2; later++) {
    cartesian(later);
    graph(later);
  }
}
