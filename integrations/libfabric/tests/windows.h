/* Windows of each kind. */
#ifndef WINDOWS_H
#define WINDOWS_H
#include "check.h"

enum { CREATE, ALLOCATE, DYNAMIC };
extern const char *const WINDOW[];
struct window {
  MPI_Win win;
  unsigned char *memory;
  size_t length;
  int kind;
  MPI_Aint *at; /* where each rank's begins, as its displacement */
};
struct window window_of(int kind, size_t length);
void close_window(struct window *w);
#endif
