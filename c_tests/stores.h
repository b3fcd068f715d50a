/* Stores of each kind, for tests. */
#ifndef RT_STORES_H
#define RT_STORES_H
#include "harness.h"

enum store_kind { MEMORY, FILES, TCP, REDIS, CUSTOM };
/* Where a store is: made once, opened as often as there are users. */
typedef struct place {
  enum store_kind kind;
  char at[300]; /* address or path */
  rdma_store_t *served, *shared;
  pid_t redis;
} place;
place place_new(enum store_kind kind);       /* skips the case where there is no redis-server */
rdma_store_t *place_open(const place *p);
rdma_store_t *open_at(enum store_kind kind, const char *at);
void place_end(place *p);
void redis_kill(place *p);
void redis_start(place *p); /* at p->at */
rdma_store_ops_t own_ops(void); /* a store of this file's own, in memory */

rdma_bytes_t bytes_of(const char *text);
void put(rdma_store_t *s, const char *key, const char *value);
/* The value as a text. */
const char *got(rdma_store_t *s, const char *key);
const char *error_text(void);
#endif
