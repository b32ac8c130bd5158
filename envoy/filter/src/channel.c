/* The requests of a worker, and what the gateway is told of them. */

#include "filter.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static uint64_t id_of(channel *l, uint32_t slot) { return ++l->sequence << SLOT_BITS | slot; }

static void grow_slots(channel *l) {
  uint32_t n = l->slots_n ? l->slots_n * 2 : 256;
  l->slots = realloc(l->slots, n * sizeof *l->slots);
  l->free_slots = realloc(l->free_slots, n * sizeof *l->free_slots);
  if (!l->slots || !l->free_slots) abort();
  for (uint32_t i = n; i-- > l->slots_n;) {
    l->slots[i] = NULL;
    l->free_slots[l->free_n++] = i;
  }
  l->slots_n = n;
}

/* enrol gives r an id on a connection. It fails with half a million requests at once. */
static bool enrol(channel *l, request *r, connection *c) {
  if (l->free_n == 0 && l->slots_n >= NO_SLOT / 2) return false;
  if (l->free_n == 0) grow_slots(l);
  uint32_t slot = l->free_slots[--l->free_n];
  l->slots[slot] = r;
  r->id = id_of(l, slot);
  r->on = c;
  c->requests++;
  return true;
}

/* request_of returns the request with this id on c, or null. */
request *request_of(channel *l, connection *c, uint64_t id) {
  uint32_t slot = id & NO_SLOT;
  request *r = slot < l->slots_n ? l->slots[slot] : NULL;
  return r && r->id == id && r->on == c ? r : NULL;
}

/* stop_body has nothing of the body of r sent from now on. */
static void stop_body(channel *l, request *r) {
  if (r->in_bodies) {
    request **at = &l->bodies;
    while (*at != r) at = &(*at)->next_body;
    *at = r->next_body;
    r->in_bodies = false;
  }
  if (r->sending) queue_forget_body(&r->on->out, r->sending);
}

/* withdraw takes the id from r. */
void withdraw(channel *l, request *r) {
  stop_body(l, r);
  if (!r->on) return;
  uint32_t slot = r->id & NO_SLOT;
  l->slots[slot] = NULL;
  l->free_slots[l->free_n++] = slot;
  r->on->requests--;
  r->on = NULL;
}

static void list_remove(request *r) {
  if (!r->list) return;
  if (r->prev) r->prev->next = r->next;
  else *r->list = r->next;
  if (r->next) r->next->prev = r->prev;
  r->list = NULL;
}

static void list_add(request **list, request *r) {
  list_remove(r);
  r->list = list;
  r->prev = NULL;
  r->next = *list;
  if (r->next) r->next->prev = r;
  *list = r;
}

/* want_flush has channel_flush called at the end of this iteration of the worker's loop. */
static void want_flush(channel *l, request *r) {
  if (l->flusher) return;
  l->flusher = r;
  post(r, DO_FLUSH);
}

/* put_frame queues a frame with the payload in scratch. Only Headers and bodies need room in the
 * queue. Each other frame is short, and tells of a request that takes more memory, or has taken it
 * until now. */
static void put_frame(channel *l, connection *c, int type, int flags, uint64_t id) {
  queue_frame(&c->out, type, flags, id, (span){l->scratch.p, l->scratch.n});
}

/* has_room reports whether the queue of a connection has room for n further bytes. */
static bool has_room(const connection *c, size_t n) { return c->out.small + n <= QUEUE_LIMIT; }

/* make_room sends what the socket takes, if the queue has no room for n further bytes. It reports
 * whether there is room then. One client can fill a queue within one iteration of the worker's
 * loop, so a full queue says nothing of the gateway. */
static bool make_room(channel *l, connection *c, size_t n) {
  if (has_room(c, n)) return true;
  connection_send(l, c, false);
  if (c->blocked) wake(l); /* the thread waits until the socket takes more */
  return !c->broken && has_room(c, n);
}

/* tell_headers tells the current connection of a request. It reports whether the connection has
 * room for it. */
static bool tell_headers(channel *l, request *r) {
  connection *c = l->current;
  l->scratch.n = 0;
  put_headers(&l->scratch, r);
  if (!make_room(l, c, l->scratch.n) || !enrol(l, r, c)) return false;
  r->state = ASKED;
  r->last_wait = false;
  r->deadline = r->has_body ? 0 : now_ms() + c->silence;
  list_add(&l->asked, r);
  want_flush(l, r);
  put_frame(l, c, HEADERS, r->has_body ? 0 : FLAG_NO_BODY, r->id);
  return true;
}

/* channel_ask tells the gateway of a new request. It reports whether there is a connection with
 * room for it. */
bool channel_ask(channel *l, request *r) {
  if (l->current->fd < 0 && !channel_connect(l, true)) return false;
  if (!r->scheduler) r->scheduler = CALL(http_filter_scheduler_new)(r->envoy);
  return tell_headers(l, r);
}

/* channel_body has the complete body of r sent with the next flush. */
void channel_body(channel *l, request *r) {
  if (!r->on || r->in_bodies || r->sending || r->state != ASKED) return;
  r->in_bodies = true;
  r->next_body = l->bodies;
  l->bodies = r;
  want_flush(l, r);
}

/* queue_whole copies a small body into the queue. */
static void queue_whole(channel *l, request *r) {
  span few[FEW], *chunks = few;
  size_t n = chunks_of(r->envoy, BUFFERED_REQUEST_BODY, &chunks);
  l->scratch.n = 0;
  for (size_t i = 0; i < n; i++) put(&l->scratch, chunks[i].p, chunks[i].n);
  if (chunks != few) free(chunks);
  r->deadline = now_ms() + r->on->silence;
  put_frame(l, r->on, BODY, 0, r->id);
}

