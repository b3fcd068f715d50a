/* Derived types: each layout on the one side with each on the other, packing, and what a status says of them. */
#include "check.h"

/* A layout of ELEMENTS ints: where each of them is, counted in ints from the beginning, and how far the next element begins. */
enum { ELEMENTS = 24, SPAN = 160, LAYOUTS = 13, LONG = 1500 };
static struct layout {
  const char *name;
  MPI_Datatype type;
  int at[ELEMENTS], extent;
} layouts[LAYOUTS];
static int made;

static struct layout *next(const char *name) {
  layouts[made].name = name;
  return &layouts[made++];
}

static void done(struct layout *l) {
  MPI_Aint bound, extent;
  MPI_Type_commit(&l->type);
  MPI_Type_get_extent(l->type, &bound, &extent);
  l->extent = (int)(extent / (MPI_Aint)sizeof(int));
  int size;
  MPI_Type_size(l->type, &size);
  CHECK(size == ELEMENTS * (int)sizeof(int), "%s: size %d", l->name, size);
}

static void make_regular(void) {
  struct layout *l = next("contiguous");
  MPI_Type_contiguous(ELEMENTS, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i;
  done(l);
  l = next("vector");
  MPI_Type_vector(8, 3, 5, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i / 3 * 5 + i % 3;
  done(l);
  l = next("vector of one");
  MPI_Type_vector(ELEMENTS, 1, 4, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i * 4;
  done(l);
  l = next("hvector");
  MPI_Type_create_hvector(4, 6, 7 * sizeof(int), MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i / 6 * 7 + i % 6;
  done(l);
  l = next("vector of vectors");
  MPI_Datatype inner;
  MPI_Type_vector(2, 2, 3, MPI_INT, &inner);
  MPI_Type_create_hvector(6, 1, 9 * sizeof(int), inner, &l->type);
  MPI_Type_free(&inner);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i / 4 * 9 + i % 4 / 2 * 3 + i % 2;
  done(l);
}

static void make_indexed(void) {
  static const int lengths[] = {1, 7, 0, 10, 6}, places[] = {3, 40, 20, 10, 60};
  MPI_Aint bytes[5];
  struct layout *l = next("indexed"); /* blocks of several lengths, not in the order of their places */
  MPI_Type_indexed(5, lengths, places, MPI_INT, &l->type);
  int n = 0;
  for (int b = 0; b < 5; b++)
    for (int i = 0; i < lengths[b]; i++) l->at[n++] = places[b] + i;
  done(l);
  struct layout *h = next("hindexed");
  for (int b = 0; b < 5; b++) bytes[b] = (MPI_Aint)((size_t)(places[b] + 1) * sizeof(int));
  MPI_Type_create_hindexed(5, lengths, bytes, MPI_INT, &h->type);
  for (int i = 0; i < ELEMENTS; i++) h->at[i] = l->at[i] + 1;
  done(h);
  static const int blocks[] = {50, 0, 20, 30, 8, 60};
  l = next("indexed block");
  MPI_Type_create_indexed_block(6, 4, blocks, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = blocks[i / 4] + i % 4;
  done(l);
  l = next("struct");
  MPI_Datatype pair, parts[3];
  MPI_Type_vector(2, 1, 3, MPI_INT, &pair);
  static const int counts[] = {4, 5, 10};
  MPI_Aint offsets[] = {0, 30 * sizeof(int), 6 * sizeof(int)};
  parts[0] = parts[2] = MPI_INT;
  parts[1] = pair; /* of an extent of four ints */
  MPI_Type_create_struct(3, counts, offsets, parts, &l->type);
  for (int i = 0; i < 4; i++) l->at[i] = i;
  for (int i = 0; i < 10; i++) l->at[4 + i] = 30 + i / 2 * 4 + i % 2 * 3;
  for (int i = 0; i < 10; i++) l->at[14 + i] = 6 + i;
  done(l);
  MPI_Type_free(&pair);
}

static void make_shaped(void) {
  struct layout *l = next("resized");
  MPI_Datatype inner;
  MPI_Type_contiguous(ELEMENTS, MPI_INT, &inner);
  MPI_Type_create_resized(inner, 0, 40 * sizeof(int), &l->type);
  MPI_Type_free(&inner);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i;
  done(l);
  static const int whole[] = {8, 9}, part[] = {4, 6}, start[] = {3, 2};
  l = next("subarray");
  MPI_Type_create_subarray(2, whole, part, start, MPI_ORDER_C, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = (3 + i / 6) * 9 + 2 + i % 6;
  done(l);
  static const int cube[] = {4, 5, 6}, piece[] = {2, 3, 4}, corner[] = {1, 1, 2};
  l = next("subarray of three, Fortran"); /* the first dimension is the fastest */
  MPI_Type_create_subarray(3, cube, piece, corner, MPI_ORDER_FORTRAN, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = 1 + i % 2 + (1 + i / 2 % 3) * 4 + (2 + i / 6) * 20;
  done(l);
  static const int size[] = {6, 8}, how[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC},
                   by[] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG}, grid[] = {1, 2};
  l = next("darray");
  MPI_Type_create_darray(2, 1, 2, size, how, by, grid, MPI_ORDER_C, MPI_INT, &l->type);
  for (int i = 0; i < ELEMENTS; i++) l->at[i] = i / 4 * 8 + 1 + i % 4 * 2;
  done(l);
}

static int value(int element, int i, int salt) { return element * 1000 + i + salt * 1000000; }

/* `count` elements of one layout become as many of another; what lies between stays as it was. */
static void received(const struct layout *l, const int *memory, int length, int count, int salt, const char *from) {
  unsigned char *mine = calloc((size_t)length, 1);
  for (int e = 0; e < count; e++)
    for (int i = 0; i < ELEMENTS; i++) {
      int at = e * l->extent + l->at[i];
      mine[at] = 1;
      CHECK(memory[at] == value(e, i, salt), "%s to %s: element %d, %d is %d", from, l->name, e, i, memory[at]);
    }
  for (int at = 0; at < length; at++) CHECK(mine[at] || memory[at] == -1, "%s to %s: a gap at %d was written", from, l->name, at);
  free(mine);
  see(memory, (size_t)length * sizeof *memory);
}

static void laid_out(const struct layout *l, int *memory, int length, int count, int salt) {
  memset(memory, 0x77, (size_t)length * sizeof *memory);
  for (int e = 0; e < count; e++)
    for (int i = 0; i < ELEMENTS; i++) memory[e * l->extent + l->at[i]] = value(e, i, salt);
}

static void pairs(const char *name, int count) {
  begin("types.pairs.%s", name);
  int length = SPAN * (count + 1), left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  int *out = room((size_t)length * sizeof *out), *in = room((size_t)length * sizeof *in);
  for (int a = 0; a < LAYOUTS; a++)
    for (int b = 0; b < LAYOUTS; b++) {
      MPI_Status status;
      int elements;
      laid_out(&layouts[a], out, length, count, rank);
      memset(in, 0xff, (size_t)length * sizeof *in);
      MPI_Sendrecv(out, count, layouts[a].type, right, a, in, count, layouts[b].type, left, a, MPI_COMM_WORLD, &status);
      received(&layouts[b], in, length, count, left, layouts[a].name);
      MPI_Get_count(&status, layouts[b].type, &elements);
      CHECK(elements == count, "get_count %d", elements);
      MPI_Get_elements(&status, layouts[b].type, &elements);
      CHECK(elements == count * ELEMENTS, "get_elements %d", elements);
    }
  free(out), free(in);
  end();
}

static void packed(void) {
  begin("types.pack");
  enum { COUNT = 40 };
  int length = SPAN * (COUNT + 1), bound, left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  int *out = room((size_t)length * sizeof *out), *in = room((size_t)length * sizeof *in);
  MPI_Pack_size(COUNT, layouts[0].type, MPI_COMM_WORLD, &bound);
  char *bytes = room((size_t)bound), *got = room((size_t)bound);
  for (int l = 0; l < LAYOUTS; l++) {
    int at = 0;
    laid_out(&layouts[l], out, length, COUNT, rank);
    MPI_Pack(out, COUNT / 2, layouts[l].type, bytes, bound, &at, MPI_COMM_WORLD);
    MPI_Pack(out + COUNT / 2 * layouts[l].extent, COUNT / 2, layouts[l].type, bytes, bound, &at, MPI_COMM_WORLD);
    /* Packed here, unpacked there; and packed here, received as a type. */
    MPI_Sendrecv(bytes, at, MPI_PACKED, right, 1, got, bound, MPI_PACKED, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    int mid = 0;
    memset(in, 0xff, (size_t)length * sizeof *in);
    MPI_Unpack(got, at, &mid, in, COUNT, layouts[l].type, MPI_COMM_WORLD);
    received(&layouts[l], in, length, COUNT, left, "packed");
    memset(in, 0xff, (size_t)length * sizeof *in);
    MPI_Sendrecv(bytes, at, MPI_PACKED, right, 2, in, COUNT, layouts[l].type, left, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    received(&layouts[l], in, length, COUNT, left, "packed, sent");
    MPI_Aint far = 0;
    MPI_Pack_external("external32", out, COUNT, layouts[l].type, bytes, bound, &far);
    CHECK(far == COUNT * ELEMENTS * 4, "external32 of %ld bytes", (long)far);
    see(bytes, (size_t)far);
  }
  free(out), free(in), free(bytes), free(got);
  end();
}

/* Members of several types, with holes between them; a part of an element. */
static void mixed(void) {
  begin("types.mixed");
  struct mix {
    char c;
    double d;
    short s;
    long long l;
    float f[3];
  } out[50], in[50];
  static const int counts[] = {1, 1, 1, 1, 3};
  MPI_Aint at[] = {offsetof(struct mix, c), offsetof(struct mix, d), offsetof(struct mix, s), offsetof(struct mix, l), offsetof(struct mix, f)};
  MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT, MPI_LONG_LONG, MPI_FLOAT}, raw, type;
  MPI_Type_create_struct(5, counts, at, parts, &raw);
  MPI_Type_create_resized(raw, 0, sizeof(struct mix), &type);
  MPI_Type_commit(&type);
  int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, count;
  memset(out, 0, sizeof out);
  memset(in, 0xaa, sizeof in);
  for (int i = 0; i < 50; i++)
    out[i] = (struct mix){(char)i, rank + i / 7.0, (short)(i * 3), (long long)i << 33, {(float)i, 1.5f, (float)rank}};
  MPI_Status status;
  MPI_Sendrecv(out, 50, type, right, 0, in, 50, type, left, 0, MPI_COMM_WORLD, &status);
  for (int i = 0; i < 50; i++) {
    const struct mix *m = &in[i];
    CHECK(m->c == (char)i && m->d == left + i / 7.0 && m->s == (short)(i * 3) && m->l == (long long)i << 33 && m->f[0] == (float)i &&
              m->f[2] == (float)left, "member of %d", i);
    CHECK(all_are((const char *)m + 1, 7, 0xaa), "a hole of %d was written", i);
    see(&m->d, sizeof m->d);
  }
  /* Two elements and a char and a double of the third. */
  char bytes[2 * 35 + 9];
  int length = 0;
  MPI_Pack(out, 2, type, bytes, sizeof bytes, &length, MPI_COMM_WORLD);
  MPI_Pack(&out[2].c, 1, MPI_CHAR, bytes, sizeof bytes, &length, MPI_COMM_WORLD);
  MPI_Pack(&out[2].d, 1, MPI_DOUBLE, bytes, sizeof bytes, &length, MPI_COMM_WORLD);
  MPI_Sendrecv(bytes, length, MPI_PACKED, right, 1, in, 50, type, left, 1, MPI_COMM_WORLD, &status);
  MPI_Get_count(&status, type, &count);
  CHECK(count == MPI_UNDEFINED, "get_count of a part: %d", count);
  MPI_Get_elements(&status, type, &count);
  CHECK(count == 16, "get_elements of a part: %d", count);
  see_number(count);
  MPI_Type_free(&raw);
  MPI_Type_free(&type);
  end();
}

void types(int argc, char **argv) {
  (void)argc, (void)argv;
  begin("types.make");
  make_regular();
  make_indexed();
  make_shaped();
  CHECK(made == LAYOUTS, "%d layouts", made);
  end();
  pairs("short", 1);
  pairs("medium", 60);
  pairs("long", LONG);
  packed();
  mixed();
  for (int i = 0; i < LAYOUTS; i++) MPI_Type_free(&layouts[i].type);
}
