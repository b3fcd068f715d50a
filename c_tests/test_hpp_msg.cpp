/* The C++ layer of tagged messages. */
#include <rdma_transport_msg.hpp>
#include "hpp_check.hpp"
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

using rdma::MessageOptions;
using rdma::MessageRequest;
using rdma::Messages;
static const std::uint32_t COMM = 3;
static const std::uint64_t EXACT = RDMA_MSG_TAG_MASK;
static std::string provider = "loopback";

static rdma::Manager make(const char *name) {
  return GET(rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000)));
}
struct Pair {
  rdma::Manager ma = make("alpha"), mb = make("beta");
  Messages a{ma}, b{mb};
  rdma_peer_t to_b = 0, to_a = 0;
  Pair() {
    OK(ma.add_peer("beta", GET(mb.listen("127.0.0.1:0"))));
    OK(ma.connect("beta", 20000));
    to_b = GET(a.peer("beta"));
    CHECK(soon([&] { return b.peer("alpha").ok(); }));
    to_a = GET(b.peer("alpha"));
  }
};
static MessageOptions synchronous() {
  MessageOptions o;
  o.mode = RDMA_MSG_SYNCHRONOUS;
  return o;
}
/* Content, and memory for as much. */
struct Content {
  std::vector<char> from, to;
  explicit Content(std::size_t n, int seed = 1) : from(n), to(n, '?') {
    for (std::size_t i = 0; i < n; i++) from[i] = static_cast<char>(i * 7 + i / 251 + static_cast<std::size_t>(seed));
  }
  bool arrived() const { return from == to; }
};

static void names() {
  Pair p;
  CHECK(p.to_b != RDMA_PEER_ANY && GET(p.a.peer_name(p.to_b)) == "beta" && GET(p.b.peer_name(p.to_a)) == "alpha");
  CHECK(GET(p.a.peer_name(GET(p.a.peer("alpha")))) == "alpha");
  auto nobody = p.a.peer("nobody");
  CHECK(nobody.status().code() == RDMA_NOT_FOUND && !nobody.status().message().empty());
  /* C would end it there, and mean the peer. */
  CHECK(p.a.peer(std::string("beta\0x", 6)).status().code() == RDMA_INVALID_ARGUMENT);
  CHECK(p.a.peer_name(12345).status().code() == RDMA_NOT_FOUND);
  CHECK(soon([&] { return GET(p.a.room(p.to_b)) > 0; }));
  CHECK(p.a.room(RDMA_PEER_ANY).status().code() == RDMA_INVALID_ARGUMENT);
  rdma::Manager none;
  CHECK(Messages(none).peer("x").status().code() == RDMA_INVALID_ARGUMENT);
}

static void sizes() {
  Pair p;
  std::uint64_t tag = 0;
  for (std::size_t n : {std::size_t(0), std::size_t(8), std::size_t(100) << 10}) {
    for (bool own : {false, true}) {
      const Messages &sender = own ? p.b : p.a;
      rdma_peer_t to = own ? GET(p.b.peer("beta")) : p.to_b, from = own ? to : p.to_a;
      for (int first = 0; first < 2; first++) {
        Content x(n, first);
        tag++;
        MessageRequest s, r;
        CHECK(!r.pending() && GET(r.test()) && r.wait().ok());
        if (first) {
          r = GET(p.b.irecv(from, COMM, tag, EXACT, x.to.data(), n));
          CHECK(r.pending() && r.id() != 0);
        }
        s = GET(sender.isend(to, COMM, tag, x.from.data(), n));
        if (!first) r = GET(p.b.irecv(from, COMM, tag, EXACT, x.to.data(), n));
        OK(r.wait());
        CHECK(!r.pending() && r.status().ok() && r.status().bytes == n && r.status().tag == tag);
        CHECK(r.status().comm == COMM && r.status().peer == from && x.arrived());
        CHECK(soon([&] { return GET(s.test()); }));
        CHECK(s.status().ok() && s.status().peer == to && s.status().bytes == n && s.status().tag == tag);
      }
      /* Blocking on either side. */
      Content x(n, 2);
      std::thread thread([&] { OK(sender.send(to, COMM, tag, x.from.data(), n, synchronous())); });
      auto got = p.b.recv(RDMA_PEER_ANY, COMM, 0, 0, x.to.data(), n);
      thread.join();
      OK(got.status);
      CHECK(got.ok() && got.bytes == n && got.tag == tag && got.peer == from && x.arrived());
    }
  }
}

