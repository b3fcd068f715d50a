/* A plugin with the static library in it. */
#include "hpp_copies.hpp"

extern "C" void plugin_alone(const char *provider, char *why, std::size_t cap) {
  std::string text = alone("plugin", provider);
  std::size_t len = text.copy(why, cap - 1);
  why[len] = 0;
}
