/* A stand-in for Envoy and for a gateway that says anything, to run the filter under sanitizers:
 *   harness SOCKET REQUESTS SEED
 * The main thread is Envoy's worker. It begins requests, goes on with them and ends them in random order.
 * Another thread is the gateway. It answers well, wrongly, late or not at all. At the end nothing may be
 * left. */
#include "../src/filter.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 64, CHUNKS = 40 };

/* stream is one request in the stand-in for Envoy. */
typedef struct stream {
  void *filter;
  uint64_t number;
  span chunks[CHUNKS];
  size_t chunks_n;
  int stage; /* 0: before headers, 1: body, 2: all is there, 3: response */
  bool stopped, continued, ended;
} stream;

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
static stream streams[MOST];
static uint64_t numbers, answered, undecided_n, continued_n;
static int counted[COUNTS];
static bool over;

static unsigned pick(unsigned *seed, unsigned n) { return (unsigned)rand_r(seed) % n; }
static unsigned seed_of_worker, seed_of_peer;

/* copy is memory of exactly this size, so that the sanitizer sees each read beyond it. */
static span copy(const char *p, size_t n) {
  char *m = malloc(n ? n : 1);
  memcpy(m, p, n);
  return (span){m, n};
}

static void end(stream *s) {
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
  *id = next++;
  return 0;
}
int CALL(http_filter_config_increment_counter)(void *c, size_t id, span *v, size_t n, uint64_t by) {
  (void)c, (void)v, (void)n;
  __atomic_fetch_add(&counted[id], (int)by, __ATOMIC_RELAXED);
  return 0;
}
uint32_t CALL(http_filter_get_worker_index)(void *f) { return (void)f, 0; }
static const pair all_headers[] = {{":path", 5, "/a", 2}, {":method", 7, "POST", 4}, {"x-request-id", 12, "1", 1}};
bool CALL(http_get_header)(void *f, int kind, span key, span *v, size_t i, size_t *n) {
  (void)f, (void)kind, (void)i, (void)n;
  for (size_t k = 0; k < 3; k++)
    if (key.n == all_headers[k].key_n && memcmp(key.p, all_headers[k].key, key.n) == 0) {
      *v = (span){all_headers[k].value, all_headers[k].value_n};
      return true;
    }
  return false;
}
size_t CALL(http_get_headers_size)(void *f, int kind) { return (void)f, (void)kind, 3; }
bool CALL(http_get_headers)(void *f, int kind, pair *out) {
  (void)f, (void)kind;
  memcpy(out, all_headers, sizeof all_headers);
  return true;
}
/* touch reads all of a span. */
static void touch(span s) {
  volatile char c = 0;
  for (size_t i = 0; i < s.n; i++) c = (char)(c + s.p[i]);
}
bool CALL(http_set_header)(void *f, int kind, span key, span value) {
  (void)f, (void)kind;
  touch(key), touch(value);
  return true;
}
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
size_t CALL(http_get_metadata_keys_count)(void *f, int s, span ns) { return (void)f, (void)s, (void)ns, 1; }
bool CALL(http_get_metadata_keys)(void *f, int s, span ns, span *out) {
  (void)f, (void)s, (void)ns;
  *out = SPAN("tenant");
  return true;
}
bool CALL(http_get_metadata_string)(void *f, int s, span ns, span key, span *out) {
  (void)f, (void)s, (void)ns, (void)key;
  *out = SPAN("acme");
  return true;
}
bool CALL(http_get_typed_metadata)(void *f, int s, span ns, span *type, span *out) {
  (void)f, (void)s, (void)ns, (void)type, (void)out;
  return false;
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
  pthread_mutex_unlock(&lock);
}
void CALL(http_filter_scheduler_delete)(void *c) { free(c); }