/* A callback that counts its runs, and what holds it. */
struct Told {
  std::shared_ptr<int> held = std::make_shared<int>(0);
  std::atomic<int> runs{0};
  rdma::MessageStatus last;
  MessageOptions options(MessageOptions o = MessageOptions()) {
    std::shared_ptr<int> copy = held;
    o.done = [this, copy](const rdma::MessageStatus &s) {
      CHECK(copy.use_count() > 1);
      last = s;
      runs++;
    };
    return o;
  }
  bool freed() const { return held.use_count() == 1; }
  bool ran_once() {
    return soon([&] { return runs == 1 && freed(); });
  }
};

static void callbacks() {
  Pair p;
  for (std::size_t n : {std::size_t(0), std::size_t(8), std::size_t(100) << 10}) {
    Content x(n);
    Told received, sent;
    auto r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), n, received.options()));
    CHECK(r.pending() && !received.freed());
    auto s = GET(p.a.isend(p.to_b, COMM, 1, x.from.data(), n, sent.options(synchronous())));
    CHECK(received.ran_once() && sent.ran_once());
    CHECK(received.last.ok() && received.last.bytes == n && received.last.peer == p.to_a && x.arrived());
    CHECK(sent.last.ok() && sent.last.peer == p.to_b);
    CHECK(r.cancel().code() == RDMA_NOT_FOUND); /* the end has been told */
  }
  /* Dropped handles do not keep callbacks from running. */
  Content x(8);
  Told told;
  GET(p.b.irecv(p.to_a, COMM, 2, EXACT, x.to.data(), 8, told.options()));
  OK(p.a.send(p.to_b, COMM, 2, x.from.data(), 8));
  CHECK(told.ran_once() && told.last.ok() && x.arrived());
}

static void callbacks_that_do_not_run() {
  Pair p;
  char byte = 0;
  /* The call fails. */
  Told failed;
  auto bad = p.a.isend(RDMA_PEER_ANY, COMM, 1, &byte, 1, failed.options());
  CHECK(bad.status().code() == RDMA_INVALID_ARGUMENT && !bad.status().message().empty() && failed.freed());
  CHECK(p.a.isend(12345, COMM, 1, &byte, 1, failed.options()).status().code() == RDMA_NOT_FOUND && failed.freed());
  CHECK(p.a.irecv(p.to_b, COMM, 1, EXACT, nullptr, 1, failed.options()).status().code() == RDMA_INVALID_ARGUMENT);
  CHECK(p.a.imrecv(99, &byte, 1, failed.options()).status().code() == RDMA_NOT_FOUND);
  MessageOptions wrong;
  wrong.mode = 9;
  CHECK(p.a.isend(p.to_b, COMM, 1, &byte, 1, failed.options(wrong)).status().code() == RDMA_INVALID_ARGUMENT);
  wrong.mode = RDMA_MSG_STANDARD;
  wrong.device = 77;
  CHECK(p.a.isend(p.to_b, COMM, 1, &byte, 1, failed.options(wrong)).status().code() == RDMA_NOT_FOUND);
  /* Blocking calls do not use it. */
  OK(p.a.send(p.to_b, COMM, 1, &byte, 1, failed.options()));
  CHECK(p.b.recv(p.to_a, COMM, 1, EXACT, &byte, 1, failed.options()).ok());
  CHECK(failed.freed() && failed.runs == 0);
  /* It has ended when the call returns: to oneself, and to a receive whose message is here. */
  rdma_peer_t self = GET(p.a.peer("alpha"));
  Told at_once;
  auto s = GET(p.a.isend(self, COMM, 5, "12345678", 8, at_once.options()));
  auto r = GET(p.a.irecv(self, COMM, 5, EXACT, &byte, 0, MessageOptions())); /* too long: an end that is told */
  CHECK(r.pending() && r.wait().code() == RDMA_OUT_OF_RANGE && r.status().bytes == 8);
  CHECK(!s.pending() && s.status().ok() && at_once.freed() && at_once.runs == 0);
  char eight[8] = {};
  OK(p.a.send(self, COMM, 6, "abcdefgh", 8));
  r = GET(p.a.irecv(RDMA_PEER_ANY, COMM, 6, EXACT, eight, 8, at_once.options()));
  CHECK(!r.pending() && r.status().ok() && r.status().bytes == 8 && r.status().peer == self);
  CHECK(std::memcmp(eight, "abcdefgh", 8) == 0 && at_once.freed() && at_once.runs == 0);
}

