/* Two copies of the static library in one process, of the program and of a plugin: neither is taken for the other, neither by the
 * names of C nor by those of the headers' inline functions, though the program exports all that it has. */
#include "hpp_copies.hpp"
#include "hpp_check.hpp"
#include <dlfcn.h>
#include <cstdio>
#include <cstring>

int main(int argc, char **argv) {
  const char *provider = argc > 2 && std::strcmp(argv[1], "--provider") == 0 ? argv[2] : "loopback";
  void *module = dlopen(HPP_COPY, RTLD_NOW | RTLD_LOCAL);
  if (!module) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(module != nullptr);
  using Alone = void (*)(const char *, char *, std::size_t);
  Alone plugin = reinterpret_cast<Alone>(dlsym(module, "plugin_alone"));
  CHECK(plugin != nullptr);
  for (int round = 0; round < 3; round++) {
    char why[512] = "";
    std::string mine = alone("host", provider);
    plugin(provider, why, sizeof why);
    if (!mine.empty() || why[0]) std::fprintf(stderr, "the program: %s\nthe plugin: %s\n", mine.c_str(), why);
    CHECK(mine.empty() && why[0] == 0);
  }
  std::puts("cases: 1 passed, 0 failed, 0 skipped");
  return 0;
}
