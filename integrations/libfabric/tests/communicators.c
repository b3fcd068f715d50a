/* Communicators: copies, parts, groups, two groups, merged ones. What is said on one is not heard on another. */
#include "check.h"

/* Everybody in it hears from its left neighbour, by messages and by a sum. */
static void works(MPI_Comm comm, const char *what) {
  int me, size, sum, got = -1;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &size);
  int said = rank * 10 + 1, names[64];
  MPI_Allgather(&rank, 1, MPI_INT, names, 1, MPI_INT, comm);
  MPI_Sendrecv(&said, 1, MPI_INT, (me + 1) % size, 3, &got, 1, MPI_INT, (me + size - 1) % size, 3, comm, MPI_STATUS_IGNORE);
  CHECK(got == names[(me + size - 1) % size] * 10 + 1, "%s: heard %d", what, got);
  MPI_Allreduce(&me, &sum, 1, MPI_INT, MPI_SUM, comm);
  CHECK(sum == size * (size - 1) / 2, "%s: sum %d of %d", what, sum, size);
  see(names, (size_t)size * sizeof *names);
}

static void copies(void) {
  begin("communicators.dup");
  MPI_Comm dup, later, info;
  MPI_Request request;
  int order;
  MPI_Comm_dup(MPI_COMM_WORLD, &dup);
  MPI_Comm_idup(MPI_COMM_WORLD, &later, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Comm_dup_with_info(dup, MPI_INFO_NULL, &info);
  MPI_Comm_compare(dup, MPI_COMM_WORLD, &order);
  CHECK(order == MPI_CONGRUENT, "compare: %d", order);
  works(dup, "dup");
  works(later, "idup");
  works(info, "dup with info");
  /* Four messages with one envelope: each is received where it was sent, in whatever order. */
  MPI_Comm all[] = {MPI_COMM_WORLD, dup, later, info};
  int said[4], got, right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  MPI_Request sends[4];
  for (int i = 0; i < 4; i++) {
    said[i] = rank * 4 + i;
    MPI_Isend(&said[i], 1, MPI_INT, right, 8, all[i], &sends[i]);
  }
  for (int i = 3; i >= 0; i--) {
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, all[i], MPI_STATUS_IGNORE);
    CHECK(got == left * 4 + i, "communicator %d has %d", i, got);
  }
  MPI_Waitall(4, sends, MPI_STATUSES_IGNORE);
  MPI_Comm_free(&dup);
  MPI_Comm_free(&later);
  MPI_Comm_free(&info);
  end();
}

/* Many, one after the other and at once; one is given up while its messages are on their way. */
static void many(void) {
  begin("communicators.many");
  enum { COUNT = 60 };
  MPI_Comm comms[COUNT];
  for (int i = 0; i < COUNT; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = COUNT - 1; i >= 0; i--) {
    if (i % 10 == 0) works(comms[i], "one of many");
    MPI_Comm_free(&comms[i]);
  }
  for (int i = 0; i < 100; i++) {
    MPI_Comm one;
    MPI_Request requests[2];
    int said = rank + i, got = -1;
    MPI_Comm_dup(MPI_COMM_WORLD, &one);
    MPI_Irecv(&got, 1, MPI_INT, (rank + ranks - 1) % ranks, i, one, &requests[0]);
    MPI_Isend(&said, 1, MPI_INT, (rank + 1) % ranks, i, one, &requests[1]);
    MPI_Comm_free(&one);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    CHECK(got == (rank + ranks - 1) % ranks + i, "on the %dth: %d", i, got);
  }
  see_number(COUNT);
  end();
}

static void splits(void) {
  begin("communicators.split");
  MPI_Comm part;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part); /* counted from the end */
  works(part, "split");
  int me, size;
  MPI_Comm_rank(part, &me);
  MPI_Comm_size(part, &size);
  CHECK(me == size - 1 - rank / 2, "rank %d of %d", me, size);
  MPI_Comm_free(&part);
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 5, 0, &part);
  CHECK((part == MPI_COMM_NULL) == (rank == 0), "rank %d: an undefined part", rank);
  if (part != MPI_COMM_NULL) {
    works(part, "all but one");
    MPI_Comm_free(&part);
  }
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &part);
  MPI_Comm_size(part, &size);
  CHECK(size == ranks, "%d of %d ranks share this host", size, ranks);
  works(part, "shared");
  MPI_Comm_free(&part);
  end();
}

