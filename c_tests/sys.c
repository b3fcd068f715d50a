/* What the process uses, and a small JSON checker. */
#include "harness.h"
#include <ctype.h>
#include <dirent.h>

static int count_dir(const char *path) {
  int n = 0;
  DIR *d = opendir(path);
  CHECK(d != NULL);
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}
int count_fds(void) { return count_dir("/proc/self/fd") - 1; }
int count_threads(void) { return count_dir("/proc/self/task"); }
int count_threads_named(const char *name) {
  int count = 0;
  DIR *d = opendir("/proc/self/task");
  CHECK(d != NULL);
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], comm[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
    FILE *f = fopen(path, "re"); /* it may have ended */
    if (f && fgets(comm, sizeof comm, f)) comm[strcspn(comm, "\n")] = 0;
    if (f) fclose(f);
    count += strcmp(comm, name) == 0;
  }
  closedir(d);
  return count;
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif
bool is_sanitized(void) { return SANITIZED; }

/* Under a sanitizer those of files only, memory files among them: its allocator keeps mapping memory of its own. */
int count_maps(void) {
  int n = 0;
  unsigned long inode = 0;
  char *line = NULL;
  size_t cap = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  CHECK(f != NULL);
  while (getline(&line, &cap, f) > 0) {
    CHECK(sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1);
    n += !is_sanitized() || inode != 0;
  }
  free(line);
  fclose(f);
  return n;
}

static size_t kib_field(const char *path, const char *field) {
  char line[256];
  size_t value = 0;
  FILE *f = fopen(path, "re");
  CHECK(f != NULL);
  while (fgets(line, sizeof line, f))
    if (strncmp(line, field, strlen(field)) == 0) value = strtoull(line + strlen(field), NULL, 10);
  fclose(f);
  return value * KIB;
}
size_t rss_bytes(void) { return kib_field("/proc/self/smaps_rollup", "Rss:"); }
size_t mem_available(void) { return kib_field("/proc/meminfo", "MemAvailable:"); }

/* ---- JSON: syntax only ---- */
typedef struct json {
  const char *p, *end, *error;
  int depth;
} json;

static void value(json *j);
static void blank(json *j) {
  while (j->p < j->end && strchr(" \t\r\n", *j->p) && *j->p) j->p++;
}
static bool take(json *j, char c) {
  blank(j);
  if (j->p >= j->end || *j->p != c) return false;
  j->p++;
  return true;
}
static void bad(json *j, const char *why) {
  if (!j->error) j->error = why;
  j->p = j->end;
}
static void string(json *j) {
  if (!take(j, '"')) {
    bad(j, "string expected");
    return;
  }
  while (j->p < j->end && *j->p != '"') {
    if ((unsigned char)*j->p < 0x20) bad(j, "control character in a string");
    if (j->p < j->end && *j->p == '\\') j->p++;
    if (j->p < j->end) j->p++;
  }
  if (!take(j, '"')) bad(j, "string does not end");
}
static void number(json *j) {
  const char *start = j->p;
  while (j->p < j->end && (isdigit((unsigned char)*j->p) || (*j->p && strchr("+-.eE", *j->p)))) j->p++;
  if (j->p == start) bad(j, "value expected");
}
static void list(json *j, char close, bool pairs) {
  if (take(j, close)) return;
  do {
    if (pairs) {
      blank(j);
      string(j);
      if (!take(j, ':')) bad(j, "colon expected");
    }
    value(j);
  } while (take(j, ','));
  if (!take(j, close)) bad(j, "comma or end of the list expected");
}
static void value(json *j) {
  static const char *const words[] = {"true", "false", "null"};
  blank(j);
  if (j->p >= j->end || ++j->depth > 100) {
    bad(j, "value expected");
    return;
  }
  if (*j->p == '"') string(j);
  else if (take(j, '{')) list(j, '}', true);
  else if (take(j, '[')) list(j, ']', false);
  else {
    for (int i = 0; i < 3; i++)
      if ((size_t)(j->end - j->p) >= strlen(words[i]) && memcmp(j->p, words[i], strlen(words[i])) == 0) {
        j->p += strlen(words[i]);
        j->depth--;
        return;
      }
    number(j);
  }
  j->depth--;
}

const char *json_check(const char *text, size_t len) {
  json j = {text, text + len, NULL, 0};
  value(&j);
  blank(&j);
  if (!j.error && j.p != j.end) j.error = "something after the value";
  return j.error;
}
