/* Endpoints that are found by host and port, and what fi_getinfo says of addresses and capabilities. */
#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .wait = FI_WAIT_NONE};
static const char kHost[] = "127.0.0.1";

static struct fi_info *hints_of(uint64_t caps) {
  struct fi_info *hints = fi_allocinfo();
  CHECK(hints != NULL);
  hints->fabric_attr->prov_name = strdup("rdmat");
  hints->caps = caps;
  return hints;
}

/* As fi_getinfo; its errno. */
static int look_up(const char *node, const char *service, uint64_t flags, struct fi_info *hints, struct fi_info **info) {
  const int rc = fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, info);
  fi_freeinfo(hints);
  return -rc;
}

static bool same_address(const void *a, size_t a_len, const void *b, size_t b_len) {
  return a_len == b_len && a_len > 0 && memcmp(a, b, a_len) == 0;
}

/* An endpoint that listens where `info` says; what fi_enable returned. */
static int try_open(struct side *s, const struct fi_info *info) {
  prepare_side(s, kUsual);
  OK(fi_close(&s->ep->fid));
  fi_freeinfo(s->info);
  s->info = fi_dupinfo(info);
  CHECK(s->info != NULL);
  OK(fi_endpoint(s->domain, s->info, &s->ep, NULL));
  OK(fi_ep_bind(s->ep, &s->av->fid, 0));
  OK(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV));
  return fi_enable(s->ep);
}

/* A server at a port that nobody else has; its port as text. */
static void open_server(struct side *server, char *port, size_t room) {
  for (int i = 0;; ++i) {
    struct fi_info *info;
    CHECK(i < 100);
    snprintf(port, room, "%d", 10000 + ((int)getpid() * 7 + i) % 20000);
    CHECK(look_up(kHost, port, FI_SOURCE, hints_of(FI_MSG), &info) == 0);
    const int rc = try_open(server, info);
    if (rc == 0) {
      char name[64];
      const size_t len = address_of(server, name, sizeof name);
      CHECK(same_address(name, len, info->src_addr, info->src_addrlen));
    }
    fi_freeinfo(info);
    if (rc == 0) return;
    CHECK(rc == -FI_EADDRINUSE);
    close_side(server);
  }
}

static void say(struct side *from, struct side *to, fi_addr_t there, const char *word) {
  char in[16] = "";
  OK(fi_recv(to->ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  const ssize_t rc = fi_send(from->ep, word, strlen(word) + 1, NULL, there, (void *)word);
  OK(rc);
  expect(from, to, (void *)word);
  expect(to, from, in);
  CHECK(strcmp(in, word) == 0);
}

/* What is sent before the client hears that the former peer is gone is lost with it. */
static void say_until_heard(struct side *from, struct side *to, fi_addr_t there) {
  char in[16];
  OK(fi_recv(to->ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
  const double until = now() + PATIENCE;
  for (double next_try = 0;;) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    if (now() > next_try) {
      OK(fi_send(from->ep, "again", 6, NULL, there, NULL));
      next_try = now() + 0.2;
    }
    if (fi_cq_read(from->cq, &entry, 1) == -FI_EAVAIL) CHECK(fi_cq_readerr(from->cq, &error, 0) == 1);
    if (fi_cq_read(to->cq, &entry, 1) == 1) break;
    CHECK(now() < until);
  }
  CHECK(strcmp(in, "again") == 0);
}

/* The client knows no more than host and port, and says who it is. */
static void found_by_port(void) {
  struct side server, client;
  struct fi_info *info;
  char port[8], name[64];
  open_server(&server, port, sizeof port);
  open_side(&client, kUsual);
  CHECK(look_up(kHost, port, 0, hints_of(FI_MSG), &info) == 0);
  CHECK(fi_av_insert(client.av, info->dest_addr, 1, &client.other, 0, NULL) == 1);
  say(&client, &server, client.other, "hello");
  CHECK(address_of(&client, name, sizeof name) == info->src_addrlen);
  CHECK(fi_av_insert(server.av, name, 1, &server.other, 0, NULL) == 1);
  say(&server, &client, server.other, "well");
  /* Another one at this port would take its peers for its own. */
  struct side second;
  struct fi_info *here;
  CHECK(look_up(kHost, port, FI_SOURCE, hints_of(FI_MSG), &here) == 0);
  CHECK(try_open(&second, here) == -FI_EADDRINUSE);
  /* The next one at this port, when it is free, is reached by the same address. */
  close_side(&server);
  CHECK(fi_enable(second.ep) == 0);
  fi_freeinfo(here);
  say_until_heard(&client, &second, client.other);
  close_side(&second);
  close_side(&client);
  fi_freeinfo(info);
}

static void addresses_of_hints(void) {
  struct fi_info *info;
  CHECK(look_up(NULL, NULL, 0, hints_of(FI_MSG), &info) == 0);
  CHECK(info->src_addr != NULL && info->src_addrlen == 48 && info->dest_addr == NULL);
  /* What is no address is not taken for one. */
  struct fi_info *odd = fi_dupinfo(info);
  ((unsigned char *)odd->src_addr)[0] ^= 1;
  struct fi_info *none = NULL;
  CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, odd, &none) == -FI_ENODATA);
  struct side s;
  prepare_side(&s, kUsual);
  struct fid_ep *ep;
  CHECK(fi_endpoint(s.domain, odd, &ep, NULL) == -FI_EINVAL);
  close_side(&s);
  fi_freeinfo(odd);
  fi_freeinfo(info);
  /* A host is reached, but is no endpoint. */
  CHECK(look_up(kHost, NULL, 0, hints_of(FI_MSG), &info) == 0);
  prepare_side(&s, kUsual);
  CHECK(info->dest_addrlen == 48 && fi_av_insert(s.av, info->dest_addr, 1, &s.other, 0, NULL) == 0);
  close_side(&s);
  fi_freeinfo(info);
  CHECK(look_up("no-such-host.invalid", "4711", 0, hints_of(FI_MSG), &info) == FI_ENODATA);
  CHECK(look_up(kHost, "no-such-service", 0, hints_of(FI_MSG), &info) == FI_ENODATA);
  CHECK(look_up(kHost, NULL, FI_SOURCE, hints_of(FI_MSG), &info) == 0);
  fi_freeinfo(info);
}

/* Those of a transmit or a receive context are no others than fi_getinfo(3) has for it. */
static void capabilities(void) {
  const uint64_t all[] = {0, FI_MSG, FI_TAGGED | FI_SEND, FI_RMA, FI_ATOMIC, FI_MSG | FI_SOURCE | FI_LOCAL_COMM, FI_RMA | FI_RMA_EVENT};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    struct fi_info *info;
    CHECK(look_up(NULL, NULL, 0, hints_of(all[i]), &info) == 0);
    CHECK((info->caps & all[i]) == all[i]);
    const uint64_t both = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    CHECK(!(info->tx_attr->caps & ~(both | FI_SEND | FI_READ | FI_WRITE)));
    const uint64_t received = FI_RECV | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV;
    CHECK(!(info->rx_attr->caps & ~(both | received | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT)));
    fi_freeinfo(info);
  }
}

int main(void) {
  found_by_port();
  addresses_of_hints();
  capabilities();
  puts("fi_names: well");
  return 0;
}