static void run_events(void) {
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

static void add_chunk(stream *s) {
  static char content[200000];
  size_t n = pick(&seed_of_worker, 4) ? pick(&seed_of_worker, 9000) : pick(&seed_of_worker, sizeof content);
  memset(content, 'b', n);
  s->chunks[s->chunks_n++] = copy(content, n);
}

static void begin(stream *s, void *config) {
  *s = (stream){.number = ++numbers};
  s->filter = envoy_dynamic_module_on_http_filter_new(config, s);
  if (pick(&seed_of_worker, 30) == 0) return; /* another filter answers it */
  bool last = pick(&seed_of_worker, 3) == 0;
  s->stopped = envoy_dynamic_module_on_http_filter_request_headers(s, s->filter, last) == HEADERS_STOP;
  s->continued = !s->stopped;
  s->stage = last ? 2 : 1;
  if (!s->stopped) undecided_n++;
}

static void body(stream *s) {
  bool last = pick(&seed_of_worker, 3) == 0 || s->chunks_n > CHUNKS - 4;
  add_chunk(s);
  if (last && pick(&seed_of_worker, 5) == 0) {
    envoy_dynamic_module_on_http_filter_request_body(s, s->filter, false);
    envoy_dynamic_module_on_http_filter_request_trailers(s, s->filter);
  } else {
    envoy_dynamic_module_on_http_filter_request_body(s, s->filter, last);
  }
  if (last) s->stage = 2;
}

/* go_on does the next thing that happens to a stream. */
static void go_on(stream *s, void *config) {
  if (!s->filter) begin(s, config);
  else if (pick(&seed_of_worker, 12) == 0) end(s);
  else if (s->stage == 1) body(s);
  else if (s->stage == 2 && s->continued) {
    s->stage = 3;
    envoy_dynamic_module_on_http_filter_response_headers(s, s->filter, false);
  } else if (s->stage == 3 && pick(&seed_of_worker, 4) == 0) {
    end(s);
  }
}

static size_t random_answer(char *b, const char *head) {
  unsigned kind = pick(&seed_of_peer, 24);
  if ((kind == 0 || kind == 6 || kind > 20) && pick(&seed_of_peer, 10)) kind = 15; /* most answers are well-formed */
  uint64_t id;
  memcpy(&id, head + 8, 8);
  memset(b, 0, 200);
  if (kind == 0) { /* noise */
    for (int i = 0; i < 60; i++) b[i] = (char)pick(&seed_of_peer, 256);
    return pick(&seed_of_peer, 60);
  }
  size_t n = 8;
  int type = GO, flags = 0;
  if (kind == 1) type = AGAIN, n = 0;
  if (kind == 2) type = WAIT, n = 4, b[HEAD] = 3;
  if (kind == 3) type = BYE, n = 0, id = 0;
  if (kind == 4) type = REPLY, b[HEAD] = (char)200, n = 30;
  if (kind == 5) flags = 1, n = 100;
  if (kind == 6) n = pick(&seed_of_peer, 60), type = (int)pick(&seed_of_peer, 9);
  if (kind == 7) return 0;
  if (kind > 14) {
    memcpy(b + HEAD, "\1\0\1\0\1\0\0\0\1\0\0\0\1\0\0\0kv\1\0k\1\0\0\0\1\0\0\0kv", n = 31);
    if (kind > 20) b[HEAD + pick(&seed_of_peer, 31)] = (char)pick(&seed_of_peer, 256);
  }
  write_head(b, type, flags, id, n);
  return HEAD + n;
}

static bool read_whole(int fd, char *b, size_t n) {
  while (n > 0) {
    ssize_t r = read(fd, b, n);
    if (r <= 0) return false;
    b += r;
    n -= (size_t)r;
  }
  return true;
}

static void *converse(void *arg) {
  int fd = (int)(intptr_t)arg;
  char head[HEAD], answer[400], *payload = malloc(16 << 20);
  while (read_whole(fd, head, HEAD)) {
    uint32_t n;
    memcpy(&n, head, 4);
    assert(n <= 16 << 20 && head[4] >= HELLO && head[4] <= LIVE);
    if (!read_whole(fd, payload, n)) break;
    if (head[4] == HELLO) {
      write_head(answer, WELCOME, 0, 0, 8);
      memcpy(answer + HEAD, "\1\0\0\0\x14\0\0\0", 8);
      if (send(fd, answer, HEAD + 8, MSG_NOSIGNAL) < 0) break;
    } else if (head[4] != END) {
      size_t size = random_answer(answer, head);
      if (size && send(fd, answer, size, MSG_NOSIGNAL) < 0) break;
    }
    if (pick(&seed_of_peer, 500) == 0) usleep(40000);
    if (pick(&seed_of_peer, 300) == 0) break;
  }
  free(payload);
  close(fd);
  return NULL;
}

static void *serve(void *arg) {
  int l = (int)(intptr_t)arg, fd;
  while ((fd = accept(l, NULL, NULL)) >= 0) {
    pthread_t t;
    if (__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
      close(fd);
      break;
    }
    pthread_create(&t, NULL, converse, (void *)(intptr_t)fd);
    pthread_detach(t);
  }
  return NULL;
}

static int listen_at(const char *path) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  int l = socket(AF_UNIX, SOCK_STREAM, 0);
  strncpy(a.sun_path, path, sizeof a.sun_path - 1);
  unlink(path);
  if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 64)) exit(2);
  return l;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  unsigned long requests = strtoul(argv[2], NULL, 10);
  seed_of_worker = (unsigned)strtoul(argv[3], NULL, 10);
  seed_of_peer = seed_of_worker + 1;
  int l = listen_at(argv[1]);
  pthread_t server;
  pthread_create(&server, NULL, serve, (void *)(intptr_t)l);
  assert(envoy_dynamic_module_on_program_init());
  char nothing[1];
  void *config = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), (span){argv[1], strlen(argv[1])});
  assert(config);
  while (numbers < requests) {
    for (unsigned i = 1 + pick(&seed_of_worker, 20); i > 0; i--) go_on(&streams[pick(&seed_of_worker, MOST)], config);
    run_events();
    if (pick(&seed_of_worker, 10) == 0) usleep(200);
  }
  for (int i = 0; i < MOST; i++)
    if (streams[i].filter) end(&streams[i]);
  run_events();
  envoy_dynamic_module_on_http_filter_config_destroy(config);
  __atomic_store_n(&over, true, __ATOMIC_RELEASE);
  shutdown(l, SHUT_RDWR);
  pthread_join(server, NULL);
  close(l);
  usleep(100000);
  printf("%lu requests: %lu went on, %lu answered, %lu found no connection; %d connections, %d lost\n", (unsigned long)numbers,
         (unsigned long)continued_n, (unsigned long)answered, (unsigned long)undecided_n, counted[COUNT_MADE], counted[COUNT_LOST]);
  return 0;
}
