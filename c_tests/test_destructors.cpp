/* A manager may end in any destructor of the process: static, thread-local, of a pthread key, in an
 * atexit handler, while other threads are inside. Each case is a process of its own, since it is
 * about how a process ends. */
#include <rdma_transport_msg.hpp>
#include <rdma_transport_pair.hpp>
#include <rdma_transport_store.hpp>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static const char *provider = "loopback";

[[noreturn]] static void fail(const char *what, int line) {
  std::fprintf(stderr, "    FAILED at test_destructors.cpp:%d: %s\n", line, what);
  std::_Exit(1);
}
#define CHECK(cond) ((cond) ? void() : fail(#cond, __LINE__))
static void check(const rdma::Status &s, int line) {
  if (!s.ok()) fail(s.to_string().c_str(), line);
}
#define OK(expr) check((expr), __LINE__)

/* Threads of the library that still run: only they could call back. One that was joined may be listed until the kernel
 * has taken it apart; it runs nothing of the process any more, which its flags tell. */
static int library_threads() {
  const unsigned exiting = 0x4; /* PF_EXITING of Linux */
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  CHECK(dir != nullptr);
  while (dirent *e = readdir(dir)) {
    std::string path = std::string("/proc/self/task/") + e->d_name + "/stat";
    char line[512] = "";
    if (FILE *f = std::fopen(path.c_str(), "r")) {
      if (!std::fgets(line, sizeof line, f)) line[0] = 0;
      std::fclose(f);
    }
    unsigned flags = 0; /* number (name) state, then five numbers, then these */
    const char *rest = std::strrchr(line, ')');
    if (!rest || std::strstr(line, "(rdma-") == nullptr) continue;
    CHECK(std::sscanf(rest, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1);
    if (!(flags & exiting)) count++;
  }
  closedir(dir);
  return count;
}

/* A manager with a receive that only the manager's end will end. */
static std::atomic<int> cancelled{0};
static std::atomic<bool> gone{false};
struct Busy {
  rdma::Manager manager;
  void begin() {
    auto made = rdma::Manager::create(rdma::Options().name("busy").provider(provider));
    OK(made.status());
    manager = *std::move(made);
    /* An error, and a blocking call with callbacks: all that the library keeps per thread is in use. */
    CHECK(manager.connect("nobody").code() == RDMA_NOT_FOUND);
    static const char text[] = "text";
    OK(manager.send("first", 1, rdma::Tensor(text, sizeof text)));
    char into[sizeof text];
    OK(manager.recv_into("", "first", 1, into, sizeof into).status());
    OK(manager.recv_then("", "never sent", 1,
                         [](const rdma::Status &s, const rdma_tensor_t *, const rdma::TransferInfo &) {
                           CHECK(!gone && s.code() == RDMA_CANCELLED);
                           cancelled++;
                         }));
  }
  void end() { /* after it nothing may call back */
    manager = rdma::Manager();
    gone = true;
    CHECK(cancelled == 1);
    CHECK(library_threads() == 0);
  }
  ~Busy() {
    if (manager.c()) {
      end();
      std::puts("ended in the destructor");
      std::fflush(stdout);
    }
  }
};

/* Destroyed by exit, after the thread-local data of the thread that calls exit. */
static Busy in_static_storage;
static void static_destructor() { in_static_storage.begin(); }

/* Touched before the library has data of its own on the thread, so that it is destroyed after it. */
static thread_local Busy in_thread_storage;
static void begin_in_thread_storage() { in_thread_storage.begin(); }
static void thread_local_destructor() { std::thread(begin_in_thread_storage).join(); }
static void thread_local_destructor_of_the_main_thread() { begin_in_thread_storage(); }

/* Runs after every thread-local destructor of its thread. */
static pthread_key_t key;
static void end_busy(void *busy) { delete static_cast<Busy *>(busy); }
static void pthread_key_destructor() {
  CHECK(pthread_key_create(&key, end_busy) == 0);
  std::thread([] {
    Busy *busy = new Busy;
    busy->begin();
    CHECK(pthread_setspecific(key, busy) == 0);
  }).join();
}

static Busy *at_exit;
static void atexit_handler() {
  at_exit = new Busy;
  at_exit->begin();
  CHECK(std::atexit([] { delete at_exit; }) == 0);
}

/* The main thread sleeps in a receive when another thread ends the process. */
static void exit_while_a_call_blocks() {
  static std::atomic<bool> inside{false};
  in_static_storage.begin();
  std::thread([] {
    while (!inside) std::this_thread::yield();
    std::exit(0);
  }).detach();
  inside = true;
  auto r = in_static_storage.manager.recv("", "never sent either", 1);
  CHECK(r.status().code() == RDMA_CANCELLED || r.status().code() == RDMA_FAILED_PRECONDITION);
  for (;;) pause();
}

/* What is logged under the library's lock reaches the callback without it, also there. */
static void log_callback_in_a_destructor() {
  static rdma_mgr_t *handle;
  auto log = [](std::int32_t, const char *, std::size_t, void *) {
    std::size_t len = 0;
    if (handle) rdma_mgr_stats_json(handle, nullptr, 0, &len); /* takes the manager's lock */
  };
  CHECK(rdma_set_log_callback(log, RDMA_LOG_DEBUG, nullptr) == RDMA_OK);
  std::thread([] {
    begin_in_thread_storage();
    rdma::Manager &m = in_thread_storage.manager;
    auto address = m.listen("127.0.0.1:0");
    OK(address.status());
    auto other = rdma::Manager::create(rdma::Options().name("other"));
    OK(other.status());
    OK(other->add_peer("busy", *address));
    handle = m.c();
  }).join();
}

/* Every call works on a thread whose data is gone, not only the end. */
static void calls_in_a_destructor() {
  struct Calls {
    rdma::Manager m;
    ~Calls() {
      static const char text[] = "content";
      char into[sizeof text];
      std::int64_t dims[] = {2, 4};
      rdma_tensor_t t, out;
      rdma_tensor_init(&t, sizeof t);
      rdma_tensor_init(&out, sizeof out);
      t.data = text, t.nbytes = sizeof text, t.dims = dims, t.ndims = 2;
      CHECK(rdma_send(m.c(), "k", 1, 1, &t, nullptr, nullptr, nullptr) == RDMA_OK);
      rdma_recv_options_t o;
      rdma_recv_options_init(&o, sizeof o);
      o.dst = into, o.dst_len = sizeof into;
      CHECK(rdma_recv(m.c(), nullptr, "k", 1, 1, &o, &out, nullptr) == RDMA_OK);
      CHECK(std::strcmp(into, text) == 0 && out.ndims == 2 && out.dims[0] == 2 && out.dims[1] == 4);
      CHECK(rdma_mgr_progress(nullptr, nullptr) == RDMA_INVALID_ARGUMENT);
      char error[64];
      (void)rdma_last_error(error, sizeof error); /* may be gone, must not crash */
      OK(m.close());
      CHECK(library_threads() == 0);
      std::puts("ended in the destructor");
      std::fflush(stdout);
    }
  };
  std::thread([] {
    static thread_local std::unique_ptr<Calls> calls;
    calls.reset(new Calls);
    auto made = rdma::Manager::create(rdma::Options().name("calls").provider(provider));
    OK(made.status());
    calls->m = *std::move(made);
    static const char text[] = "text";
    OK(calls->m.send("first", 1, rdma::Tensor(text, sizeof text)));
    char into[sizeof text];
    OK(calls->m.recv_into("", "first", 1, into, sizeof into).status());
  }).join();
}

/* A forked child has the parent's objects but not its threads: their end is quiet, and the parent's
 * manager works on. */
static void exit_of_a_forked_child() {
  in_static_storage.begin();
  std::fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    cancelled = 1; /* what Busy looks for is the parent's */
    std::fclose(stdout);
    std::exit(7);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  CHECK(cancelled == 0);
}

/* There the C++ destructor can keep its word only by ending the process, and says so. */
static void destroyed_inside_its_callback() {
  static rdma::Manager *m = new rdma::Manager;
  auto made = rdma::Manager::create(rdma::Options().name("m").provider(provider));
  OK(made.status());
  *m = *std::move(made);
  OK(m->recv_then("", "k", 1, [](const rdma::Status &, const rdma_tensor_t *, const rdma::TransferInfo &) {
    rdma::Status refused = m->close();
    CHECK(refused.code() == RDMA_FAILED_PRECONDITION && m->c() != nullptr);
    delete m;
    fail("the destructor returned inside a callback", __LINE__);
  }));
  static const char text[] = "x";
  OK(m->send("k", 1, rdma::Tensor(text, 1)));
  for (;;) pause();
}

/* Runs `f` inside a callback of a manager, on this thread. */
static rdma::Manager turned(const char *name) {
  auto made = rdma::Manager::create(rdma::Options().name(name).provider(provider).manual_progress());
  OK(made.status());
  return *std::move(made);
}
static void inside_a_callback(rdma::Manager &m, const std::function<void()> &f) {
  bool ran = false;
  OK(m.recv_then("", "inside", 1, [&](const rdma::Status &s, const rdma_tensor_t *, const rdma::TransferInfo &) {
    OK(s);
    f();
    ran = true;
  }));
  static const char text[] = "x";
  OK(m.send("inside", 1, rdma::Tensor(text, 1)));
  while (!ran) OK(m.progress().status());
}

/* Of C++, too, what is the callback's is unwound, and the manager goes on. */
static void thread_that_left_a_callback() {
  struct Unwound {
    std::atomic<bool> &told;
    ~Unwound() { told = true; }
  };
  static std::atomic<bool> left{false};
  static rdma::Manager m;
  auto made = rdma::Manager::create(rdma::Options().name("m").provider(provider));
  OK(made.status());
  m = *std::move(made);
  OK(m.recv_then("", "k", 1, [](const rdma::Status &, const rdma_tensor_t *, const rdma::TransferInfo &) {
    Unwound unwound{left};
    pthread_exit(nullptr);
  }));
  static const char text[] = "x";
  OK(m.send("k", 1, rdma::Tensor(text, 1)));
  while (!left) std::this_thread::yield();
  OK(m.close());
  std::puts("the manager has ended");
}

/* That is told apart from an exception, which ends the process where it is thrown. */
static void exception_that_left_a_callback() {
  static rdma::Manager m;
  auto made = rdma::Manager::create(rdma::Options().name("m").provider(provider));
  OK(made.status());
  m = *std::move(made);
  OK(m.recv_then("", "k", 1, [](const rdma::Status &, const rdma_tensor_t *, const rdma::TransferInfo &) {
    throw std::runtime_error("thrown in a callback");
  }));
  static const char text[] = "x";
  OK(m.send("k", 1, rdma::Tensor(text, 1)));
  for (;;) pause();
}

/* Its memory is the library's until it has ended, also where that was refused. */
static rdma::UnboundBuffer receiving(const rdma::Manager &m, char *memory, std::size_t len) {
  auto made = rdma::UnboundBuffer::create(m, 9, memory, len);
  OK(made.status());
  OK(made->recv(RDMA_PEER_ANY, 1, 0, len));
  return *std::move(made);
}
static void unbound_buffer_refused_inside_a_callback() {
  static char memory[16];
  rdma::Manager m = turned("m");
  rdma::UnboundBuffer u = receiving(m, memory, sizeof memory);
  inside_a_callback(m, [&] {
    rdma_unbound_t id = u.id();
    CHECK(u.destroy().code() == RDMA_FAILED_PRECONDITION && u.id() == id);
  });
  OK(u.destroy());
  CHECK(u.id() == 0 && u.destroy().ok());
  rdma::Messages messages(m);
  auto me = messages.peer("m");
  OK(me.status());
  auto sent = messages.isend(*me, 9, 1, "written", 8);
  for (int i = 0; i < 100; i++) OK(m.progress().status());
  CHECK(memory[0] == 0);
  /* What another takes the place of ends then, and not with that other one. */
  rdma::UnboundBuffer first = receiving(m, memory, sizeof memory), second;
  rdma_unbound_t id = first.id();
  first = std::move(second);
  CHECK(rdma_unbound_destroy(m.c(), id) == RDMA_NOT_FOUND);
  /* Nor is one that outlives its manager, against the rule, a reason to end the process. */
  rdma::UnboundBuffer late = receiving(m, memory, sizeof memory);
  OK(m.close());
  CHECK(late.destroy().code() == RDMA_FAILED_PRECONDITION);
  std::puts("refused and ended");
}
static void unbound_buffer_destroyed_inside_a_callback() {
  static char memory[16];
  rdma::Manager m = turned("m");
  auto *u = new rdma::UnboundBuffer(receiving(m, memory, sizeof memory));
  inside_a_callback(m, [&] {
    delete u;
    fail("the destructor returned inside a callback", __LINE__);
  });
}

/* A store that could not end inside a callback ends by itself. */
static rdma::Store serving(std::string *at) {
  auto made = rdma::Store::serve("127.0.0.1:0", at);
  OK(made.status());
  return *std::move(made);
}
static bool is_served(const std::string &at) {
  rdma::StoreOptions options;
  options.timeout_ms = 500;
  auto client = rdma::Store::tcp(at, options);
  return client.ok() && client->set("k", "v").ok();
}
/* What a thread of its own ends, at any time from now on. */
static bool ends(const std::function<bool()> &has_ended) {
  for (int i = 0; i < 2000 && !has_ended(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return has_ended();
}
static void store_and_mesh_inside_a_callback() {
  std::string at, at2;
  rdma::Manager m = turned("m");
  rdma::Store store = serving(&at);
  std::unique_ptr<rdma::Store> dropped(new rdma::Store(serving(&at2)));
  auto met = rdma::Mesh::connect(m, store, 0, 1);
  OK(met.status());
  std::unique_ptr<rdma::Mesh> mesh(new rdma::Mesh(*std::move(met)));
  rdma_mesh_t *handle = mesh->c();
  rdma_peer_t peer = 0;
  inside_a_callback(m, [&] {
    CHECK(store.close().code() == RDMA_FAILED_PRECONDITION && store.c() != nullptr);
    dropped.reset();
    CHECK(rdma_mesh_peer(handle, 0, &peer) == RDMA_OK);
    CHECK(rdma_mesh_destroy(handle) == RDMA_FAILED_PRECONDITION); /* it cannot end here */
    mesh.reset();
  });
  OK(store.set("k", "v"));
  OK(store.close());
  CHECK(store.c() == nullptr && store.close().ok());
  CHECK(!is_served(at));
  CHECK(ends([&] { return !is_served(at2); }));
  CHECK(ends([&] { return rdma_mesh_peer(handle, 0, &peer) == RDMA_FAILED_PRECONDITION; }));
  std::puts("refused and ended");
}

/* Threads that register with one manager at once: it keeps what each of them gave. */
static void threads_set_sources() {
  rdma::Manager m = turned("m");
  std::atomic<int> ready{0};
  std::vector<std::thread> all;
  for (int t = 0; t < 4; t++)
    all.emplace_back([&] {
      std::string kept(100, 'k');
      ready++;
      while (ready < 4) std::this_thread::yield();
      for (int i = 0; i < 5000; i++) {
        OK(m.set_source([kept](rdma::Response r, rdma::StringView, rdma::StringView, std::int64_t) {
          OK(r.fail(RDMA_NOT_FOUND, kept));
        }));
        if (i % 1000 == 0) (void)m.register_device(rdma::CopyToHost(), rdma::CopyFromHost());
      }
    });
  for (std::thread &one : all) one.join();
  OK(m.close());
  std::puts("all were kept");
}

struct Case {
  const char *name;
  void (*run)();
  const char *says; /* in its output */
  int signal;       /* that ends it, or 0 */
};
static const Case cases[] = {
    {"r04_static_destructor", static_destructor, "ended in the destructor", 0},
    {"r04_thread_local_destructor", thread_local_destructor, "ended in the destructor", 0},
    {"r04_thread_local_destructor_of_the_main_thread", thread_local_destructor_of_the_main_thread,
     "ended in the destructor", 0},
    {"r04_pthread_key_destructor", pthread_key_destructor, "ended in the destructor", 0},
    {"r04_atexit_handler", atexit_handler, "ended in the destructor", 0},
    {"r04_exit_while_a_call_blocks", exit_while_a_call_blocks, "ended in the destructor", 0},
    {"r04_log_callback_in_a_destructor", log_callback_in_a_destructor, "ended in the destructor", 0},
    {"r04_calls_in_a_destructor", calls_in_a_destructor, "ended in the destructor", 0},
    {"r04_exit_of_a_forked_child", exit_of_a_forked_child, "ended in the destructor", 0},
    {"r04_destroyed_inside_its_callback", destroyed_inside_its_callback,
     "a Manager was destroyed inside a callback", SIGABRT},
    {"r04_unbound_buffer_refused_inside_a_callback", unbound_buffer_refused_inside_a_callback, "refused and ended", 0},
    {"r04_unbound_buffer_destroyed_inside_a_callback", unbound_buffer_destroyed_inside_a_callback,
     "an UnboundBuffer was destroyed inside a callback", SIGABRT},
    {"r04_store_and_mesh_inside_a_callback", store_and_mesh_inside_a_callback, "refused and ended", 0},
    {"r04_thread_that_left_a_callback", thread_that_left_a_callback, "the manager has ended", 0},
    {"r04_exception_that_left_a_callback", exception_that_left_a_callback, "thrown in a callback", SIGABRT},
    {"r04_threads_set_sources", threads_set_sources, "all were kept", 0},
};

/* Runs the case in a new process; true: it ended as it should. */
static bool run(const char *program, const Case &c) {
  int pipe_fds[2];
  CHECK(pipe(pipe_fds) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    dup2(pipe_fds[1], 1);
    dup2(pipe_fds[1], 2);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    alarm(60);
    execl(program, program, "--provider", provider, "--run", c.name, static_cast<char *>(nullptr));
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string output;
  char buffer[4096];
  ssize_t n;
  while ((n = read(pipe_fds[0], buffer, sizeof buffer)) > 0) output.append(buffer, static_cast<std::size_t>(n));
  close(pipe_fds[0]);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  bool ended = c.signal ? WIFSIGNALED(status) && WTERMSIG(status) == c.signal : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  bool good = ended && output.find(c.says) != std::string::npos;
  std::printf("  %-48s %s\n", c.name, good ? "ok" : "FAILED");
  if (!good) std::printf("    status %#x, output:\n%s\n", static_cast<unsigned>(status), output.c_str());
  std::fflush(stdout);
  return good;
}

int main(int argc, char **argv) {
  const char *only = nullptr;
  for (int i = 1; i + 1 < argc; i++) {
    if (std::strcmp(argv[i], "--provider") == 0) provider = argv[i + 1];
    if (std::strcmp(argv[i], "--run") == 0) only = argv[i + 1];
  }
  int passed = 0, failed = 0;
  for (const Case &c : cases) {
    if (!only) {
      (run("/proc/self/exe", c) ? passed : failed)++;
    } else if (std::strcmp(only, c.name) == 0) {
      c.run();
      return 0;
    }
  }
  std::printf("cases: %d passed, %d failed, 0 skipped\n", passed, failed);
  return failed ? 1 : 0;
}