static void groups(void) {
  begin("communicators.groups");
  MPI_Group all, odd, none;
  MPI_Comm made, of_group;
  int odds[64], count = 0;
  for (int i = 1; i < ranks; i += 2) odds[count++] = i;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, count, odds, &odd);
  MPI_Group_difference(odd, all, &none);
  CHECK(none == MPI_GROUP_EMPTY, "a difference that should be empty");
  MPI_Comm_create(MPI_COMM_WORLD, odd, &made);
  CHECK((made != MPI_COMM_NULL) == (rank % 2 == 1), "created for rank %d", rank);
  if (made != MPI_COMM_NULL) {
    works(made, "create");
    MPI_Comm_free(&made);
    MPI_Comm_create_group(MPI_COMM_WORLD, odd, 11, &of_group); /* only its members call this */
    works(of_group, "create_group");
    MPI_Comm_free(&of_group);
  }
  MPI_Group_free(&all);
  MPI_Group_free(&odd);
  end();
}

static void two_groups(void) {
  if (ranks < 2) return;
  begin("communicators.inter");
  MPI_Comm half, inter, dup, merged;
  int side = rank % 2, others, flag;
  MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 12, &inter);
  MPI_Comm_test_inter(inter, &flag);
  CHECK(flag, "not between groups");
  MPI_Comm_remote_size(inter, &others);
  CHECK(others == (side ? (ranks + 1) / 2 : ranks / 2), "%d ranks at the other side", others);
  MPI_Comm_dup(inter, &dup);
  MPI_Comm both[] = {inter, dup};
  int said[2] = {rank * 100, rank * 100 + 1};
  MPI_Request requests[2 * 64];
  for (int i = 0; i < 2 * others; i++) MPI_Isend(&said[i % 2], 1, MPI_INT, i / 2, 4, both[i % 2], &requests[i]);
  for (int i = 0; i < 2 * others; i++) {
    MPI_Status status;
    int got;
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, 4, both[1 - i % 2], &status);
    CHECK(got == (2 * status.MPI_SOURCE + 1 - side) * 100 + 1 - i % 2, "%d from %d", got, status.MPI_SOURCE);
    see_loose(&got, sizeof got);
  }
  MPI_Waitall(2 * others, requests, MPI_STATUSES_IGNORE);
  MPI_Intercomm_merge(dup, side, &merged);
  works(merged, "merged");
  int me;
  MPI_Comm_rank(merged, &me);
  CHECK(me == (side ? (ranks + 1) / 2 + rank / 2 : rank / 2), "rank %d when merged", me);
  MPI_Comm_free(&merged);
  MPI_Comm_free(&dup);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
  end();
}

/* What is attached to a communicator goes with its copies. */
static int deleted;
static int copy(MPI_Comm from, int keyval, void *extra, void *in, void *out, int *flag) {
  (void)from, (void)keyval, (void)extra;
  *(void **)out = (char *)in + 1;
  *flag = 1;
  return MPI_SUCCESS;
}
static int destroy(MPI_Comm from, int keyval, void *value, void *extra) {
  (void)from, (void)keyval, (void)value, (void)extra;
  deleted++;
  return MPI_SUCCESS;
}
static void attributes(void) {
  begin("communicators.attributes");
  static char base[4];
  int key, flag, *bound;
  void *value;
  MPI_Comm dup;
  MPI_Comm_create_keyval(copy, destroy, &key, NULL);
  MPI_Comm_set_attr(MPI_COMM_WORLD, key, base);
  MPI_Comm_dup(MPI_COMM_WORLD, &dup);
  MPI_Comm_get_attr(dup, key, &value, &flag);
  CHECK(flag && value == base + 1, "the copy has another");
  MPI_Comm_free(&dup);
  CHECK(deleted == 1, "%d deleted", deleted);
  MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
  MPI_Comm_free_keyval(&key);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
  CHECK(flag && *bound >= 32767, "tags to %d", *bound);
  /* The greatest tag works. */
  int said = rank, got = -1;
  MPI_Sendrecv(&said, 1, MPI_INT, (rank + 1) % ranks, *bound, &got, 1, MPI_INT, (rank + ranks - 1) % ranks, *bound, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  CHECK(got == (rank + ranks - 1) % ranks, "by the greatest tag, %d: %d", *bound, got);
  end();
}

void communicators(int argc, char **argv) {
  (void)argc, (void)argv;
  copies();
  many();
  splits();
  groups();
  two_groups();
  attributes();
}
