/* Memory, numbers and time. */
#include "filter.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* allocate returns zeroed memory. Like Envoy, the filter ends the process when there is none. */
void *allocate(size_t n) {
  void *p = calloc(1, n);
  if (!p) abort();
  return p;
}

void text_room(text *t, size_t more) {
  if (t->cap - t->n >= more) return;
  size_t cap = t->cap ? t->cap : 1024;
  while (cap - t->n < more) cap *= 2;
  t->p = realloc(t->p, cap);
  if (!t->p) abort();
  t->cap = cap;
}

void put(text *t, const void *p, size_t n) {
  text_room(t, n);
  if (n) memcpy(t->p + t->n, p, n);
  t->n += n;
}

/* Numbers are little-endian on every machine. */
static void put_number(text *t, uint64_t v, int bytes) {
  char b[8];
  for (int i = 0; i < bytes; i++) b[i] = (char)(v >> (8 * i));
  put(t, b, (size_t)bytes);
}

void put_u16(text *t, uint16_t v) { put_number(t, v, 2); }
void put_u32(text *t, uint32_t v) { put_number(t, v, 4); }
void put_u64(text *t, uint64_t v) { put_number(t, v, 8); }

uint64_t get_u64(const char *p) {
  uint64_t v = 0;
  for (int i = 0; i < 8; i++) v |= (uint64_t)(unsigned char)p[i] << (8 * i);
  return v;
}

void put_pair(text *t, span name, span value) {
  if (name.n > UINT16_MAX) name.n = UINT16_MAX; /* such a header is refused for its size */
  put_u16(t, (uint16_t)name.n);
  put_u16(t, 0);
  put_u32(t, (uint32_t)value.n);
  put(t, name.p, name.n);
  put(t, value.p, value.n);
}

/* decimal writes a number as text into room, which has DECIMAL bytes. snprintf takes five times as
 * long. */
span decimal(char *room, int64_t v) {
  char *end = room + DECIMAL, *at = end;
  uint64_t rest = v < 0 ? -(uint64_t)v : (uint64_t)v;
  do *--at = (char)('0' + rest % 10);
  while (rest /= 10);
  if (v < 0) *--at = '-';
  return (span){at, (size_t)(end - at)};
}

/* chunks_of lists the chunks of a body in *out, which has room for FEW. More of them have memory of
 * their own. */
size_t chunks_of(void *envoy, int kind, span **out) {
  size_t n = CALL(http_get_body_chunks_size)(envoy, kind);
  if (n > FEW) *out = allocate(n * sizeof **out);
  return n > 0 && CALL(http_get_body_chunks)(envoy, kind, *out) ? n : 0;
}

/* now_ms returns milliseconds of a clock that never goes back. */
int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
