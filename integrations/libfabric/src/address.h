/* The address of an endpoint: where its manager listens and how it is called. 48 bytes, as they travel. */
#pragma once

#include <string>

#include "common.h"

namespace rdmat {

struct Address {
  uint32_t magic;
  uint16_t family; /* 4 or 6 */
  uint8_t port[2];
  uint8_t ip[16];
  uint8_t id[16]; /* random: another endpoint has another, also at the same place */
  uint8_t zero[8];

  bool operator==(const Address &other) const;
  /* Whether these bytes, which may come from anywhere, are an address. */
  bool valid() const;
  /* "127.0.0.1:4711", "[::1]:4711". */
  std::string place() const;
  /* The manager's name. */
  std::string name() const;
  /* "fi_rdmat://127.0.0.1:4711/<id>". */
  std::string text() const;
  /* Sets where it is, from "host:port"; false: it cannot be. */
  bool set_place(const std::string &text);
  /* 0.0.0.0 and :: become an address of this host. */
  void replace_wildcard();
  /* A new one, with an id of its own. */
  static Address fresh();
};
static_assert(sizeof(Address) == 48, "addresses are compared and sent as bytes");

struct AddressHash {
  size_t operator()(const Address &a) const;
};

}  // namespace rdmat
