/* Inlets. Envoy has a listener on a socket of its own, and the gateway connects to it. The worker
 * that has accepted such a connection says its index. The gateway then says which connection of
 * that worker's channel it is, and writes there what it would write to that connection. So an
 * answer wakes the worker at once, and not the thread before it.
 *
 * Which worker accepts a connection is Envoy's choice. It gives each one to the worker that has the
 * fewest. */

#include "filter.h"
#include <stdlib.h>
#include <string.h>

/* The configuration is the path of the gateway's socket, by which the filter of requests knows
 * it. */
HOOK(void *, network_filter_config_new)(void *envoy, span name, span config) {
  (void)envoy, (void)name;
  return gates_use(config);
}

HOOK(void, network_filter_config_destroy)(void *config) { gates_leave(config); }

HOOK(void *, network_filter_new)(void *config, void *envoy) {
  inlet *i = allocate(sizeof *i);
  (void)envoy;
  i->owner = config;
  i->in.inlet = i;
  return i;
}

/* say_worker says whose connection it is. */
HOOK(int, network_filter_new_connection)(void *envoy, void *filter) {
  inlet *i = filter;
  uint32_t worker = CALL(network_filter_get_worker_index)(envoy);
  text ready = {0};
  char head[HEAD];
  i->channel = channel_of(i->owner, worker);
  write_head(head, READY, 0, 0, 12);
  put(&ready, head, HEAD);
  put_u32(&ready, worker);
  put_u64(&ready, instance());
  CALL(network_filter_write)(envoy, (span){ready.p, ready.n}, false);
  free(ready.p);
  return NETWORK_CONTINUE;
}

/* join finds the connection that the first frame names. It reports whether there is one, if that
 * frame has come. */
static bool join(inlet *i) {
  static const char head[HEAD] = {8, 0, 0, 0, JOIN};
  text *in = &i->in.text;
  if (in->n < HEAD + 8) return true;
  if (memcmp(in->p, head, HEAD) != 0) return false;
  uint64_t number = get_u64(in->p + HEAD);
  connection *c = i->channel->all;
  while (c && c->number != number) c = c->next;
  if (!c || c->broken || c->inlet) return false;
  c->inlet = i;
  i->on = c;
  i->joined = true;
  in->n -= HEAD + 8;
  memmove(in->p, in->p + HEAD + 8, in->n);
  return true;
}

/* came handles n bytes that have come. It reports whether more may come; the lock is held. */
static bool came(inlet *i, size_t n) {
  if (!i->joined) {
    i->in.text.n += n;
    n = 0;
    if (!join(i)) return false;
  }
  if (!i->joined) return true;
  connection *c = i->on;
  if (!c || c->broken) return false;
  if (input_came(i->channel, c, &i->in, n)) return true;
  if (i->on) connection_break(i->channel, i->on);
  return false;
}

/* take takes over what a chunk of Envoy's buffer has. */
static bool take(inlet *i, span s) {
  bool good = true;
  while (good && s.n > 0) {
    size_t room;
    char *to = input_room(&i->in, &room);
    if (room > s.n) room = s.n;
    memcpy(to, s.p, room);
    s = (span){s.p + room, s.n - room};
    pthread_mutex_lock(&i->channel->lock);
    good = came(i, room);
    pthread_mutex_unlock(&i->channel->lock);
  }
  return good;
}

HOOK(int, network_filter_read)(void *envoy, void *filter, size_t n, bool end) {
  inlet *i = filter;
  span few[FEW], *chunks = few;
  size_t count = CALL(network_filter_get_read_buffer_chunks_size)(envoy);
  bool good = i->channel;
  (void)end;
  if (count > FEW) chunks = allocate(count * sizeof *chunks);
  if (!CALL(network_filter_get_read_buffer_chunks)(envoy, chunks)) count = 0;
  for (size_t k = 0; k < count && good; k++) good = take(i, chunks[k]);
  if (chunks != few) free(chunks);
  CALL(network_filter_drain_read_buffer)(envoy, n);
  if (!good) CALL(network_filter_close)(envoy, NETWORK_CLOSE_NO_FLUSH);
  return NETWORK_STOP;
}

/* leave ends the connection whose answers came here: some may be lost. */
static void leave(inlet *i) {
  channel *l = i->channel;
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  connection *c = i->on;
  i->on = NULL;
  if (c) {
    c->inlet = NULL;
    connection_break(l, c);
  }
  pthread_mutex_unlock(&l->lock);
}

HOOK(void, network_filter_event)(void *envoy, void *filter, int event) {
  (void)envoy;
  if (event == NETWORK_REMOTE_CLOSE || event == NETWORK_LOCAL_CLOSE) leave(filter);
}

HOOK(void, network_filter_destroy)(void *filter) {
  inlet *i = filter;
  leave(i);
  input_free(&i->in);
  free(i);
}

HOOK(int, network_filter_write)(void *envoy, void *filter, size_t n, bool end) {
  (void)envoy, (void)filter, (void)n, (void)end;
  return NETWORK_CONTINUE;
}

/* Envoy loads no module that lacks one of its hooks. Inlets have no use for the following ones. */
HOOK(void, network_filter_http_callout_done)(ANY void *a, ANY void *b, ANY uint64_t c, ANY int d, ANY pair *e, ANY size_t f, ANY span *g, ANY size_t h) {}
HOOK(void, network_filter_scheduled)(ANY void *a, ANY void *b, ANY uint64_t c) {}
HOOK(void, network_filter_config_scheduled)(ANY void *a, ANY uint64_t b) {}
HOOK(void, network_filter_above_write_buffer_high_watermark)(ANY void *a, ANY void *b) {}
HOOK(void, network_filter_below_write_buffer_low_watermark)(ANY void *a, ANY void *b) {}
