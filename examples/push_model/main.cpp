// Sends every tensor of a safetensors file from one process to another, by name.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "transfer.hpp"

static const char usage[] =
    "push_model FILE [--out COPY] [--provider P]         both ends on this machine, as two processes\n"
    "push_model FILE --listen HOST:PORT [--provider P]   the sender\n"
    "push_model --from HOST:PORT [--out COPY]            the receiver\n";

static int guarded(int (*run)(const Settings &), const Settings &s, const char *who) {
  try {
    return run(s);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "\n%s: %s\n", who, e.what());
    return 1;
  }
}

static int launch(Settings s) {
  int pipes[2];
  char address[256];
  if (pipe(pipes) != 0) return std::perror("pipe"), 1;
  pid_t sender = fork();  // before any manager exists
  if (sender == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pipes[0]);
    s.announce_fd = pipes[1];
    _exit(guarded(serve, s, "sender"));
  }
  close(pipes[1]);
  ssize_t n = read(pipes[0], address, sizeof address - 1);
  close(pipes[0]);
  int rc = 1, status = 0;
  if (n > 1) {
    s.from.assign(address, static_cast<std::size_t>(n - 1));
    rc = guarded(pull, s, "receiver");
    if (rc != 0) kill(sender, SIGKILL);
  }
  waitpid(sender, &status, 0);
  return rc ? rc : status ? 1 : 0;
}

int main(int argc, char **argv) {
  Settings s;
  bool sender = false;
  for (int i = 1; i < argc; i++) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--listen") == 0 && more) s.listen = argv[++i], sender = true;
    else if (std::strcmp(argv[i], "--from") == 0 && more) s.from = argv[++i];
    else if (std::strcmp(argv[i], "--out") == 0 && more) s.out = argv[++i];
    else if (std::strcmp(argv[i], "--provider") == 0 && more) s.provider = argv[++i];
    else if (argv[i][0] != '-' && s.file.empty()) s.file = argv[i];
    else if (std::strcmp(argv[i], "--help") == 0) return std::fputs(usage, stdout), 0;
    else return std::fprintf(stderr, "not an argument, or its value is missing: '%s'\n%s", argv[i], usage), 2;
  }
  if (!s.from.empty() && s.file.empty()) return guarded(pull, s, "receiver");
  if (s.file.empty()) return std::fputs(usage, stderr), 2;
  return sender ? guarded(serve, s, "sender") : launch(s);
}
