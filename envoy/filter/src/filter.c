/* The filter that asks the gateway about each request. The protocol is in package internal/frames.
 *
 * Each worker of Envoy has a channel to the gateway: one connection, and a thread that watches it.
 * What the gateway says comes by an inlet, which the worker reads itself (inlet.c), or else by the
 * connection, which the thread reads. A request stops at its headers. Envoy buffers its body, up to
 * the limit of its route, and answers larger bodies with 413 itself. Frames wait in the queue of
 * the connection until the worker has handled what there was to read. An event then sends them with
 * one call of sendmsg. A large body is sent from Envoy's own buffer. What the socket does not take
 * stays there. The thread notices when the socket takes more, and schedules an event of the
 * request. So no worker ever waits for the gateway.
 *
 * What the tests showed of Envoy 1.40.0:
 * - http_filter_scheduler_commit may be called by each thread. An event scheduled by the worker
 *   itself runs at the end of the same iteration of its loop. An event for a filter that has ended
 *   is dropped. The scheduler itself must live, so the lock of the channel guards it: a request
 *   leaves the lists of the channel before its filter is destroyed.
 * - HEADERS_STOP stops a request, and its body is still given to this filter. BODY_STOP_AND_BUFFER
 *   keeps the body. Over the limit of the route, Envoy answers 413. In a scheduled event all of a
 *   stopped body is in the buffer.
 * - A worker that reads an inlet may go on with a request of another connection, or end it, at
 *   once.
 * - A local reply, be it from this filter or not, ends with stream_complete as other responses do.
 *   What is read there is final, and equal to what an access log says.
 * - continue_decoding, send_response and reset_stream may destroy the filter before they return. */
#include "filter.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static gates *all;
static uint64_t random_number;

/* instance returns the number that this process chose when Envoy loaded the filter. */
uint64_t instance(void) { return random_number; }

/* program_init makes the system call itself, because releases are linked for glibc 2.17, which
 * lacks getrandom. */
HOOK(const char *, program_init)(void) {
  reading_init();
  if (syscall(SYS_getrandom, &random_number, sizeof random_number, 0) != sizeof random_number) return NULL;
  return "v0.2.0";
}

/* count adds one to a counter. */
void count(gates *g, int which) {
  pthread_mutex_lock(&lock);
  if (g->first) CALL(http_filter_config_increment_counter)(g->first->envoy, g->first->counters[which], NULL, 0, 1);
  pthread_mutex_unlock(&lock);
}

/* gates_of returns the entry of a socket; the lock is held. */
static gates *gates_of(span path) {
  for (gates *g = all; g; g = g->next)
    if (equal((span){g->path, strlen(g->path)}, path)) return g;
  gates *g = allocate(sizeof *g);
  memcpy(g->path, path.p, path.n);
  g->next = all;
  return all = g;
}

static void gates_close(gates *g) {
  __atomic_store_n(&g->stopping, true, __ATOMIC_RELEASE);
  for (int i = 0; i < WORKERS; i++)
    if (g->links[i]) channel_close(g->links[i]);
  free(g);
}

/* gates_use returns the entry of a socket for one more configuration. Null: it is not the absolute
 * path of a socket. */
gates *gates_use(span path) {
  if (path.n == 0 || path.n >= sizeof all->path || path.p[0] != '/' || memchr(path.p, 0, path.n)) return NULL;
  pthread_mutex_lock(&lock);
  gates *g = gates_of(path);
  g->uses++;
  pthread_mutex_unlock(&lock);
  return g;
}

/* gates_leave ends the use by one configuration. Envoy destroys a configuration after all its
 * filters. */
void gates_leave(gates *g) {
  gates **at = &all;
  pthread_mutex_lock(&lock);
  bool last = --g->uses == 0;
  if (last) {
    while (*at != g) at = &(*at)->next;
    *at = g->next;
  }
  pthread_mutex_unlock(&lock);
  if (last) gates_close(g);
}

static span next_line(span *rest) {
  const char *end = rest->n ? memchr(rest->p, '\n', rest->n) : NULL;
  span line = {rest->p, end ? (size_t)(end - rest->p) : rest->n};
  size_t used = line.n + (end ? 1 : 0);
  *rest = (span){rest->p + used, rest->n - used};
  return line;
}

