/* A plugin that makes managers when it is loaded, and ends them when it is unloaded. The loader holds its lock meanwhile, which threads
   want when they begin: they cannot be waited for. */
#define _GNU_SOURCE
#include "harness.h"

#include <dlfcn.h>
#include <unistd.h>

enum { ROUNDS = 5 };

static void load(bool whole) {
  CHECK(setenv("LOADER_PROVIDER", env.provider, 1) == 0);
  if (whole) CHECK(setenv("LOADER_WHOLE", "1", 1) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    void *module = dlopen(LOADER_MODULE, RTLD_NOW | RTLD_LOCAL);
    CHECK_MSG(module != NULL, "%s", dlerror());
    CHECK(dlclose(module) == 0);
  }
}

static void a_constructor_that_makes_and_ends_a_manager(void) { load(true); }
static void a_destructor_that_ends_what_the_constructor_has_made(void) { load(false); }

/* Threads that have begun are waited for. */
static void a_destructor_later(void) {
  CHECK(setenv("LOADER_PROVIDER", env.provider, 1) == 0);
  void *module = dlopen(LOADER_MODULE, RTLD_NOW | RTLD_LOCAL);
  CHECK_MSG(module != NULL, "%s", dlerror());
  CHECK(usleep(300000) == 0);
  int64_t begun = now_ms();
  CHECK(dlclose(module) == 0);
  CHECK_MSG(now_ms() - begun < patience(5000), "it took %lld ms", (long long)(now_ms() - begun));
}

static const test_case cases[] = {SLOW(a_constructor_that_makes_and_ends_a_manager, 60),
                                  SLOW(a_destructor_that_ends_what_the_constructor_has_made, 60), CASE(a_destructor_later)};
TEST_MAIN(cases)