static void cancellation() {
  Pair p;
  Content x(100 << 10);
  Told told;
  auto r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), x.to.size(), told.options()));
  OK(r.cancel());
  CHECK(told.ran_once() && told.last.status.code() == RDMA_CANCELLED && !told.last.status.message().empty());
  r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), x.to.size()));
  CHECK(!GET(r.test()) && r.wait(10).code() == RDMA_DEADLINE_EXCEEDED && r.pending());
  OK(p.b.cancel(r.id()));
  CHECK(r.wait().code() == RDMA_CANCELLED && !r.pending() && r.status().status.code() == RDMA_CANCELLED);
  CHECK(r.cancel().code() == RDMA_INVALID_ARGUMENT);
  auto s = GET(p.a.isend(p.to_b, COMM, 1, x.from.data(), x.from.size()));
  OK(s.cancel());
  CHECK(s.wait().code() == RDMA_CANCELLED);
  /* Deadlines: of a receive, and none at all. */
  MessageOptions brief;
  brief.timeout_ms = 20;
  CHECK(p.b.recv(p.to_a, COMM, 1, EXACT, x.to.data(), 1, brief).status.code() == RDMA_DEADLINE_EXCEEDED);
  r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), 1, brief));
  CHECK(r.wait().code() == RDMA_DEADLINE_EXCEEDED && !r.pending());
  brief.timeout_ms = RDMA_MSG_FOREVER;
  r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), 1, brief));
  /* What the end of the manager cancels. */
  Told last;
  auto left = GET(p.b.irecv(p.to_a, COMM, 8, EXACT, x.to.data(), 1, last.options()));
  r.release();
  left.release();
  OK(p.mb.close());
  CHECK(last.runs == 1 && last.freed() && last.last.status.code() == RDMA_CANCELLED);
}

static void claim() {
  Pair p;
  CHECK(p.b.probe(p.to_a, COMM, 9).status().code() == RDMA_DEADLINE_EXCEEDED);
  for (std::size_t n : {std::size_t(0), std::size_t(8), std::size_t(100) << 10}) {
    Content one(n, 1), two(n, 2);
    auto s1 = GET(p.a.isend(p.to_b, COMM, 9, one.from.data(), n, synchronous()));
    auto s2 = GET(p.a.isend(p.to_b, COMM, 9, two.from.data(), n, synchronous()));
    auto seen = GET(p.b.probe(RDMA_PEER_ANY, COMM, 0, 0, false, 20000));
    CHECK(seen.ok() && seen.message == 0 && seen.bytes == n && seen.tag == 9 && seen.peer == p.to_a);
    auto claimed = GET(p.b.probe(p.to_a, COMM, 9, EXACT, true, 20000));
    CHECK(claimed.message != 0 && claimed.bytes == n);
    CHECK(p.b.recv(p.to_a, COMM, 9, EXACT, two.to.data(), n).ok() && two.arrived());
    auto r = GET(p.b.imrecv(claimed.message, one.to.data(), n));
    OK(r.wait());
    CHECK(one.arrived() && r.status().bytes == n && r.status().tag == 9 && r.status().peer == p.to_a);
    CHECK(p.b.imrecv(claimed.message, one.to.data(), n).status().code() == RDMA_NOT_FOUND);
    OK(s1.wait());
    OK(s2.wait());
  }
}