/* read_list reads a line of the configuration that lists headers. */
static bool read_list(gate *g, span line) {
  const span unread = SPAN("unread "), response = SPAN("response ");
  if (begins(line, unread)) return headers_read(&g->unread, (span){line.p + unread.n, line.n - unread.n});
  return begins(line, response) && headers_read(&g->response, (span){line.p + response.n, line.n - response.n});
}

static void gate_free(gate *g) {
  free(g->config);
  free(g);
}

static bool define_counters(gate *g) {
  static const span names[COUNTS] = {{"sluice_connections_made", 23}, {"sluice_connections_lost", 23}, {"sluice_undecided", 16}};
  for (int i = 0; i < COUNTS; i++)
    if (CALL(http_filter_config_define_counter)(g->envoy, names[i], NULL, 0, &g->counters[i]) != 0) return false;
  return true;
}

/* read_config reads the configuration: the path of the gateway's socket, then a line for each list
 * of headers that do not cross the gateway. A line is unread or response, and the names. Another
 * line would be another version of the protocol, because a running Envoy keeps its filter. */
static bool read_config(gate *g, span config) {
  g->config = allocate(config.n + 1);
  if (config.n) memcpy(g->config, config.p, config.n);
  span rest = {g->config, config.n}, path = next_line(&rest);
  while (rest.n)
    if (!read_list(g, next_line(&rest))) return false;
  return define_counters(g) && (g->owner = gates_use(path));
}

