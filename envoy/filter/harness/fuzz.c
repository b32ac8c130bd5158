/* What a gateway may say, as a target of libFuzzer. Envoy is the stand-in, and there is no thread:
 * the target first reads as the thread does, and then as the worker reads from an inlet. The first
 * byte of an input says how the rest is understood. The rest is frames whose heads the target
 * writes, so that ids and lengths are right, or it is raw bytes. The second byte says how many
 * bytes come at a time. With -DREPLAY the program runs the inputs of its standard input, each of
 * them a line of hexadecimal digits. */
#include "../src/thread.c"
#include "envoy.h"
#include <assert.h>
#include <stdio.h>
#include <sys/eventfd.h>

enum { STREAMS = 5, PERIOD = 16 };

static void *config, *inlet_config;

static void setup(void) {
  static char nothing[1];
  if (config) return;
  assert(envoy_dynamic_module_on_program_init());
  config = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), SPAN("/nonexistent/socket"));
  inlet_config = envoy_dynamic_module_on_network_filter_config_new(nothing, SPAN("a"), SPAN("/nonexistent/socket"));
}

/* channel_without_thread makes the channel that the filter finds for its requests. */
static channel *channel_without_thread(int fd) {
  channel *l = allocate(sizeof *l);
  gates *g = ((gate *)config)->owner;
  pthread_mutex_init(&l->lock, NULL);
  l->owner = g;
  l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  l->current = connection_new(l);
  l->current->fd = fd;
  return g->links[0] = l;
}

static void channel_free(channel *l) {
  while (l->all) {
    connection *c = l->all;
    l->all = c->next;
    connection_free(c);
  }
  l->owner->links[0] = NULL;
  close(l->wake);
  pthread_mutex_destroy(&l->lock);
  free(l->slots);
  free(l->free_slots);
  free(l->scratch.p);
  free(l->chunks);
  free(l);
}

/* begin begins a request: 0 has no body, 1 has all of its body, the others have a part of it. */
static void begin(stream *s, int i) {
  *s = (stream){.number = (uint64_t)i + 1};
  s->filter = envoy_dynamic_module_on_http_filter_new(config, s);
  s->stopped = envoy_dynamic_module_on_http_filter_request_headers(s, s->filter, i == 0) == HEADERS_STOP;
  if (i == 0) return;
  s->chunks[s->chunks_n++] = copy("the body", 8);
  envoy_dynamic_module_on_http_filter_request_body(s, s->filter, i == 1);
}

/* framed writes frames: each is a byte for the type and flags, one for the request, two for the
 * length, and the payload. A length with its highest bit has a thousand bytes of zeros for each of
 * its units. */
static text framed(const uint8_t *p, size_t n) {
  text out = {0};
  while (n >= 4) {
    char head[HEAD];
    size_t length = (size_t)p[2] | (size_t)(p[3] & 127) << 8, zeros = p[3] & 128 ? (length & 127) * 1000 : 0;
    if (p[3] & 128) length >>= 7;
    size_t have = length < n - 4 ? length : n - 4;
    uint64_t id = p[1] % 8 ? (uint64_t)(p[1] % 8) << SLOT_BITS | (p[1] % 8 - 1) : 0;
    write_head(head, p[0] & 15, p[0] >> 4, id, have + zeros);
    put(&out, head, HEAD);
    put(&out, p + 4, have);
    text_room(&out, zeros);
    memset(out.p + out.n, 0, zeros);
    out.n += zeros;
    p += 4 + have;
    n -= 4 + have;
  }
  return out;
}

/* drain drops what the filter has sent. */
static void drain(int fd) {
  static char b[64 << 10];
  while (recv(fd, b, sizeof b, MSG_DONTWAIT) > 0) {
  }
}

/* hear_inlet gives the worker all of s in pieces, over an inlet. Its last event ends the inlet. */
static void hear_inlet(connection *c, int gateway, span s, size_t step, unsigned pauses) {
  gatepost *g = gatepost_new(inlet_config, -1);
  char join[HEAD + 8];
  write_head(join, JOIN, 0, 0, 8);
  for (int i = 0; i < 8; i++) join[HEAD + i] = (char)(c->number >> (8 * i));
  bool open = gatepost_hear(g, (span){join, sizeof join});
  assert(open && c->inlet);
  if (step < s.n / 64 + 1) step = s.n / 64 + 1;
  for (unsigned i = 0; s.n > 0 && open; i++) {
    size_t n = s.n < step ? s.n : step;
    open = gatepost_hear(g, (span){s.p, n});
    s = (span){s.p + n, s.n - n};
    if (pauses >> i % PERIOD & 1) run_events();
    drain(gateway);
  }
  gatepost_end(g);
  assert(!c->inlet);
}

/* hear gives the filter all of s in pieces. Between them the worker sometimes runs. */
static void hear(channel *l, connection *c, int gateway, span s, size_t step, unsigned pauses) {
  if (step < s.n / 64 + 1) step = s.n / 64 + 1;
  for (unsigned i = 0; s.n > 0 && !c->broken; i++) {
    size_t n = s.n < step ? s.n : step;
    ssize_t sent = send(gateway, s.p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) s.p += sent, s.n -= (size_t)sent;
    receive(l, c);
    if (pauses >> i % PERIOD & 1) run_events();
    drain(gateway);
  }
}

/* say has the gateway say an input. direct: over an inlet. */
static void say(const uint8_t *p, size_t n, bool direct) {
  stream s[STREAMS];
  int ends[2];
  seed_of_worker = p[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) abort();
  channel *l = channel_without_thread(ends[0]);
  connection *c = l->current;
  for (int i = 0; i < STREAMS; i++) begin(&s[i], i);
  run_events();
  text frames_of_input = {0};
  span all = {(const char *)p + 4, n - 4};
  if (p[0] & 1) {
    frames_of_input = framed(p + 4, n - 4);
    all = (span){frames_of_input.p, frames_of_input.n};
  }
  size_t step = p[1] ? p[1] * (size_t)p[1] : 1 << 20;
  if (direct) hear_inlet(c, ends[1], all, step, p[2] | (unsigned)p[3] << 8);
  else hear(l, c, ends[1], all, step, p[2] | (unsigned)p[3] << 8);
  run_events();
  for (int i = 0; i < STREAMS; i++)
    if (s[i].filter) end(&s[i]);
  run_events();
  assert(l->asked == NULL && l->settled == NULL && l->bodies == NULL && l->free_n == l->slots_n);
  channel_free(l);
  close(ends[1]);
  free(frames_of_input.p);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  if (n < 4) return 0;
  setup();
  say(p, n, false);
  say(p, n, true);
  return 0;
}

#ifdef REPLAY
int main(void) {
  static char line[1 << 20];
  static uint8_t input[1 << 19];
  unsigned long done = 0;
  while (fgets(line, sizeof line, stdin)) {
    size_t n = 0;
    unsigned byte;
    while (sscanf(line + 2 * n, "%2x", &byte) == 1) input[n++] = (uint8_t)byte;
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, input, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    done++;
  }
  printf("%lu inputs\n", done);
  return 0;
}
#endif