static void truncation() {
  Pair p;
  for (std::size_t n : {std::size_t(8), std::size_t(100) << 10}) {
    Content x(n);
    auto before = x.to;
    auto r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, x.to.data(), n - 1));
    auto s = GET(p.a.isend(p.to_b, COMM, 1, x.from.data(), n));
    CHECK(r.wait().code() == RDMA_OUT_OF_RANGE && r.status().bytes == n && x.to == before);
    OK(s.wait());
    s = GET(p.a.isend(p.to_b, COMM, 2, x.from.data(), n));
    auto got = p.b.recv(p.to_a, COMM, 2, EXACT, x.to.data(), n - 1);
    CHECK(!got.ok() && got.status.code() == RDMA_OUT_OF_RANGE && !got.status.message().empty() && got.bytes == n);
    CHECK(x.to == before);
    OK(s.wait());
    Told told;
    auto q = GET(p.b.irecv(p.to_a, COMM, 3, EXACT, x.to.data(), n - 1, told.options()));
    OK(p.a.send(p.to_b, COMM, 3, x.from.data(), n));
    CHECK(told.ran_once() && told.last.status.code() == RDMA_OUT_OF_RANGE && told.last.bytes == n && x.to == before);
  }
}

static void any_some_all() {
  Pair p;
  for (std::size_t count : {std::size_t(4), std::size_t(40)}) { /* few, and many */
    std::vector<std::uint64_t> got(count);
    std::vector<MessageRequest> r;
    for (std::size_t i = 0; i < count; i++) r.push_back(GET(p.b.irecv(p.to_a, COMM, i, EXACT, &got[i], 8)));
    r.emplace_back(); /* counts as none */
    auto send = [&](std::uint64_t i) { OK(p.a.send(p.to_b, COMM, i, &i, 8)); };
    CHECK(GET(p.b.test_any(r)) == Messages::none() && GET(p.b.test_some(r)).empty() && !GET(p.b.test_all(r)));
    CHECK(p.b.wait_any(r, 5).status().code() == RDMA_DEADLINE_EXCEEDED);
    CHECK(p.b.wait_some(r, 5).status().code() == RDMA_DEADLINE_EXCEEDED);
    CHECK(p.b.wait_all(r, 5).code() == RDMA_DEADLINE_EXCEEDED);
    send(2);
    CHECK(GET(p.b.wait_any(r)) == 2 && got[2] == 2 && !r[2].pending() && r[2].status().tag == 2);
    send(1);
    CHECK(GET(p.b.wait_some(r)) == std::vector<std::size_t>({1}) && got[1] == 1);
    CHECK(!GET(p.b.test_all(r)) && r[0].pending());
    OK(r[3].cancel());
    for (std::size_t i = 0; i < count; i++)
      if (i == 0 || i > 3) send(i);
    CHECK(p.b.wait_all(r).code() == RDMA_CANCELLED && r[3].status().status.code() == RDMA_CANCELLED);
    for (std::size_t i = 0; i < count; i++) CHECK(!r[i].pending() && r[i].status().tag == i && (i == 3 || got[i] == i));
    CHECK(GET(p.b.wait_any(r)) == Messages::none() && GET(p.b.wait_some(r)).empty() && GET(p.b.test_all(r)));
    OK(p.b.wait_all(r));
  }
  /* Requests that have ended when their calls return are told once, as the others. */
  rdma_peer_t self = GET(p.b.peer("beta"));
  std::uint64_t x = 7, y[3] = {};
  MessageRequest r[3];
  r[0] = GET(p.b.irecv(p.to_a, COMM, 100, EXACT, &y[0], 8));
  for (std::uint64_t i = 1; i < 3; i++) {
    OK(p.b.send(self, COMM, 100 + i, &x, 8));
    r[i] = GET(p.b.irecv(self, COMM, 100 + i, EXACT, &y[i], 8));
    CHECK(!r[i].pending());
  }
  CHECK(!GET(p.b.test_all(r)));
  CHECK(GET(p.b.wait_any(r)) == 1);
  CHECK(GET(p.b.wait_some(r)) == std::vector<std::size_t>({2}));
  CHECK(GET(p.b.test_any(r)) == Messages::none() && r[0].pending());
  const rdma::Status foreign = p.a.wait_all(r);
  CHECK(foreign.code() == RDMA_INVALID_ARGUMENT);
  CHECK(foreign.message() == "Messages::wait_all: requests[0] is of another manager, allowed are those of this one");
  CHECK(p.a.test_any(r).status().message().find("Messages::test_any: requests[0]") == 0);
  OK(p.a.send(p.to_b, COMM, 100, &x, 8));
  OK(p.b.wait_all(r[0]));
  CHECK(y[0] == 7 && y[1] == 7 && y[2] == 7);
  OK(p.b.wait_all(rdma::MessageSpan(nullptr, 0)));
  /* An end that a request alone has taken is not told again. */
  std::array<MessageRequest, 1> own;
  OK(p.b.send(self, COMM, 1, &x, 8));
  own[0] = GET(p.b.irecv(self, COMM, 1, EXACT, &y[0], 8));
  OK(own[0].wait());
  CHECK(GET(p.b.wait_any(own)) == Messages::none());
}