HOOK(void *, http_filter_config_new)(void *envoy, span name, span config) {
  gate *g = allocate(sizeof *g);
  (void)name;
  g->envoy = envoy;
  if (!read_config(g, config)) {
    gate_free(g);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  g->next = g->owner->first;
  g->owner->first = g;
  pthread_mutex_unlock(&lock);
  return g;
}

HOOK(void, http_filter_config_destroy)(void *config) {
  gate *g = config, **at;
  pthread_mutex_lock(&lock);
  for (at = &g->owner->first; *at != g; at = &(*at)->next) {
  }
  *at = g->next;
  pthread_mutex_unlock(&lock);
  gates_leave(g->owner);
  gate_free(g);
}

HOOK(void *, http_filter_per_route_config_new)(span name, span config) {
  static char same;
  (void)name, (void)config;
  return &same;
}

HOOK(void, http_filter_per_route_config_destroy)(void *config) { (void)config; }

HOOK(void *, http_filter_new)(void *config, void *envoy) {
  request *r = allocate(sizeof *r);
  r->gate = config;
  r->envoy = envoy;
  return r;
}

HOOK(int, http_filter_request_headers)(void *envoy, void *filter, bool end) {
  request *r = filter;
  channel *l = channel_of(r->gate->owner, CALL(http_filter_get_worker_index)(envoy));
  bool asked = false;
  r->has_body = !end;
  r->body_complete = end;
  if (l) {
    r->channel = l;
    pthread_mutex_lock(&l->lock);
    asked = channel_ask(l, r);
    pthread_mutex_unlock(&l->lock);
  }
  if (asked) return HEADERS_STOP;
  r->state = GONE;
  count(r->gate->owner, COUNT_UNDECIDED);
  return HEADERS_CONTINUE;
}

static void body_is_complete(request *r) {
  pthread_mutex_lock(&r->channel->lock);
  r->body_complete = true;
  channel_body(r->channel, r);
  pthread_mutex_unlock(&r->channel->lock);
}

HOOK(int, http_filter_request_body)(void *envoy, void *filter, bool end) {
  request *r = filter;
  (void)envoy;
  if (r->state != ASKED) return BODY_CONTINUE;
  if (end) body_is_complete(r);
  return BODY_STOP_AND_BUFFER;
}

HOOK(int, http_filter_request_trailers)(void *envoy, void *filter) {
  request *r = filter;
  (void)envoy;
  if (r->state != ASKED) return TRAILERS_CONTINUE;
  body_is_complete(r);
  return TRAILERS_STOP;
}

/* is_framing reports whether a header says where the response ends (RFC 9112, section 6.3). Envoy
 * removes transfer-encoding after the filters. */
static bool is_framing(span name, span value) {
  if (equal(name, SPAN(":status"))) return equal(value, SPAN("204")) || equal(value, SPAN("304"));
  return equal(name, SPAN("content-length")) || equal(name, SPAN("transfer-encoding"));
}

/* is_temporary reports whether a status is that of an error that the client may repeat. */
static bool is_temporary(span status) {
  return equal(status, SPAN("429")) || equal(status, SPAN("502")) || equal(status, SPAN("503")) || equal(status, SPAN("504"));
}

/* response_head is what the headers of a response say: framed, that it has a length or is chunked,
 * or has no body. temporary is an error that the client may repeat, and says_when that the response
 * says when. refused says why the client must not get the response, in the words of its details. It
 * is empty for others. */
typedef struct {
  bool framed, temporary, says_when;
  span refused;
} response_head;

/* refusal_of says why a client must not get a response of a status. Envoy would pass a 101 that
 * nobody has asked for on as a whole response. The client would treat what follows on its
 * connection as the other protocol. A redirect would have the client send the prompt to another
 * server, past the gateway. The listener has the words for both. */
static span refusal_of(span status) {
  if (equal(status, SPAN("101"))) return SPAN("unasked_protocol_switch");
  return begins(status, SPAN("3")) ? SPAN("unasked_redirect") : SPAN("");
}

/* is_gateways reports whether only the gateway may give a response this header: what remains of the
 * limits of a tenant, and who has answered. */
static bool is_gateways(span name) { return begins(name, SPAN("x-ratelimit-")) || begins(name, SPAN("x-sluice-")); }

/* read_headers looks through the headers of a response. It removes those that do not cross the
 * gateway. The relay is part of the gateway, and may set its headers. So may the listener, for what
 * Envoy answers itself. */
static response_head read_headers(request *r) {
  size_t n = CALL(http_get_headers_size)(r->envoy, RESPONSE_HEADERS);
  pair few[64], *h = n <= 64 ? few : allocate(n * sizeof *h);
  header_set found = 0;
  response_head head = {.refused = SPAN("")};
  if (n == 0 || !CALL(http_get_headers)(r->envoy, RESPONSE_HEADERS, h)) n = 0;
  for (size_t i = 0; i < n; i++) {
    span name = {h[i].key, h[i].key_n};
    if (!(r->relayed || r->local) || !is_gateways(name)) found |= headers_find(&r->gate->response, name);
    span value = {h[i].value, h[i].value_n};
    head.framed = head.framed || is_framing(name, value);
    head.says_when = head.says_when || equal(name, SPAN("retry-after"));
    if (!equal(name, SPAN(":status"))) continue;
    head.refused = refusal_of(value);
    head.temporary = is_temporary(value);
  }
  if (h != few) free(h);
  if (r->state == DECIDED) headers_remove(&r->gate->response, found, r->envoy, RESPONSE_HEADERS);
  return head;
}

/* grpc_status returns the status of gRPC for a status of HTTP, as gRPC's own document of that name
 * has it. */
static span grpc_status(uint16_t status) {
  switch (status) {
  case 400: return SPAN("13"); /* internal */
  case 401: return SPAN("16"); /* unauthenticated */
  case 403: return SPAN("7");  /* permission denied */
  case 404: return SPAN("12"); /* unimplemented */
  case 429:
  case 502:
  case 503:
  case 504: return SPAN("14"); /* unavailable */
  default: return SPAN("2");   /* unknown */
  }
}

/* is_grpc reports whether Envoy answers the request in the way of gRPC. */
static bool is_grpc(void *envoy) {
  const span kind = SPAN("application/grpc");
  span v;
  return CALL(http_get_header)(envoy, REQUEST_HEADERS, SPAN("content-type"), &v, 0, NULL) && begins(v, kind) &&
         (v.n == kind.n || v.p[kind.n] == '+');
}

/* send_response answers the request in the place of an engine, with the headers of h, which has
 * room for one more. Without a status of gRPC among them, Envoy would make such an answer a
 * success. */
static void send_response(request *r, uint16_t status, pair *h, size_t n, span body, span details) {
  if (is_grpc(r->envoy)) {
    span name = SPAN("grpc-status"), value = grpc_status(status);
    h[n++] = (pair){name.p, name.n, value.p, value.n};
  }
  CALL(http_send_response)(r->envoy, status, h, n, body, details);
}

/* add_header adds a header that the message does not have, which costs less than to set it. */
static void add_header(void *envoy, int kind, pair h) {
  CALL(http_add_header)(envoy, kind, (span){h.key, h.key_n}, (span){h.value, h.value_n});
}

/* set_values sets the values of the request that are headers of its response. An engine's own are
 * removed before. */
static void set_values(request *r) {
  span rest = r->values;
  for (uint16_t i = 0; i < r->values_n; i++) {
    pair v = next_pair(&rest);
    if (!is_for_response(v)) continue;
    if (!r->relayed) add_header(r->envoy, RESPONSE_HEADERS, v);
    else CALL(http_set_header)(r->envoy, RESPONSE_HEADERS, (span){v.key, v.key_n}, (span){v.value, v.value_n});
  }
}

/* names_replica reports whether the client learns which replica has answered. h is the header that
 * says it. */
static bool names_replica(request *r, pair *h) {
  const span name = SPAN("x-sluice-replica");
  span replica;
  if (r->nameless || !replica_of(r->envoy, &replica)) return false;
  *h = (pair){name.p, name.n, replica.p, replica.n};
  return true;
}

/* name_source says who has answered. Envoy's own answers are the gateway's, and the listener marks
 * them. */
static void name_source(request *r) {
  const span source = SPAN("x-sluice-source"), engine = SPAN("engine");
  pair replica;
  if (!r->local) CALL(http_add_header)(r->envoy, RESPONSE_HEADERS, source, engine);
  if (names_replica(r, &replica)) add_header(r->envoy, RESPONSE_HEADERS, replica);
}

/* stream_marks are headers that make sure that no proxy on the way to the client buffers or
 * compresses a stream. */
enum { STREAM_MARKS = 2 };
static const pair stream_marks[STREAM_MARKS] = {{"cache-control", 13, "no-cache, no-transform", 22}, {"x-accel-buffering", 17, "no", 2}};

static void mark_stream(void *envoy) {
  for (int i = 0; i < STREAM_MARKS; i++) {
    pair m = stream_marks[i];
    CALL(http_set_header)(envoy, RESPONSE_HEADERS, (span){m.key, m.key_n}, (span){m.value, m.value_n});
  }
}

/* refuse replaces a response by a 502 with the details. The 502 passes no filter, so it takes along
 * what set_headers gives other responses. */
static int refuse(request *r, span details) {
  pair *h = allocate((r->values_n + STREAM_MARKS + 2u) * sizeof *h);
  size_t n = 0;
  span rest = r->values;
  for (uint16_t i = 0; i < r->values_n; i++) {
    pair v = next_pair(&rest);
    if (is_for_response(v)) h[n++] = v;
  }
  if (names_replica(r, &h[n])) n++;
  for (int i = 0; r->streamed && i < STREAM_MARKS; i++) h[n++] = stream_marks[i];
  send_response(r, 502, h, n, SPAN(""), details);
  free(h);
  return HEADERS_STOP;
}

/* set_headers gives the response what the gateway tells the client of it. The relay does most of
 * that itself. */
static void set_headers(request *r, response_head head) {
  set_values(r);
  if (r->relayed) return;
  name_source(r);
  if (r->streamed) mark_stream(r->envoy);
  if (head.temporary && !head.says_when && !r->local)
    CALL(http_add_header)(r->envoy, RESPONSE_HEADERS, SPAN("retry-after"), SPAN("1"));
  /* The log of attempts need not find out whether the response has a length. No replica sees this
   * header any more. */
  CALL(http_add_header)(r->envoy, REQUEST_HEADERS, SPAN("x-sluice-framing"), SPAN("told"));
}

HOOK(int, http_filter_response_headers)(void *envoy, void *filter, bool end) {
  request *r = filter;
  response_head head = read_headers(r);
  r->responding = true;
  if (head.refused.n && r->state == DECIDED) return refuse(r, head.refused);
  r->unframed = !head.framed && !end;
  if (r->state == DECIDED) set_headers(r, head);
  if (r->reading) reading_begin(r->reading, envoy);
  if (r->reading && end) reading_end(r->reading);
  return HEADERS_CONTINUE;
}

static bool is_observed(request *r) { return __atomic_load_n(&r->observing, __ATOMIC_RELAXED); }

/* tell_first tells the gateway the beginning of the response. */
static void tell_first(request *r, span s) {
  size_t room = MOST_OBSERVED - r->observed;
  if (s.n > room) s.n = room;
  r->observed += s.n;
  if (r->observed == MOST_OBSERVED) __atomic_store_n(&r->observing, false, __ATOMIC_RELAXED);
  if (s.n == 0) return;
  pthread_mutex_lock(&r->channel->lock);
  channel_first(r->channel, r, s);
  pthread_mutex_unlock(&r->channel->lock);
}

/* read_body handles what has come of the response's body. */
static void read_body(request *r) {
  span few[FEW], *chunks = few;
  size_t n = chunks_of(r->envoy, RECEIVED_RESPONSE_BODY, &chunks);
  if (r->reading && n) reading_read(r->reading, chunks, n);
  for (size_t i = 0; i < n && is_observed(r); i++) tell_first(r, chunks[i]);
  if (chunks != few) free(chunks);
}

HOOK(int, http_filter_response_body)(void *envoy, void *filter, bool end) {
  request *r = filter;
  (void)envoy;
  if (r->reading || is_observed(r)) read_body(r);
  if (r->reading && end) reading_end(r->reading);
  return BODY_CONTINUE;
}

HOOK(int, http_filter_response_trailers)(void *envoy, void *filter) {
  reading *r = ((request *)filter)->reading;
  (void)envoy;
  if (r) reading_end(r);
  return TRAILERS_CONTINUE;
}

/* settle ends the wait of a request, before Envoy goes on with it. */
static void settle(request *r, enum state s) {
  channel *l = r->channel;
  pthread_mutex_lock(&l->lock);
  channel_settle(l, r, s);
  if (s == DECIDED && !r->on) channel_tell(l, r);
  channel_flush(l);
  pthread_mutex_unlock(&l->lock);
}

static void undecided(request *r) {
  if (r->state != ASKED) return;
  settle(r, GONE);
  count(r->gate->owner, COUNT_UNDECIDED);
  CALL(http_filter_continue_decoding)(r->envoy);
}

/* replace_body replaces the body, and content-length if there is one. */
static void replace_body(void *envoy, span body) {
  span length;
  char digits[DECIMAL];
  CALL(http_drain_body)(envoy, BUFFERED_REQUEST_BODY, CALL(http_get_body_size)(envoy, BUFFERED_REQUEST_BODY));
  if (body.n) CALL(http_append_body)(envoy, BUFFERED_REQUEST_BODY, body);
  if (!CALL(http_get_header)(envoy, REQUEST_HEADERS, SPAN("content-length"), &length, 0, NULL)) return;
  CALL(http_set_header)(envoy, REQUEST_HEADERS, SPAN("content-length"), decimal(digits, (int64_t)body.n));
}

/* keep_values keeps what the gateway gives the request. */
static void keep_values(request *r, span values, uint16_t n) {
  if (n == 0) return;
  char *p = allocate(values.n);
  memcpy(p, values.p, values.n);
  r->values = (span){p, values.n};
  r->values_n = n;
}

/* set_told says whether the gateway is told the end of a request. The access log has it
 * otherwise. */
static void set_told(request *r, bool told) {
  static const pair values[] = {{"told", 4, "0", 1}, {"told", 4, "1", 1}};
  CALL(http_set_dynamic_metadata_string_batch)(r->envoy, SPAN("sluice"), &values[told], 1);
  r->told = told;
}

/* set_untold has the access log tell the end of a request, with its values, because the filter
 * cannot. */
static void set_untold(request *r) {
  pair few[32], *v = r->values_n <= 32 ? few : allocate(r->values_n * sizeof *v);
  span rest = r->values;
  for (uint16_t i = 0; i < r->values_n; i++) v[i] = next_pair(&rest);
  if (r->values_n) CALL(http_set_dynamic_metadata_string_batch)(r->envoy, SPAN("sluice"), v, r->values_n);
  if (v != few) free(v);
  set_told(r, false);
}

/* is_ours reports whether only Sluice sets a header of a request: the listener removes those of
 * clients. */
static bool is_ours(span name) {
  return begins(name, SPAN("x-sluice-")) || begins(name, SPAN("x-envoy-")) || equal(name, SPAN("x-gateway-destination-endpoint"));
}

/* set_header sets a header of the request. Those that say what is to be read of the response are
 * for this filter. */
static void set_header(request *r, pair h) {
  span name = {h.key, h.key_n}, value = {h.value, h.value_n};
  if (equal(name, SPAN("x-sluice-ticket"))) r->relayed = true;
  if (equal(name, SPAN("x-sluice-route"))) r->streamed = memmem(value.p, value.n, "+stream", 7) != NULL;
  if (equal(name, SPAN("x-sluice-observe"))) __atomic_store_n(&r->observing, true, __ATOMIC_RELAXED);
  else if (equal(name, SPAN("x-sluice-usage"))) r->reading = r->reading ? r->reading : reading_new(value);
  else if (is_ours(name)) add_header(r->envoy, REQUEST_HEADERS, h);
  else CALL(http_set_header)(r->envoy, REQUEST_HEADERS, name, value);
}

static void go_on(request *r, span payload, int flags) {
  go_answer a;
  bool good = r->state == ASKED && read_go(payload, flags, &a);
  if (!good || (flags & FLAG_BODY_REPLACED && !(r->has_body && r->body_complete))) {
    undecided(r);
    return;
  }
  for (uint16_t i = 0; i < a.set_n; i++) set_header(r, next_pair(&a.set));
  for (uint16_t i = 0; i < a.remove_n; i++)
    CALL(http_set_header)(r->envoy, REQUEST_HEADERS, next_name(&a.remove), (span){NULL, 0});
  keep_values(r, a.metadata, a.metadata_n);
  r->nameless = flags & FLAG_NAMELESS;
  set_told(r, true); /* nor is the access log to have it while it runs */
  settle(r, DECIDED);
  if (flags & FLAG_BODY_REPLACED) replace_body(r->envoy, a.body);
  CALL(http_clear_route_cache)(r->envoy);
  CALL(http_filter_continue_decoding)(r->envoy);
}

static void reply(request *r, span payload) {
  reply_answer a;
  bool good = (r->state == ASKED || r->state == DECIDED) && read_reply(payload, &a);
  if (!good) {
    undecided(r);
    return;
  }
  settle(r, GONE);
  if (r->responding) {
    CALL(http_filter_reset_stream)(r->envoy, RESET_LOCAL, a.details);
    return;
  }
  pair few[32], *h = a.headers_n < 32 ? few : allocate((a.headers_n + 1u) * sizeof *h);
  for (uint16_t i = 0; i < a.headers_n; i++) h[i] = next_pair(&a.headers);
  send_response(r, a.status, h, a.headers_n, a.body, a.details);
  if (h != few) free(h);
}

/* answered does what the gateway has said. It may destroy r, but not what was said. */
static void answered(request *r, answer *a) {
  span payload = {a->payload, a->n};
  if (a->type == GO) go_on(r, payload, a->flags);
  else reply(r, payload);
  free(a);
}

/* carry_out does what is to be done for r. It may destroy r. scheduled: in the event that was
 * scheduled for that. */
void carry_out(request *r, bool scheduled) {
  channel *l = r->channel;
  answer *said = NULL;
  pthread_mutex_lock(&l->lock);
  unsigned todo = r->todo;
  r->todo = 0;
  if (scheduled) r->posted = false;
  if (l->flusher == r) l->flusher = NULL;
  if (todo & DO_TELL) channel_tell(l, r);
  if (todo & (DO_TELL | DO_FLUSH)) channel_flush(l);
  if (todo & DO_ANSWER) {
    said = r->answer;
    r->answer = NULL;
    r->answering = said ? said->type : 0;
  }
  if (todo & DO_LAST_WAIT && r->state == ASKED && !r->answering && !r->giving_up && !r->deadline) {
    r->last_wait = true;
    r->deadline = now_ms() + LAST_WAIT;
    l->last_waits = true;
    wake(l);
  }
  pthread_mutex_unlock(&l->lock);
  if (said) answered(r, said);
  else if (todo & DO_GIVE_UP) undecided(r);
}

HOOK(void, http_filter_scheduled)(void *envoy, void *filter, uint64_t event) {
  (void)envoy, (void)event;
  carry_out(filter, true);
}

HOOK(void, http_filter_stream_complete)(void *envoy, void *filter) {
  request *r = filter;
  (void)envoy;
  if (!r->channel || !r->list) return;
  pthread_mutex_lock(&r->channel->lock);
  bool end_is_told = channel_end(r->channel, r);
  pthread_mutex_unlock(&r->channel->lock);
  if (!end_is_told) set_untold(r);
  else if (!r->told) set_told(r, true);
}

HOOK(void, http_filter_destroy)(void *filter) {
  request *r = filter;
  channel *l = r->channel;
  if (l && (r->list || l->flusher == r)) {
    pthread_mutex_lock(&l->lock);
    channel_drop(l, r);
    pthread_mutex_unlock(&l->lock);
  }
  if (r->scheduler) CALL(http_filter_scheduler_delete)(r->scheduler);
  free(r->answer);
  free((void *)r->values.p);
  reading_free(r->reading);
  free(r);
}

HOOK(int, http_filter_local_reply)(void *envoy, void *filter, uint32_t status, span details, bool reset) {
  (void)envoy, (void)status, (void)details, (void)reset;
  if (filter) ((request *)filter)->local = true;
  return LOCAL_REPLY_CONTINUE;
}

/* Envoy loads no module that lacks one of its hooks. This filter has no use for the following
 * ones. */
HOOK(void, http_filter_http_callout_done)(ANY void *a, ANY void *b, ANY uint64_t c, ANY int d, ANY pair *e, ANY size_t f, ANY span *g, ANY size_t h) {}
HOOK(void, http_filter_http_stream_headers)(ANY void *a, ANY void *b, ANY uint64_t c, ANY pair *d, ANY size_t e, ANY bool f) {}
HOOK(void, http_filter_http_stream_data)(ANY void *a, ANY void *b, ANY uint64_t c, ANY const span *d, ANY size_t e, ANY bool f) {}
HOOK(void, http_filter_http_stream_trailers)(ANY void *a, ANY void *b, ANY uint64_t c, ANY pair *d, ANY size_t e) {}
HOOK(void, http_filter_http_stream_complete)(ANY void *a, ANY void *b, ANY uint64_t c) {}
HOOK(void, http_filter_http_stream_reset)(ANY void *a, ANY void *b, ANY uint64_t c, ANY int d) {}
HOOK(void, http_filter_config_scheduled)(ANY void *a, ANY void *b, ANY uint64_t c) {}
HOOK(void, http_filter_config_http_callout_done)(ANY void *a, ANY void *b, ANY uint64_t c, ANY int d, ANY pair *e, ANY size_t f, ANY span *g, ANY size_t h) {}
HOOK(void, http_filter_config_http_stream_headers)(ANY void *a, ANY void *b, ANY uint64_t c, ANY pair *d, ANY size_t e, ANY bool f) {}
HOOK(void, http_filter_config_http_stream_data)(ANY void *a, ANY void *b, ANY uint64_t c, ANY const span *d, ANY size_t e, ANY bool f) {}
HOOK(void, http_filter_config_http_stream_trailers)(ANY void *a, ANY void *b, ANY uint64_t c, ANY pair *d, ANY size_t e) {}
HOOK(void, http_filter_config_http_stream_complete)(ANY void *a, ANY void *b, ANY uint64_t c) {}
HOOK(void, http_filter_config_http_stream_reset)(ANY void *a, ANY void *b, ANY uint64_t c, ANY int d) {}
HOOK(void, http_filter_downstream_above_write_buffer_high_watermark)(ANY void *a, ANY void *b) {}
HOOK(void, http_filter_downstream_below_write_buffer_low_watermark)(ANY void *a, ANY void *b) {}
