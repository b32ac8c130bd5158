/* A stand-in for Envoy: one worker, which is the thread that calls this. */
#ifndef SLUICE_HARNESS_H
#define SLUICE_HARNESS_H
#include "../src/filter.h"

enum { CHUNKS = 40 };

/* stream is one request in the stand-in for Envoy. */
typedef struct stream {
  void *filter;
  uint64_t number;
  span chunks[CHUNKS];
  size_t chunks_n;
  int stage; /* 0: before headers, 1: body, 2: all is there, 3: response */
  bool stopped, continued, answered, ended;
  unsigned scheduled;
} stream;

extern unsigned long answered, continued_n; /* how many streams were answered, and went on */
extern int counted[COUNTS];                 /* the counters of the filter */
extern unsigned seed_of_worker;
extern const pair *response_headers; /* of all responses */
extern size_t response_headers_n;
/* on_set_header is called when the filter sets a header. Null means that nobody is. */
extern void (*on_set_header)(stream *s);

unsigned pick(unsigned *seed, unsigned n);
span copy(const char *p, size_t n);
void end(stream *s);
void run_events(void);
unsigned scheduled(stream *s);

/* gatepost is a connection of the gateway in the stand-in for Envoy. */
typedef struct gatepost {
  void *filter;
  int fd;
  bool closed; /* the filter is told already */
  span chunk;  /* what was read, and the filter has not */
} gatepost;

gatepost *gatepost_new(void *config, int fd);
bool gatepost_hear(gatepost *g, span s);
void gatepost_end(gatepost *g);
#endif