/* A request that nobody holds goes on; moving one does not free it. */
static void dropped_early() {
  Pair p;
  std::atomic<std::uint64_t> got{0};
  const std::uint64_t x = 99;
  rdma_msg_request_t id = 0;
  {
    auto r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, &got, 8));
    MessageRequest moved(std::move(r));
    CHECK(!r.pending() && moved.pending());
    r = std::move(moved);
    CHECK(r.pending() && !moved.pending() && !GET(r.test()));
    id = r.id();
  }
  CHECK(p.b.cancel(id).code() == RDMA_NOT_FOUND);
  OK(p.a.send(p.to_b, COMM, 1, &x, 8, synchronous()));
  CHECK(soon([&] { return got == 99; }));
  Content big(100 << 10);
  GET(p.a.isend(p.to_b, COMM, 2, big.from.data(), big.from.size()));
  CHECK(p.b.recv(p.to_a, COMM, 2, EXACT, big.to.data(), big.to.size()).ok() && big.arrived());
}

/* Pieces on either side, a header, parts. */
static void layouts() {
  Pair p;
  for (std::size_t n : {std::size_t(90), std::size_t(900000)}) {
    Content x(n);
    MessageOptions send, recv;
    std::size_t third = n / 3;
    auto piece = [&](std::vector<char> &v, std::size_t i) { return rdma_msg_piece_t{v.data() + i * third, third}; };
    send.layout = rdma::MessageLayout::parts({piece(x.from, 0), piece(x.from, 1), piece(x.from, 2)});
    send.header = "three parts";
    recv.layout = rdma::MessageLayout::strided(x.to.data(), 3, third, third);
    auto r = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, nullptr, 0, recv));
    auto s = GET(p.a.isend(p.to_b, COMM, 1, nullptr, 0, send));
    OK(r.wait());
    OK(s.wait());
    CHECK(x.arrived() && r.status().header == "three parts" && s.status().bytes == n);
    CHECK((r.status().part_lens == std::vector<std::uint64_t>{third, third, third}));
    x.to.assign(n, '?');
    recv.layout = rdma::MessageLayout::iovec({piece(x.to, 0), piece(x.to, 1), piece(x.to, 2)});
    rdma::MessageLayout taken(std::move(send.layout));
    CHECK(taken && taken.size() == x.from.size() && !send.layout && send.layout.size() == 0);
    send.layout = std::move(taken);
    CHECK(send.layout && !taken);
    send.layout = rdma::MessageLayout();
    send.header.clear();
    r = GET(p.b.irecv(p.to_a, COMM, 2, EXACT, nullptr, 0, recv));
    OK(p.a.send(p.to_b, COMM, 2, x.from.data(), n, send));
    OK(r.wait());
    CHECK(x.arrived() && r.status().header.empty() && r.status().part_lens.empty());
  }
  auto r = GET(p.b.irecv(p.to_a, COMM, 3, EXACT, nullptr, 0));
  OK(r.cancel());
  CHECK(!r.wait().ok() && !r.status().status.message().empty());
}

