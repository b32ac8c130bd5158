/* A stand-in for Envoy, in one thread, which is the worker. See envoy.h. */
#include "envoy.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* scheduler and event are what the filter has of its worker. */
typedef struct scheduler {
  stream *of;
  uint64_t number;
} scheduler;

typedef struct event {
  struct event *next;
  stream *of;
  uint64_t number;
} event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static event *events;
unsigned long answered, continued_n;
int counted[COUNTS];
unsigned seed_of_worker;
void (*on_set_header)(stream *s);

unsigned pick(unsigned *seed, unsigned n) { return (unsigned)rand_r(seed) % n; }

/* copy is memory of exactly this size, so that the sanitizer sees each read beyond it. */
span copy(const char *p, size_t n) {
  char *m = malloc(n ? n : 1);
  memcpy(m, p, n);
  return (span){m, n};
}

/* end ends a stream, as Envoy does. */
void end(stream *s) {
  if (s->ended) return;
  s->ended = true;
  envoy_dynamic_module_on_http_filter_stream_complete(s, s->filter);
  envoy_dynamic_module_on_http_filter_destroy(s->filter);
  for (size_t i = 0; i < s->chunks_n; i++) free((void *)s->chunks[i].p);
  s->chunks_n = 0;
  s->filter = NULL;
  pthread_mutex_lock(&lock);
  s->number = 0;
  pthread_mutex_unlock(&lock);
}

int CALL(http_filter_config_define_counter)(void *c, span name, span *l, size_t n, size_t *id) {
  static size_t next;
  (void)c, (void)name, (void)l, (void)n;
  *id = next++ % COUNTS;
  return 0;
}
int CALL(http_filter_config_increment_counter)(void *c, size_t id, span *v, size_t n, uint64_t by) {
  (void)c, (void)v, (void)n;
  __atomic_fetch_add(&counted[id], (int)by, __ATOMIC_RELAXED);
  return 0;
}
uint32_t CALL(http_filter_get_worker_index)(void *f) { return (void)f, 0; }
static const pair all_headers[] = {{":path", 5, "/a", 2}, {":method", 7, "POST", 4}, {"x-request-id", 12, "1", 1}};
static const pair some_response[] = {{":status", 7, "200", 3}, {"content-type", 12, "text/event-stream", 17}};
const pair *response_headers = some_response;
size_t response_headers_n = 2;
bool CALL(http_get_header)(void *f, int kind, span key, span *v, size_t i, size_t *n) {
  const pair *all = kind == REQUEST_HEADERS ? all_headers : response_headers;
  (void)f, (void)i, (void)n;
  for (size_t k = 0; k < (kind == REQUEST_HEADERS ? 3 : response_headers_n); k++)
    if (key.n == all[k].key_n && memcmp(key.p, all[k].key, key.n) == 0) {
      *v = (span){all[k].value, all[k].value_n};
      return true;
    }
  return false;
}
size_t CALL(http_get_headers_size)(void *f, int kind) { return (void)f, kind == REQUEST_HEADERS ? 3 : response_headers_n; }
bool CALL(http_get_headers)(void *f, int kind, pair *out) {
  size_t n = CALL(http_get_headers_size)(f, kind);
  memcpy(out, kind == REQUEST_HEADERS ? all_headers : response_headers, n * sizeof *out);
  return true;
}
/* touch reads all of a span. */
static void touch(span s) {
  volatile char c = 0;
  for (size_t i = 0; i < s.n; i++) c = (char)(c + s.p[i]);
}
bool CALL(http_set_header)(void *f, int kind, span key, span value) {
  (void)kind;
  touch(key), touch(value);
  if (on_set_header) on_set_header(f);
  return true;
}
bool CALL(http_add_header)(void *f, int kind, span key, span value) { return CALL(http_set_header)(f, kind, key, value); }
size_t CALL(http_get_body_size)(void *f, int kind) {
  stream *s = f;
  size_t n = 0;
  (void)kind;
  for (size_t i = 0; i < s->chunks_n; i++) n += s->chunks[i].n;
  return n;
}
size_t CALL(http_get_body_chunks_size)(void *f, int kind) { return (void)kind, ((stream *)f)->chunks_n; }
bool CALL(http_get_body_chunks)(void *f, int kind, span *out) {
  stream *s = f;
  (void)kind;
  memcpy(out, s->chunks, s->chunks_n * sizeof *out);
  return true;
}
bool CALL(http_drain_body)(void *f, int kind, size_t n) {
  stream *s = f;
  (void)kind, (void)n;
  for (size_t i = 0; i < s->chunks_n; i++) free((void *)s->chunks[i].p);
  s->chunks_n = 0;
  return true;
}
bool CALL(http_append_body)(void *f, int kind, span data) {
  stream *s = f;
  (void)kind;
  s->chunks[s->chunks_n++] = copy(data.p, data.n);
  return true;
}
void CALL(http_set_dynamic_metadata_string_batch)(void *f, span ns, const pair *v, size_t n) {
  (void)f, (void)ns;
  for (size_t i = 0; i < n; i++) touch((span){v[i].key, v[i].key_n}), touch((span){v[i].value, v[i].value_n});
}
bool CALL(http_get_metadata_string)(void *f, int s, span ns, span key, span *out) {
  (void)f, (void)s, (void)ns, (void)key;
  *out = SPAN("acme");
  return true;
}
void CALL(http_get_timing_info)(void *f, times *out) {
  (void)f;
  memset(out, 0, sizeof *out);
}
bool CALL(http_filter_get_attribute_string)(void *f, int a, span *out) {
  (void)f, (void)a;
  *out = SPAN("text");
  return true;
}
bool CALL(http_filter_get_attribute_int)(void *f, int a, uint64_t *out) {
  (void)f, (void)a;
  *out = ~0ull;
  return true;
}
void CALL(http_clear_route_cache)(void *f) { (void)f; }
void CALL(http_filter_continue_decoding)(void *f) {
  stream *s = f;
  assert(s->stopped && !s->continued);
  s->continued = true;
  continued_n++;
  if (pick(&seed_of_worker, 8) == 0) end(s); /* as a local reply of the router does */
}
void CALL(http_send_response)(void *f, uint32_t status, pair *h, size_t n, span body, span details) {
  stream *s = f;
  assert(status >= 200 && status < 600);
  for (size_t i = 0; i < n; i++) touch((span){h[i].key, h[i].key_n}), touch((span){h[i].value, h[i].value_n});
  touch(body), touch(details);
  answered++;
  s->answered = true;
  s->stage = 3;
  if (pick(&seed_of_worker, 2) == 0) end(s);
}
void CALL(http_filter_reset_stream)(void *f, int reason, span details) {
  (void)reason;
  touch(details);
  end(f);
}
void *CALL(http_filter_scheduler_new)(void *f) {
  scheduler *c = calloc(1, sizeof *c);
  c->of = f;
  c->number = c->of->number;
  return c;
}
void CALL(http_filter_scheduler_commit)(void *p, uint64_t e) {
  scheduler *c = p;
  event *n = calloc(1, sizeof *n), **at;
  (void)e;
  n->of = c->of;
  n->number = c->number;
  pthread_mutex_lock(&lock);
  assert(c->of->number == c->number); /* the filter has not ended */
  for (at = &events; *at; at = &(*at)->next) {
  }
  *at = n;
  c->of->scheduled++;
  pthread_mutex_unlock(&lock);
}
void CALL(http_filter_scheduler_delete)(void *c) { free(c); }

