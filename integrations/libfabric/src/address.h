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
  /* Random: another endpoint has another, also at the same place. Zero where somebody chose the port: then who knows host and port
   * knows the address. */
  uint8_t id[16];
  uint8_t zero[8];

  bool operator==(const Address &other) const;
  /* Whether these bytes, which may come from anywhere, are an address that can be reached. */
  bool valid() const;
  /* From bytes of somebody else's, which may name no port. False: they are no address. */
  bool read(const void *bytes, size_t len);
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
  /* Where a host and a service, of which one may be NULL, are: this host, any port. False: nobody knows them. */
  bool resolve(const char *node, const char *service);
  bool has_port() const { return (port[0] | port[1]) != 0; }
  bool has_id() const;
  /* Without a place: one that has no id, and a new one with an id of its own. */
  static Address none();
  static Address fresh();

 private:
  bool is_one() const;
};
static_assert(sizeof(Address) == 48, "addresses are compared and sent as bytes");

/* Where RDMA_LISTEN has endpoints listen; empty: nowhere. */
std::string listen_of_environment();

struct AddressHash {
  size_t operator()(const Address &a) const;
};

}  // namespace rdmat