/* share_body places a body in shared memory. It reports whether there is room. */
static bool share_body(channel *l, request *r, size_t n) {
  uint32_t first;
  char *to = shared_take(&r->on->shared, n, &first);
  if (!to) return false;
  span few[FEW], *chunks = few;
  size_t chunks_n = chunks_of(r->envoy, BUFFERED_REQUEST_BODY, &chunks), left = n;
  for (size_t i = 0; i < chunks_n && chunks[i].n <= left; left -= chunks[i++].n) memcpy(to + (n - left), chunks[i].p, chunks[i].n);
  if (chunks != few) free(chunks);
  memset(to + (n - left), 0, left); /* nothing of an earlier body is told, whatever Envoy says */
  l->scratch.n = 0;
  put_u32(&l->scratch, first);
  put_u32(&l->scratch, (uint32_t)n);
  r->deadline = now_ms() + r->on->silence;
  put_frame(l, r->on, SHARED, 0, r->id);
  return true;
}

/* queue_bodies queues the complete bodies. While the queue is half full, small bodies stay in
 * Envoy's buffer too: the other half is for Headers. */
static void queue_bodies(channel *l) {
  while (l->bodies) {
    request *r = l->bodies;
    l->bodies = r->next_body;
    r->in_bodies = false;
    size_t n = CALL(http_get_body_size)(r->envoy, BUFFERED_REQUEST_BODY);
    if (n <= SMALL_BODY && has_room(r->on, QUEUE_LIMIT / 2 + n)) queue_whole(l, r);
    else if (share_body(l, r, n)) continue;
    else if (n <= LARGEST_FRAME) queue_body(&r->on->out, r, n);
    else give_up(r);
  }
}

/* channel_flush sends what the sockets take. Only the worker calls it, outside of the hooks for
 * headers and bodies, so that all of a body is in the buffer. */
void channel_flush(channel *l) {
  queue_bodies(l);
  for (connection *c = l->all; c; c = c->next) connection_send(l, c, true);
}

/* channel_settle ends the wait of a request. */
void channel_settle(channel *l, request *r, enum state s) {
  stop_body(l, r);
  r->state = s;
  r->deadline = 0;
  r->answering = 0;
  list_add(&l->settled, r);
}

/* channel_tell tells the current connection of a request whose own connection has ended. */
void channel_tell(channel *l, request *r) {
  connection *c = l->current;
  if (r->on || r->giving_up || c->fd < 0) return;
  if (r->state == ASKED) {
    if (tell_headers(l, r)) {
      if (r->body_complete && r->has_body) channel_body(l, r);
    } else {
      give_up(r);
    }
    return;
  }
  if (r->state != DECIDED || !enrol(l, r, c)) return;
  if (r->observed) r->gap = true;
  l->scratch.n = 0;
  put_live(&l->scratch, r);
  put_frame(l, c, LIVE, 0, r->id);
}

/* channel_first tells the gateway the next bytes of a response. A gateway that has no connection or
 * does not read is not told of them. From then on it is told no bytes, because what it has must be
 * a beginning, but still that more have come: the first token has, too. */
void channel_first(channel *l, request *r, span s) {
  if (!r->on || r->state != DECIDED || r->on->out.small + s.n > HELD_LIMIT) {
    r->gap = true;
    return;
  }
  l->scratch.n = 0;
  if (!r->gap) put(&l->scratch, s.p, s.n);
  want_flush(l, r);
  put_frame(l, r->on, FIRST, 0, r->id);
}

/* end_frames tells the end of r. If its connection has ended, the next one is told of both. It
 * reports whether the end will be told. */
static bool end_frames(channel *l, request *r) {
  connection *c = r->on ? r->on : l->current;
  uint64_t id = r->id;
  if (!r->on) {
    if (l->refused || r->state != DECIDED || c->out.small > HELD_LIMIT) return false;
    id = id_of(l, NO_SLOT);
    l->scratch.n = 0;
    put_live(&l->scratch, r);
    put_frame(l, c, LIVE, 0, id);
  }
  l->scratch.n = 0;
  put_record(&l->scratch, r);
  put_frame(l, c, END, 0, id);
  return true;
}

/* channel_end tells the gateway that the request has ended. It reports whether the gateway will be
 * told. */
bool channel_end(channel *l, request *r) {
  stop_body(l, r);
  bool told = end_frames(l, r);
  channel_drop(l, r);
  return told;
}

/* channel_drop forgets a request. */
void channel_drop(channel *l, request *r) {
  withdraw(l, r);
  list_remove(r);
  r->state = GONE;
  if (l->flusher == r) l->flusher = NULL;
  request *other = l->asked ? l->asked : l->settled;
  if (other) want_flush(l, other);
  else channel_flush(l);
}

static void start(channel *l) {
  sigset_t all, before;
  pthread_attr_t a;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 256 << 10);
  if (pthread_create(&l->thread, &a, channel_thread, l)) abort();
  pthread_attr_destroy(&a);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* channel_of returns the channel of a worker, which calls it. */
channel *channel_of(gates *g, uint32_t worker) {
  if (worker >= WORKERS) return NULL;
  if (g->links[worker]) return g->links[worker];
  channel *l = allocate(sizeof *l);
  pthread_mutex_init(&l->lock, NULL);
  l->owner = g;
  l->worker = worker;
  l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (l->wake < 0) abort();
  l->current = connection_new(l);
  start(l);
  return g->links[worker] = l;
}

/* channel_close frees a channel without requests, after its thread has ended. */
void channel_close(channel *l) {
  wake(l);
  pthread_join(l->thread, NULL);
  close(l->wake);
  pthread_mutex_destroy(&l->lock);
  free(l->slots);
  free(l->free_slots);
  free(l->scratch.p);
  free(l->chunks);
  free(l);
}
