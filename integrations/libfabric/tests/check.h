/* What the MPI test programs share: cases with names, checks, and digests of what was received, which are compared between runs. */
#ifndef CHECK_H
#define CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int rank, ranks;

/* Between these lies a case. Every rank calls them, in the same order; rank 0 then prints "case NAME: a digest for each rank", or
 * "FAILED NAME" where a check of any rank failed. The digests are equal in every run of the program, over whatever it runs. */
void begin(const char *form, ...) __attribute__((format(printf, 1, 2)));
void end(void);
/* Instead of both: the case cannot be here. */
void skip(const char *name, const char *why);
/* How far this rank is: said where it hangs. */
extern long progress;
/* A case may take so many seconds more than others. */
void patience(int seconds);

/* Adds to this rank's digest: in the order of the calls; or in any order, and from any thread. */
void see(const void *content, size_t length);
void see_number(int64_t number);
void see_loose(const void *content, size_t length);

/* Says what is wrong, and where; the case has failed. */
#define CHECK(holds, ...) ((holds) ? (void)0 : failed(__FILE__, __LINE__, __VA_ARGS__))
void failed(const char *file, int line, const char *form, ...) __attribute__((format(printf, 3, 4)));

/* Content that follows from a key. */
void fill(void *memory, size_t length, uint64_t key);
bool filled(const void *memory, size_t length, uint64_t key);
/* All of these bytes have this value. */
bool all_are(const void *memory, size_t length, unsigned char value);

/* Seeded numbers: the state is any number. */
uint64_t draw(uint64_t *state);
/* Less than `bound`. */
int below(uint64_t *state, int bound);

/* Memory, or the program ends. */
void *room(size_t length);
/* The length of what was received. */
int length_of(const MPI_Status *status);
/* The class of an error code. */
int class_of(int code);
/* Word from one rank to another, with nothing in it, apart from all other messages. */
void tell(int to);
void hear(int from);

/* Parts of the program: see main.c. */
typedef void group(int argc, char **argv);
group p2p, match, complete, flood, traffic, types, collectives, reductions, nonblocking, communicators, topologies, spawn, spawned,
    windows, atomics, swaps, threads, cg, sorting, killed, stopped;
#endif
