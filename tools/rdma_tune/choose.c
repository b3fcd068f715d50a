/* From medians to a limit. */
#include "tune.h"
#include <math.h>
#include <stdlib.h>

const uint32_t windows[WINDOWS] = {1, MAX_WINDOW};

/* What differs by less may be noise of the machine. */
static const double NOISE = 0.05;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double median(double *values, size_t n) {
  qsort(values, n, sizeof *values, by_value);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Each kind of memory, and one at a time and many, count alike. */
double ratio_at(const point *p) {
  double sum = 0;
  for (int m = 0; m < MEMORIES; m++)
    for (int w = 0; w < WINDOWS; w++) sum += log(p->eager[m][w] / p->put[m][w]);
  return exp(sum / (MEMORIES * WINDOWS));
}

enum { WHOLE = 2 };

/* The logarithm of eager / put, by half of the rounds or by all. */
static double log_at(const point *p, int half) {
  return half == WHOLE ? log(ratio_at(p)) : p->half[half] / (MEMORIES * WINDOWS);
}

/* How much quicker the sizes between the two limits are with the best one, on average. */
static double gain_by(const finding *f, int half) {
  bool up = f->best > f->built_in;
  uint64_t low = up ? f->built_in : f->best, high = up ? f->best : f->built_in;
  double sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < f->sizes; i++) {
    if (f->at[i].nbytes <= low || f->at[i].nbytes > high) continue;
    sum += log_at(&f->at[i], half);
    n++;
  }
  return n ? 1 - exp((up ? sum : -sum) / (double)n) : 0;
}

/* The limit below which eager is quicker and above which put is, as well as one limit can say it: a single size that was
 * disturbed does not end the search. What a disturbed machine says by chance the two halves do not both say. */
void choose_limit(finding *f) {
  double sum = 0, least = 0;
  f->best = 0;
  for (size_t i = 0; i < f->sizes; i++) {
    sum += log_at(&f->at[i], WHOLE);
    if (sum < least) least = sum, f->best = f->at[i].nbytes;
  }
  /* A limit of 0 in the file is the provider's own: half of the smallest size stands for none. */
  if (f->best == 0 && f->sizes) f->best = f->at[0].nbytes / 2;
  f->gain = gain_by(f, WHOLE);
  f->differs = f->gain > NOISE && gain_by(f, 0) > NOISE && gain_by(f, 1) > NOISE;
}