/* Handlers, prepared operations, buffered mode, room. */
static void more() {
  Pair p;
  static std::atomic<int> runs{0};
  static std::atomic<std::uint64_t> message{0};
  static rdma::MessageHandler handler;
  handler = [](const rdma::MessageStatus &s, const void *data) -> std::uint32_t {
    CHECK(s.comm == 9 && s.tag == 4 && s.header == "go" && (s.message || std::memcmp(data, "active", 6) == 0));
    message = s.message;
    runs++;
    return s.message ? RDMA_MSG_LATER : RDMA_MSG_HANDLED;
  };
  OK(p.b.handler(9, &handler));
  MessageOptions o;
  o.header = "go";
  auto r = GET(p.a.am_isend(p.to_b, 9, 4, "active", 6, o));
  CHECK(soon([] { return runs == 1; }));
  OK(r.wait());
  Content big(300000);
  r = GET(p.a.am_isend(p.to_b, 9, 4, big.from.data(), big.from.size(), o));
  CHECK(soon([] { return runs == 2; }));
  auto got = GET(p.b.imrecv(message, big.to.data(), big.to.size()));
  OK(got.wait());
  OK(r.wait());
  CHECK(big.arrived());
  OK(p.b.handler(9, nullptr));

  std::uint64_t x = 0, y = 0;
  auto send = GET(p.a.send_init(p.to_b, COMM, 1, &x, 8)), recv = GET(p.b.recv_init(p.to_a, COMM, 1, EXACT, &y, 8));
  for (x = 1; x < 5; x++) {
    auto in = GET(recv.start());
    auto out = GET(send.start());
    OK(in.wait());
    OK(out.wait());
    CHECK(y == x && in.status().bytes == 8);
  }

  OK(p.a.attach(1 << 20));
  MessageOptions buffered;
  buffered.mode = RDMA_MSG_BUFFERED;
  Content copy(300000);
  CHECK(!GET(p.a.isend(p.to_b, COMM, 2, copy.from.data(), copy.from.size(), buffered)).pending());
  std::vector<char> sent = copy.from;
  copy.from.assign(copy.from.size(), 0);
  CHECK(p.a.detach(1).code() == RDMA_DEADLINE_EXCEEDED);
  OK(p.b.recv(p.to_a, COMM, 2, EXACT, copy.to.data(), copy.to.size()).status);
  CHECK(copy.to == sent);
  OK(p.a.detach());

  static std::atomic<std::uint64_t> room{0};
  OK(p.a.on_room(p.to_b, 4096, [](const rdma::Status &s, std::uint64_t bytes) {
    OK(s);
    room = bytes;
  }));
  CHECK(soon([] { return room >= 4096; }));
}

/* Functions that are empty, or that would never run, are refused, and by name. */
static void refused_functions() {
  Pair p;
  char byte = 0;
  auto refused = [](const rdma::Status &s, const char *text) {
    CHECK(s.code() == RDMA_INVALID_ARGUMENT && s.message().find(text) != std::string::npos);
  };
  refused(p.a.on_room(p.to_b, 1, rdma::MessageRoom()), "Messages::on_room: run is an empty function");
  rdma::MessageHandler none;
  refused(p.b.handler(9, &none), "Messages::handler: run is an empty function");
  refused(p.b.handler_in_place(9, &none), "Messages::handler_in_place: run is an empty function");
  OK(p.b.handler(9, nullptr));
  Told told;
  refused(p.a.send_init(p.to_b, COMM, 1, &byte, 1, told.options()).status(), "options.done");
  refused(p.a.recv_init(p.to_b, COMM, 1, EXACT, &byte, 1, told.options()).status(), "options.done");
  CHECK(told.runs == 0 && told.freed());
  MessageOptions empty;
  empty.done = nullptr;
  CHECK(GET(p.a.send_init(p.to_b, COMM, 1, &byte, 1, empty)));
}

