/* A plugin that has managers while it is loaded and unloaded, when the loader holds its lock: test_loader.c. */
#include <rdma_transport.h>
#include <stdio.h>
#include <stdlib.h>

static rdma_mgr_t *left;
static rdma_store_t *store;

static rdma_mgr_t *make(const char *name) {
  rdma_mgr_options_t o;
  rdma_mgr_t *mgr = NULL;
  if (rdma_mgr_options_init(&o, sizeof o) != RDMA_OK) abort();
  o.name = name;
  o.provider = getenv("LOADER_PROVIDER");
  if (rdma_mgr_create(&o, &mgr) != RDMA_OK) abort();
  return mgr;
}

static rdma_store_t *serve(void) {
  rdma_store_options_t o;
  rdma_store_t *made = NULL;
  if (rdma_store_options_init(&o, sizeof o) != RDMA_OK) abort();
  if (rdma_store_tcp_serve("127.0.0.1:0", &o, NULL, 0, NULL, &made) != RDMA_OK) abort();
  return made;
}

static void end(rdma_mgr_t *mgr, rdma_store_t *of) {
  if (rdma_mgr_destroy(mgr) != RDMA_OK || rdma_store_destroy(of) != RDMA_OK) abort();
}

__attribute__((constructor)) static void loaded(void) {
  if (getenv("LOADER_WHOLE")) {
    end(make("whole"), serve());
    return;
  }
  left = make("left");
  store = serve();
}

__attribute__((destructor)) static void unloaded(void) {
  if (left) end(left, store);
}
