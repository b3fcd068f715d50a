#include "address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>

namespace rdmat {

namespace {

constexpr uint32_t kMagic = 0x31544452; /* "RDT1" */

std::string hex(const uint8_t *bytes, size_t n) {
  std::string out;
  char two[3];
  for (size_t i = 0; i < n; ++i) {
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    out += two;
  }
  return out;
}

bool take(Address *to, const sockaddr *from) {
  if (from->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, from, sizeof in);
    to->family = 4;
    std::memset(to->ip, 0, sizeof to->ip);
    std::memcpy(to->ip, &in.sin_addr, 4);
    std::memcpy(to->port, &in.sin_port, sizeof to->port);
    return true;
  }
  if (from->sa_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, from, sizeof in);
    to->family = 6;
    std::memcpy(to->ip, &in.sin6_addr, 16);
    std::memcpy(to->port, &in.sin6_port, sizeof to->port);
    return true;
  }
  return false;
}

bool is_wildcard(const Address &a) {
  static const uint8_t none[16] = {};
  return std::memcmp(a.ip, none, sizeof none) == 0;
}

/* An address of this host that others reach, if it has one. */
void fill_wildcard(Address *a) {
  ifaddrs *all = nullptr;
  if (getifaddrs(&all) != 0) return;
  const int family = a->family == 4 ? AF_INET : AF_INET6;
  for (const ifaddrs *i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
    if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
    Address found = *a;
    if (!take(&found, i->ifa_addr)) continue;
    std::memcpy(found.port, a->port, sizeof found.port);
    /* A link-local address means nothing without its interface. */
    if (found.family == 6 && found.ip[0] == 0xfe && (found.ip[1] & 0xc0) == 0x80) continue;
    *a = found;
    break;
  }
  freeifaddrs(all);
  if (!is_wildcard(*a)) return;
  if (a->family == 4) {
    const uint8_t loopback[4] = {127, 0, 0, 1};
    std::memcpy(a->ip, loopback, sizeof loopback);
  } else {
    a->ip[15] = 1;
  }
}

}  // namespace

bool Address::operator==(const Address &other) const { return std::memcmp(this, &other, sizeof other) == 0; }

size_t AddressHash::operator()(const Address &a) const {
  return std::hash<std::string_view>()({reinterpret_cast<const char *>(&a), sizeof a});
}

bool Address::valid() const { return is_one() && has_port(); }

bool Address::is_one() const {
  static const uint8_t none[sizeof zero] = {};
  return magic == kMagic && (family == 4 || family == 6) && std::memcmp(zero, none, sizeof none) == 0;
}

bool Address::read(const void *bytes, size_t len) {
  if (bytes == nullptr || len != sizeof *this) return false;
  std::memcpy(this, bytes, len);
  return is_one();
}

std::string Address::place() const {
  char host[INET6_ADDRSTRLEN] = "?";
  inet_ntop(family == 4 ? AF_INET : AF_INET6, ip, host, sizeof host);
  const std::string number = std::to_string(port[0] << 8 | port[1]);
  return family == 4 ? std::string(host) + ":" + number : "[" + std::string(host) + "]:" + number;
}

bool Address::has_id() const {
  static const uint8_t nothing[sizeof id] = {};
  return std::memcmp(id, nothing, sizeof id) != 0;
}

std::string Address::name() const { return "fi-" + (has_id() ? hex(id, sizeof id) : place()); }

std::string Address::text() const { return "fi_rdmat://" + place() + "/" + hex(id, sizeof id); }

bool Address::resolve(const char *node, const char *service) {
  /* Of a number the C library takes the lower 16 bits. */
  if (service != nullptr && std::strtoull(service, nullptr, 10) > UINT16_MAX) return false;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  /* A host with addresses of both kinds is the same for all who ask. */
  for (const int family : {AF_INET, AF_INET6}) {
    hints.ai_family = family;
    if (getaddrinfo(node != nullptr || service != nullptr ? node : "127.0.0.1", service, &hints, &found) != 0) continue;
    const bool taken = take(this, found->ai_addr);
    freeaddrinfo(found);
    if (taken) return true;
  }
  return false;
}

bool Address::set_place(const std::string &text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return resolve(host.c_str(), text.c_str() + colon + 1);
}

void Address::replace_wildcard() {
  if (is_wildcard(*this)) fill_wildcard(this);
}

Address Address::none() {
  Address a{};
  a.magic = kMagic;
  return a;
}

Address Address::fresh() {
  Address a = none();
  std::random_device random;
  for (size_t i = 0; i < sizeof a.id; i += 4) {
    const uint32_t word = random();
    std::memcpy(a.id + i, &word, sizeof word);
  }
  return a;
}

std::string listen_of_environment() {
  /* It goes first, as everywhere in the library. */
  const char *environment = secure_getenv("RDMA_LISTEN");
  return environment != nullptr ? environment : "";
}

}  // namespace rdmat
