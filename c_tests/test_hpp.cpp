/* The C++ layer: what the C tests do not see of it. */
#include <rdma_transport.hpp>
#include "hpp_check.hpp"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>
#include <type_traits>

static std::string provider = "loopback";
static int passed;

static rdma::Manager make(const char *name) {
  auto m = rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000));
  OK(m.status());
  return *std::move(m);
}
struct Pair {
  rdma::Manager a = make("alpha"), b = make("beta");
  Pair() {
    auto address = b.listen("127.0.0.1:0");
    OK(address.status());
    OK(a.add_peer("beta", *address));
  }
};

static void send_and_receive() {
  Pair p;
  std::vector<float> x(5000), y(5000);
  std::iota(x.begin(), x.end(), 1.0f);
  std::promise<rdma::Status> sent;
  OK(p.b.send("x", 1, rdma::Tensor(x.data(), x.size() * 4, {50, 100}, 1),
              [&](const rdma::Status &s, const rdma::TransferInfo &) { sent.set_value(s); }));
  auto r = p.a.recv("beta", "x", 1);
  OK(r.status());
  CHECK(r->tensor.nbytes() == 20000 && r->tensor.dims() == std::vector<std::int64_t>({50, 100}));
  CHECK(std::memcmp(r->tensor.data(), x.data(), 20000) == 0);
  OK(sent.get_future().get());
  /* Of nothing there is no memory, as of an empty vector. */
  OK(p.b.send("none", 1, rdma::Tensor(nullptr, 0)));
  auto none = p.a.recv_into("beta", "none", 1, nullptr, 0);
  OK(none.status());
  CHECK(none->nbytes() == 0 && !rdma::Response());
  CHECK((!std::is_constructible<rdma::StringView, int>::value && std::is_constructible<rdma::StringView, std::nullptr_t>::value));
  rdma::RecvOptions into;
  into.dst = y.data();
  into.dst_len = 20000;
  OK(p.b.send("x", 2, rdma::Tensor(x.data(), 20000).set_user("beside it")));
  auto again = p.a.recv("beta", "x", 2, into);
  OK(again.status());
  CHECK(y == x);
  CHECK(again->tensor.user() == "beside it" && r->tensor.user().empty());
}

