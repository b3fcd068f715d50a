/* The first message to a peer arrives although who injected it drives nothing after that. */
#include <signal.h>
#include <sys/wait.h>

#include "fi_test.h"

static const struct setup kUsual = {.format = FI_CQ_FORMAT_TAGGED, .av = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN};

static void pass(int fd, void *name, size_t len, bool out) {
  CHECK((out ? write(fd, name, len) : read(fd, name, len)) == (ssize_t)len);
}

static void receiver(int in, int out) {
  struct side s;
  char name[64] = {0}, text[8];
  open_side(&s, kUsual);
  address_of(&s, name, sizeof name);
  OK(fi_recv(s.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, text));
  pass(out, name, sizeof name, true);
  expect(&s, NULL, text);
  pass(out, text, 1, true);
  /* The sender closes first. */
  pass(in, text, 1, false);
  close_side(&s);
}

int main(void) {
  int to[2], from[2], status;
  OK(pipe(to));
  OK(pipe(from));
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(100);
    receiver(to[0], from[1]);
    return 0;
  }
  struct side s;
  char name[64], byte;
  open_side(&s, kUsual);
  pass(from[0], name, sizeof name, false);
  CHECK(fi_av_insert(s.av, name, 1, &s.other, 0, NULL) == 1);
  OK(fi_inject(s.ep, "hello", 6, s.other));
  /* From here on nothing is driven. */
  alarm(20);
  pass(from[0], &byte, 1, false);
  alarm(0);
  close_side(&s);
  pass(to[1], &byte, 1, true);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
