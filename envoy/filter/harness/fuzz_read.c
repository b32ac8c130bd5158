/* A target of libFuzzer: what the filter reads of a response does not depend on how the response is
 * divided. */
#include "envoy.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* read_all returns what is read of a response in pieces of step bytes, each in memory of its
 * own. */
static text read_all(span wanted, span body, size_t step, bool ended) {
  stream s = {0};
  text t = {0};
  reading *r = reading_new(wanted);
  reading_begin(r, &s);
  for (size_t at = 0; at < body.n; at += step) {
    span piece = copy(body.p + at, body.n - at < step ? body.n - at : step);
    reading_feed(r, piece, 1000);
    free((void *)piece.p);
  }
  if (ended) reading_end(r);
  put_reading(&t, r);
  reading_free(r);
  return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  static const pair headers[2][2] = {{{":status", 7, "200", 3}, {"content-type", 12, "text/event-stream", 17}},
                                     {{":status", 7, "200", 3}, {"content-type", 12, "application/json", 16}}};
  if (n < 2) return 0;
  reading_init();
  response_headers = headers[p[0] & 1];
  span wanted = p[0] & 2 ? SPAN("messages+stream") : SPAN("1+stream"), body = {(const char *)p + 2, n - 2};
  text whole = read_all(wanted, body, n, p[0] & 4), parts = read_all(wanted, body, 1 + p[1] % 40, p[0] & 4);
  assert(whole.n == parts.n && memcmp(whole.p, parts.p, whole.n) == 0);
  free(whole.p);
  free(parts.p);
  return 0;
}