static void futures() {
  Pair p;
  std::vector<std::future<rdma::Result<rdma::Received>>> all;
  std::vector<std::vector<int>> data;
  for (int i = 0; i < 50; i++) all.push_back(p.a.recv_future("beta", "f" + std::to_string(i), i));
  for (int i = 0; i < 50; i++) data.emplace_back(static_cast<std::size_t>(i * 100 + 1), i);
  for (int i = 0; i < 50; i++)
    OK(p.b.send("f" + std::to_string(i), i, rdma::Tensor(data[static_cast<std::size_t>(i)].data(), data[static_cast<std::size_t>(i)].size() * 4)));
  for (int i = 0; i < 50; i++) {
    CHECK(all[static_cast<std::size_t>(i)].wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    auto r = all[static_cast<std::size_t>(i)].get();
    OK(r.status());
    CHECK(static_cast<const int *>(r->tensor.data())[i * 100] == i);
  }
  auto none = p.a.recv_future("nobody", "k", 1).get();
  CHECK(!none.ok() && none.status().code() == RDMA_NOT_FOUND && !none.status().message().empty());
}

static void cancel_and_abort() {
  Pair p;
  std::promise<rdma::Status> first, second;
  auto r = p.a.recv_async("beta", "c", 1, [&](const rdma::Status &s, const rdma_tensor_t *t, const rdma::TransferInfo &) {
    CHECK(t == nullptr);
    first.set_value(s);
  });
  OK(r.status());
  OK(r->cancel());
  CHECK(first.get_future().get().code() == RDMA_CANCELLED);
  auto q = p.a.recv_async("beta", "d", 2, [&](const rdma::Status &s, const rdma_tensor_t *, const rdma::TransferInfo &) {
    second.set_value(s);
  });
  OK(q.status());
  OK(p.a.step_abort(2, RDMA_DATA_LOSS, "gone"));
  auto status = second.get_future().get();
  CHECK(status.code() == RDMA_DATA_LOSS && status.message().find("gone") != std::string::npos);
  OK(p.a.step_cleanup(2));
}

static void allocator_and_dead() {
  Pair p;
  std::vector<char> src(300000, 'x');
  std::unique_ptr<char[]> memory;
  rdma::RecvOptions o;
  o.alloc = [&](const rdma_tensor_t &meta) {
    memory.reset(new char[meta.nbytes]);
    return static_cast<void *>(memory.get());
  };
  OK(p.b.send("a", 1, rdma::Tensor(src.data(), src.size())));
  auto r = p.a.recv("beta", "a", 1, o);
  OK(r.status());
  CHECK(r->tensor.data() == memory.get() && memory[299999] == 'x');
  OK(p.b.send("dead", 1, rdma::Tensor::dead()));
  auto d = p.a.recv("beta", "dead", 1);
  OK(d.status());
  CHECK(d->tensor.is_dead() && d->tensor.nbytes() == 0);
}

static void source() {
  Pair p;
  static const char answer[] = "from the runtime's own table";
  OK(p.b.set_source([&](rdma::Response response, std::string_view peer, std::string_view key, std::int64_t step) {
    CHECK(peer == "alpha" && step == 7);
    if (key == "yes") OK(response.send(rdma::Tensor(answer, sizeof answer)));
    else OK(response.fail(RDMA_NOT_FOUND, "no such key"));
  }));
  auto r = p.a.recv("beta", "yes", 7);
  OK(r.status());
  CHECK(std::strcmp(static_cast<const char *>(r->tensor.data()), answer) == 0);
  CHECK(p.a.recv("beta", "no", 7).status().code() == RDMA_NOT_FOUND);
  OK(p.b.set_source({}));
}

/* What the old manager's callbacks point to lives until it has ended. */
static void moving_over_a_manager_ends_it_first() {
  struct Flag {
    bool &gone;
    ~Flag() { gone = true; }
  };
  bool gone = false, ended = false;
  auto old = make("old");
  auto flag = std::make_shared<Flag>(Flag{gone});
  gone = false; /* of the temporary */
  OK(old.set_source([flag](rdma::Response, std::string_view, std::string_view, std::int64_t) {}));
  flag.reset();
  OK(old.add_peer("nobody", "127.0.0.1:1"));
  auto pending = old.recv_async("nobody", "key", 1, [&](const rdma::Status &s, const rdma_tensor_t *, const auto &) {
    CHECK(s.code() == RDMA_CANCELLED && !gone);
    ended = true;
  });
  OK(pending.status());
  pending->release();
  old = make("new");
  CHECK(ended && gone && old.c() != nullptr);
}

static void the_rest() {
  Pair p;
  auto blob = p.b.export_address();
  OK(blob.status());
  auto gamma = make("gamma");
  auto name = gamma.import_address(*blob);
  OK(name.status());
  CHECK(*name == "beta");
  OK(gamma.connect("beta", 10000));
  auto info = gamma.peer_info("beta");
  OK(info.status());
  CHECK(info->state == RDMA_PEER_CONNECTED);
  OK(gamma.disconnect("beta"));
  CHECK(gamma.stats_json().ok() && gamma.metrics().ok());
  auto pool = gamma.alloc(4096);
  OK(pool.status());
  OK(gamma.free(*pool));
  std::vector<char> own(4096);
  OK(gamma.register_memory(own.data(), own.size()));
  OK(gamma.unregister_memory(own.data()));
  OK(gamma.invalidate_memory(own.data(), own.size()));
  auto device = gamma.register_device(
      [](void *host, const void *dev, std::uint64_t n, rdma::CopyDone done) { std::memcpy(host, dev, n), done(RDMA_OK); },
      [](void *dev, const void *host, std::uint64_t n, rdma::CopyDone done) { std::memcpy(dev, host, n), done(RDMA_OK); });
  OK(device.status());
  CHECK(*device != RDMA_DEVICE_HOST);
  auto bad = rdma::Manager::create(rdma::Options().provider("pigeon"));
  CHECK(!bad.ok() && bad.status().message().find("pigeon") != std::string::npos);
  rdma::Manager moved = std::move(gamma);
  CHECK(gamma.c() == nullptr && moved.c() != nullptr);
  auto copy = [](void *, const void *, std::uint64_t, rdma::CopyDone done) { done(RDMA_OK); };
  CHECK(gamma.register_device(copy, copy).status().message().find("rdma_mgr_register_device: mgr is NULL") == 0);
  moving_over_a_manager_ends_it_first();
  auto manual = rdma::Manager::create(rdma::Options().name("manual").manual_progress().provider(provider));
  OK(manual.status());
  CHECK(manual->progress().ok() && manual->event_fd().ok());
  /* Each error names its function once. */
  const double content[2] = {1, 2};
  rdma::Status inside;
  OK(manual->send("inside", 0, rdma::Tensor(content, sizeof content, {2}, 2),
                  [&](const rdma::Status &, const rdma_transfer_info_t &) { inside = manual->wait(1); }));
  OK(manual->recv("", "inside", 0).status());
  while (inside.ok()) OK(manual->progress().status());
  CHECK(inside.message() == "rdma_mgr_wait: was called inside a callback of the same manager, allowed is every other place");
  auto waited = manual->wait(1);
  CHECK(waited.ok() || waited.code() == RDMA_DEADLINE_EXCEEDED);
}

/* Memory of a pool goes between two managers that have it, and outlives one of them. */
static void pool() {
  rdma::Pool none;
  CHECK(!none && none.alloc(8).status().code() == RDMA_INVALID_ARGUMENT && none.close().ok());
  auto made = rdma::Pool::create(64 << 20);
  OK(made.status());
  rdma::Pool pool = *std::move(made);
  auto x = pool.alloc(1 << 20), y = pool.alloc(1 << 20);
  OK(x.status());
  OK(y.status());
  std::memset(*x, 7, 1 << 20);
  {
    auto with = [&](const char *name) {
      auto m = rdma::Manager::create(rdma::Options().name(name).provider(provider).timeout_ms(20000).pool(pool));
      OK(m.status());
      return *std::move(m);
    };
    rdma::Manager a = with("alpha"), b = with("beta");
    auto address = b.listen("127.0.0.1:0");
    OK(address.status());
    OK(a.add_peer("beta", *address));
    OK(b.send("x", 1, rdma::Tensor(*x, 1 << 20)));
    rdma::RecvOptions into;
    into.dst = *y;
    into.dst_len = 1 << 20;
    OK(a.recv("beta", "x", 1, into).status());
  }
  CHECK(std::memcmp(*x, *y, 1 << 20) == 0);
  OK(pool.free(*x));
  CHECK(pool.free(*x).code() == RDMA_NOT_FOUND);
  auto usage = pool.usage();
  CHECK(usage.ok() && usage->used >= 1 << 20 && usage->reserved >= usage->used);
  rdma::Pool moved = std::move(pool);
  CHECK(!pool && moved && moved.free(*y).ok() && moved.close().ok() && !moved);
  auto unknown = rdma::Manager::create(rdma::Options().ib_device("a,,b"));
  CHECK(!unknown.ok() && unknown.status().message().find("an empty name") != std::string::npos);
  CHECK(unknown.status().message().find("options.ib_device=a,,b") != std::string::npos);
}

/* What was moved from is as if it had not been given. */
static void moved_options() {
  rdma::Options first = rdma::Options().name("moved").provider(provider).secret("open sesame");
  rdma::Options second = std::move(first);
  OK(rdma::Manager::create(first).status());
  rdma::Options third;
  third.name("overwritten");
  third = std::move(second);
  OK(rdma::Manager::create(second).status());
  CHECK(std::strcmp(third.c().name, "moved") == 0 && third.c().secret_len == 11);
  OK(rdma::Manager::create(third).status());
  rdma::OptionalText one("text"), other(std::move(one));
  CHECK(!one && one.str().empty() && other && other.str() == "text");
  other = rdma::OptionalText();
  CHECK(!other);
}

/* Hooks from the first moment, names learned, no request to hold. */
static void r23_cpp_layer() {
  rdma::Manager none;
  CHECK(!none && none.step_cleanup(1).code() == RDMA_INVALID_ARGUMENT && none.close().ok());
  rdma::Result<rdma::Received> nothing;
  CHECK(!nothing.ok() && nothing.status().code() == RDMA_UNKNOWN);
  rdma::Response nobody;
  CHECK(nobody.fail(RDMA_INTERNAL, "x").code() == RDMA_INVALID_ARGUMENT);

  static const char answer[] = "answer";
  std::promise<std::string> came, went;
  std::promise<rdma_response_t> asked, over;
  auto server = rdma::Manager::create(rdma::Options().name("first").provider(provider).listen("127.0.0.1:0")
      .source([&](rdma::Response response, std::string_view, rdma::StringView key, std::int64_t) {
        if (key == "yes") OK(response.send(rdma::Tensor(answer, sizeof answer)));
        else asked.set_value(response.id());
      })
      .source_ended([&](rdma_response_t id, const rdma::Status &s) {
        CHECK(!s.ok());
        over.set_value(id);
      })
      .peer_event([&](rdma::StringView peer, const rdma::Status &s) { (s.ok() ? came : went).set_value(peer.str()); }));
  OK(server.status());
  OK(server->set_name("server"));
  auto client = make("client");
  OK(client.import_address(*server->export_address()).status());
  char into[sizeof answer];
  auto r = client.recv_into("server", "yes", 1, into, sizeof into);
  OK(r.status());
  CHECK(r->nbytes() == sizeof answer && std::strcmp(into, answer) == 0);
  CHECK(came.get_future().get() == "client");
  std::promise<rdma::Status> ended;
  OK(client.recv_then("server", "no", 1, [&](const rdma::Status &s, const rdma_tensor_t *, const rdma::TransferInfo &) { ended.set_value(s); }));
  auto id = asked.get_future().get();
  OK(client.step_abort(1, RDMA_ABORTED, "enough"));
  CHECK(ended.get_future().get().code() == RDMA_ABORTED);
  CHECK(over.get_future().get() == id);
  OK(client.flush("server", 20000));
  OK(client.wake());
  OK(client.wait(20000));
  OK(client.close());
  CHECK(!client && went.get_future().get() == "client");
  CHECK(server->meet("127.0.0.1:1", 50).status().code() != RDMA_OK);
}

static void refused(const rdma::Status &status, const std::string &argument) {
  CHECK(status.code() == RDMA_INVALID_ARGUMENT);
  CHECK(status.message().find(": " + argument + " of ") != std::string::npos && status.message().find("NUL at 4") != std::string::npos);
}

/* C would end them there, and mean another peer, address or file. */
static void texts_with_a_nul() {
  const std::string cut("peer\0 and more", 14), whole = "127.0.0.1:1";
  auto m = make("alone");
  char byte;
  refused(m.listen(cut).status(), "address");
  refused(m.add_peer(cut, whole), "peer");
  refused(m.add_peer("other", cut), "address");
  refused(m.add_peer_at(cut), "address");
  refused(m.meet(cut, 1).status(), "address");
  refused(m.set_name(cut), "name");
  OK(m.add_peer("peer", whole));
  refused(m.connect(cut), "peer");
  refused(m.disconnect(cut), "peer");
  refused(m.peer_info(cut).status(), "peer");
  refused(m.flush(cut, 1), "peer");
  refused(m.recv(cut, "key", 1).status(), "peer");
  refused(m.recv_into(cut, "key", 1, &byte, 1).status(), "peer");
  refused(m.recv_future(cut, "key", 1).get().status(), "peer");
  auto never = [](const rdma::Status &, const rdma_tensor_t *, const rdma::TransferInfo &) { CHECK(false); };
  refused(m.recv_async(cut, "key", 1, never).status(), "peer");
  refused(m.recv_then(cut, "key", 1, never), "peer");
  refused(m.trace_start(cut), "path");
  using rdma::Options;
  for (const auto &options : {std::make_pair("name", Options().name(cut)), std::make_pair("provider", Options().provider(cut)),
                              std::make_pair("listen", Options().listen(cut)), std::make_pair("ib_device", Options().ib_device(cut))})
    refused(rdma::Manager::create(options.second).status(), options.first);
  OK(rdma::Manager::create(Options().name("free").secret(cut)).status());
}

/* What was set reaches C, which refuses it: without, a manager whose secret was an empty file would ask for none. */
static void empty_texts() {
  using rdma::Options;
  for (const auto &options : {std::make_pair("name", Options().name("")), std::make_pair("provider", Options().provider("")),
                              std::make_pair("listen", Options().listen("")), std::make_pair("secret", Options().secret("")),
                              std::make_pair("ib_device", Options().ib_device(""))}) {
    rdma::Status status = rdma::Manager::create(options.second).status();
    CHECK(status.code() == RDMA_INVALID_ARGUMENT && status.message().find(options.first) != std::string::npos);
  }
  const rdma_mgr_options_t unset = Options().c();
  CHECK(!unset.name && !unset.provider && !unset.listen && !unset.secret && unset.secret_len == 0 && !unset.ib_device);
  OK(rdma::Manager::create(Options().secret("").secret("better")).status());
}

/* Where there has to be a function, an empty one is refused, and not called later; elsewhere it is none. */
static void empty_functions() {
  Pair p;
  auto copy = [](void *, const void *, std::uint64_t, rdma::CopyDone done) { done(RDMA_OK); };
  auto none = p.a.register_device(nullptr, copy);
  CHECK(none.status().code() == RDMA_INVALID_ARGUMENT && none.status().message() == "Manager::register_device: to_host is an empty function, allowed is one to call");
  none = p.a.register_device(copy, nullptr);
  CHECK(none.status().code() == RDMA_INVALID_ARGUMENT && none.status().message() == "Manager::register_device: from_host is an empty function, allowed is one to call");
  char x = 7, y = 0, z = 0;
  auto options = rdma::Options().name("quiet").provider(provider).source(nullptr).source_ended(nullptr).peer_event(nullptr);
  auto quiet = rdma::Manager::create(options);
  OK(quiet.status());
  OK(quiet->set_source(nullptr));
  rdma::RecvOptions into;
  into.dst = &y, into.dst_len = 1;
  OK(p.b.send("x", 1, rdma::Tensor(&x, 1), rdma::SendDone()));
  OK(p.a.recv_then("beta", "x", 1, rdma::RecvDone(), into));
  OK(p.b.flush("", 20000));
  OK(p.b.send("x", 2, rdma::Tensor(&x, 1)));
  into.dst = &z, into.alloc = nullptr;
  auto request = p.a.recv_async("beta", "x", 2, nullptr, into);
  OK(request.status());
  OK(p.b.flush("", 20000));
  OK(p.a.flush("", 20000));
  CHECK(y == 7 && z == 7);
}

/* What a handle held ends when another is moved over it, not when that one ends. */
static void moving_over() {
  Pair p;
  char x = 1;
  OK(p.b.send("one", 1, rdma::Tensor(&x, 1)));
  OK(p.b.send("two", 1, rdma::Tensor(&x, 1)));
  rdma::Received one = *p.a.recv("beta", "one", 1), two = *p.a.recv("beta", "two", 1);
  const rdma_request_t old = one.request.id(), kept = two.request.id();
  CHECK(one.request && two.request && old != kept);
  one = std::move(two);
  CHECK(one.request.id() == kept && !two.request && two.request.id() == 0);
  CHECK(rdma_request_release(p.a.c(), old) == RDMA_NOT_FOUND);
  rdma::Request &same = one.request;
  same = std::move(one.request);
  CHECK(one.request.id() == kept);
  auto first = rdma::Pool::create(2 << 20), second = rdma::Pool::create(2 << 20);
  OK(first.status());
  OK(second.status());
  rdma_pool_t *left = second->c();
  *first = std::move(*second);
  CHECK(first->c() == left && !*second);
}

/* Texts compare with each other, and with what they convert to and from. */
static void views() {
  const std::string text("key");
  const std::string_view view(text);
  const rdma::StringView key(text), other("kez"), empty;
  CHECK(key == view && view == key && key == text && text == key && key == "key" && "key" == key && key == rdma::StringView(view));
  CHECK(key != other && other != view && view != other && key != "ke" && empty == "" && empty == std::string_view());
  CHECK(key < other && view < other && !(other < text) && empty < key && "ke" < key && key <= "key" && other > view && other >= "kez");
  CHECK(rdma::StringView("a\0b", 3) != "a" && rdma::StringView("\xff") > "a");
  CHECK(std::hash<rdma::StringView>()(key) == std::hash<rdma::StringView>()(view) &&
        std::hash<rdma::StringView>()(key) != std::hash<rdma::StringView>()(other));
  std::ostringstream out;
  out << key << '/' << empty << rdma::StringView("z");
  CHECK(out.str() == "key/z");
  CHECK(rdma::Status() == rdma::Status() && rdma::Status(RDMA_ABORTED, "a") == rdma::Status(RDMA_ABORTED, "a"));
  CHECK(rdma::Status(RDMA_ABORTED, "a") != rdma::Status(RDMA_ABORTED, "b") && rdma::Status(RDMA_ABORTED, "") != rdma::Status());
}

/* Texts that C writes to a buffer. */
static void providers_and_keys() {
  auto all = rdma::providers();
  OK(all.status());
  CHECK(all->front() == '[' && all->back() == ']' && all->find("\"loopback\"") != std::string::npos && all->find('\0') == std::string::npos);
  rdma::Key key;
  key.src_device = "/job:ps/task:0", key.dst_device = "/job:worker/task:1", key.edge_name = "edge_7_" + std::string(9000, 'x');
  key.src_incarnation = 0xabcdef, key.frame = 3, key.iter = 4;
  auto text = key.build();
  OK(text.status());
  CHECK(*text == "/job:ps/task:0;0000000000abcdef;/job:worker/task:1;" + key.edge_name + ";3:4");
  auto again = rdma::Key::parse(*text);
  OK(again.status());
  CHECK(again->src_device == key.src_device && again->dst_device == key.dst_device && again->edge_name == key.edge_name);
  CHECK(again->src_incarnation == 0xabcdef && again->frame == 3 && again->iter == 4);
  CHECK(rdma::Key::parse("no key").status().code() == RDMA_INVALID_ARGUMENT);
  key.edge_name = "a;b";
  CHECK(key.build().status().code() == RDMA_INVALID_ARGUMENT);
}

/* What a device exports goes through; no RDMA device has to be here for that. */
static void dmabuf() {
  Pair p;
  char memory[64], *there = nullptr;
  auto copy = [](void *to, const void *from, std::uint64_t n, rdma::CopyDone done) { std::memcpy(to, from, n), done(RDMA_OK); };
  rdma::ExportDmabuf give = [&](const void *device, std::uint64_t n, int *fd, std::uint64_t *offset) {
    there = static_cast<char *>(const_cast<void *>(device));
    *fd = 77, *offset = n;
    return RDMA_UNAVAILABLE;
  };
  OK(p.a.register_device(copy, copy, give).status());
  OK(p.a.register_device(copy, copy, nullptr).status());
  rdma::detail::Device device{copy, copy, give};
  int fd = 0;
  std::uint64_t offset = 0;
  CHECK(rdma::detail::export_dmabuf(memory, 64, &fd, &offset, &device) == RDMA_UNAVAILABLE);
  CHECK(there == memory && fd == 77 && offset == 64);
}

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i++)
    if (std::strcmp(argv[i], "--provider") == 0) provider = argv[i + 1];
  const struct {
    const char *name;
    void (*run)();
  } cases[] = {{"send_and_receive", send_and_receive}, {"futures", futures}, {"cancel_and_abort", cancel_and_abort},
               {"allocator_and_dead", allocator_and_dead}, {"source", source}, {"the_rest", the_rest}, {"pool", pool},
               {"r23_cpp_layer", r23_cpp_layer}, {"moved_options", moved_options}, {"texts_with_a_nul", texts_with_a_nul},
               {"empty_texts", empty_texts}, {"empty_functions", empty_functions}, {"moving_over", moving_over}, {"views", views},
               {"providers_and_keys", providers_and_keys}, {"dmabuf", dmabuf}};
  for (const auto &c : cases) {
    c.run();
    std::printf("  %-32s ok\n", c.name);
    std::fflush(stdout);
    passed++;
  }
  std::printf("cases: %d passed, 0 failed, 0 skipped\n", passed);
}