/* run_events runs what is scheduled. */
void run_events(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    event *e = events;
    if (e) events = e->next;
    bool live = e && e->of->number == e->number;
    pthread_mutex_unlock(&lock);
    if (!e) return;
    if (live && e->of->filter) envoy_dynamic_module_on_http_filter_scheduled(e->of, e->of->filter, 0);
    free(e);
  }
}


/* scheduled returns how many events the filter has scheduled for a stream. Each thread may call
 * it. */
unsigned scheduled(stream *s) {
  pthread_mutex_lock(&lock);
  unsigned n = s->scheduled;
  pthread_mutex_unlock(&lock);
  return n;
}

uint32_t CALL(network_filter_get_worker_index)(void *f) { return (void)f, 0; }
size_t CALL(network_filter_get_read_buffer_chunks_size)(void *f) { return ((gatepost *)f)->chunk.n ? 2 : 0; }
bool CALL(network_filter_get_read_buffer_chunks)(void *f, span *out) {
  span s = ((gatepost *)f)->chunk;
  if (s.n) out[0] = (span){s.p, s.n / 3}, out[1] = (span){s.p + s.n / 3, s.n - s.n / 3};
  return true;
}
bool CALL(network_filter_drain_read_buffer)(void *f, size_t n) {
  gatepost *g = f;
  assert(n == g->chunk.n);
  g->chunk.n = 0;
  return true;
}
void CALL(network_filter_write)(void *f, span data, bool end) {
  (void)end;
  if (send(((gatepost *)f)->fd, data.p, data.n, MSG_NOSIGNAL) < 0) return; /* the gateway has gone */
}
static void gatepost_close(gatepost *g, int event) {
  if (g->closed) return;
  g->closed = true;
  envoy_dynamic_module_on_network_filter_event(g, g->filter, event);
}
void CALL(network_filter_close)(void *f, int kind) {
  assert(kind == NETWORK_CLOSE_NO_FLUSH);
  gatepost_close(f, NETWORK_LOCAL_CLOSE);
}

/* gatepost_new takes a connection of the gateway. */
gatepost *gatepost_new(void *config, int fd) {
  gatepost *g = calloc(1, sizeof *g);
  g->fd = fd;
  g->filter = envoy_dynamic_module_on_network_filter_new(config, g);
  assert(g->filter && envoy_dynamic_module_on_network_filter_new_connection(g, g->filter) == NETWORK_CONTINUE);
  return g;
}

/* gatepost_hear gives the filter what has come. It reports whether the connection is still open. */
bool gatepost_hear(gatepost *g, span s) {
  span exact = copy(s.p, s.n);
  g->chunk = exact;
  assert(envoy_dynamic_module_on_network_filter_read(g, g->filter, s.n, false) == NETWORK_STOP && g->chunk.n == 0);
  free((void *)exact.p);
  return !g->closed;
}

void gatepost_end(gatepost *g) {
  gatepost_close(g, NETWORK_REMOTE_CLOSE);
  envoy_dynamic_module_on_network_filter_destroy(g->filter);
  close(g->fd);
  free(g);
}