/* What a handle held is let go when another is moved over it, not when that one ends. */
static void moving_over() {
  Pair p;
  char bytes[2] = {};
  MessageRequest one = GET(p.b.irecv(p.to_a, COMM, 1, EXACT, &bytes[0], 1)), two = GET(p.b.irecv(p.to_a, COMM, 2, EXACT, &bytes[1], 1));
  const rdma_msg_request_t old = one.id(), kept = two.id();
  one = std::move(two);
  CHECK(one && one.id() == kept && !two && !two.pending() && p.b.cancel(old).code() == RDMA_NOT_FOUND);
  MessageRequest &same = one;
  one = std::move(same);
  CHECK(one.id() == kept);
  OK(one.cancel());
  CHECK(one.wait().code() == RDMA_CANCELLED && !one);
  two = std::move(one);
  CHECK(two.status().status.code() == RDMA_CANCELLED && one.status().ok());
  rdma::MessagePrepared first = GET(p.a.send_init(p.to_b, COMM, 1, bytes, 1)), second = GET(p.a.send_init(p.to_b, COMM, 2, bytes, 1));
  CHECK(first && second);
  first = std::move(second);
  CHECK(first && !second && second.start().status().code() == RDMA_INVALID_ARGUMENT);
}

static void an_answer_for_one_incarnation() {
  std::atomic<std::uint64_t> told{0};
  rdma::MessageHandler handler = [&](const rdma::MessageStatus &status, const void *) {
    told = status.incarnation;
    return RDMA_MSG_HANDLED;
  };
  Pair p; /* ends before its handler */
  OK(p.b.handler_in_place(9, &handler));
  OK(p.a.send(p.to_b, COMM, 1, "x", 1));
  (void)GET(p.a.am_isend(p.to_b, 9, 1, "x", 1));
  char got = 0;
  rdma::MessageStatus asked = p.b.recv(p.to_a, COMM, 1, EXACT, &got, 1);
  CHECK(asked.ok() && asked.incarnation != 0 && soon([&] { return told != 0; }) && told == asked.incarnation);
  MessageOptions only;
  only.incarnation = asked.incarnation;
  OK(p.b.send(p.to_a, COMM, 2, "y", 1, only));
  rdma::MessageStatus answer = p.a.recv(p.to_b, COMM, 2, EXACT, &got, 1);
  CHECK(answer.ok() && got == 'y' && answer.incarnation != 0 && answer.incarnation != asked.incarnation);
  /* The status of a send says the same whether or not it has ended at once. */
  const std::string small(1, 's'), large(3000000, 'l');
  for (const std::string *content : {&small, &large}) {
    rdma::MessageRequest sent = GET(p.b.isend(p.to_a, COMM, 3, content->data(), content->size(), only));
    rdma::MessagePrepared prepared = GET(p.b.send_init(p.to_a, COMM, 3, content->data(), content->size(), only));
    rdma::MessageRequest started = GET(prepared.start());
    std::vector<char> room(content->size());
    for (int i = 0; i < 2; i++) CHECK(p.a.recv(p.to_b, COMM, 3, EXACT, room.data(), room.size()).ok());
    for (rdma::MessageRequest *r : {&sent, &started}) {
      OK(r->wait());
      CHECK(r->status().ok() && r->status().incarnation == only.incarnation);
    }
  }
  only.incarnation ^= 1;
  rdma::Status other = p.b.send(p.to_a, COMM, 2, "z", 1, only);
  CHECK(other.code() == RDMA_UNAVAILABLE && other.message().find("alpha") != std::string::npos);
  CHECK(p.b.isend(p.to_a, COMM, 2, "z", 1, only).status().code() == RDMA_UNAVAILABLE);
}

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i++)
    if (std::strcmp(argv[i], "--provider") == 0) provider = argv[i + 1];
  const struct {
    const char *name;
    void (*run)();
  } cases[] = {{"names", names}, {"sizes", sizes}, {"callbacks", callbacks},
               {"callbacks_that_do_not_run", callbacks_that_do_not_run}, {"cancellation", cancellation}, {"claim", claim},
               {"truncation", truncation}, {"any_some_all", any_some_all}, {"dropped_early", dropped_early},
               {"layouts", layouts}, {"more", more}, {"refused_functions", refused_functions},
               {"moving_over", moving_over}, {"an_answer_for_one_incarnation", an_answer_for_one_incarnation}};
  int passed = 0;
  for (const auto &c : cases) {
    c.run();
    std::printf("  %-32s ok\n", c.name);
    std::fflush(stdout);
    passed++;
  }
  std::printf("cases: %d passed, 0 failed, 0 skipped\n", passed);
}
