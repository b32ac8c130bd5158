/* Reads responses from its input as the filter does while they pass, and prints what the record of
 * each says. A response is a line "WANTED ENDED STATUS PIECES TYPE ENCODING" (- for none), and that
 * many pieces: each is a line with its length, and its bytes. */
#include "envoy.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *get(size_t n) {
  char *p = malloc(n ? n : 1);
  if (fread(p, 1, n, stdin) != n) abort();
  return p;
}

static void print(const text *t) {
  for (span rest = {t->p, t->n}; rest.n;) {
    pair v = next_pair(&rest);
    printf("%.*s=%.*s;", (int)v.key_n, v.key, (int)v.value_n, v.value);
  }
  printf("\n");
}

int main(void) {
  char wanted[40], status[8], type[80], encoding[20];
  int ended, pieces;
  reading_init();
  while (scanf("%39s %d %7s %d %79s %19s", wanted, &ended, status, &pieces, type, encoding) == 6) {
    stream s = {0};
    text t = {0};
    int64_t now = 1000000;
    response_headers = (pair[]){{":status", 7, status, strlen(status)}, {"content-type", 12, type, strlen(type)},
                                {"content-encoding", 16, encoding, strlen(encoding)}};
    response_headers_n = encoding[0] == '-' ? 2 : 3;
    reading *r = reading_new((span){wanted, strlen(wanted)});
    reading_begin(r, &s);
    for (; pieces > 0; pieces--, now += 1000) {
      size_t n;
      if (scanf("%zu", &n) != 1 || getchar() != '\n') abort();
      char *p = get(n);
      reading_feed(r, (span){p, n}, now);
      free(p);
    }
    if (ended) reading_end(r);
    put_reading(&t, r);
    print(&t);
    free(t.p);
    reading_free(r);
  }
  return 0;
}
