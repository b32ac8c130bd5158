/* The connections of a channel, and the thread that reads from them. The thread also connects
 * again, and ends the waits of requests that have heard nothing. It never calls Envoy, but to
 * schedule events. */

#include "filter.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_BACKOFF = 50, LAST_BACKOFF = 1000, ASKED_BACKOFF = 2, PARTS = 128 };

void wake(channel *l) {
  uint64_t one = 1;
  if (write(l->wake, &one, sizeof one) < 0) return; /* it is awake already */
}

/* post has the worker do something for r. It is safe from each thread that holds the lock, because
 * a request leaves the lists of its channel before Envoy destroys its filter. */
void post(request *r, unsigned todo) {
  r->todo |= todo;
  if (r->posted) return;
  r->posted = true;
  CALL(http_filter_scheduler_commit)(r->scheduler, 0);
}

/* give_up lets a request go on undecided. */
void give_up(request *r) {
  r->giving_up = true;
  r->deadline = 0;
  post(r, DO_GIVE_UP);
}

/* connection_new makes the connection for further requests. Hello is its first frame. */
connection *connection_new(channel *l) {
  static uint64_t numbers;
  connection *c = allocate(sizeof *c);
  text hello = {0};
  c->fd = -1;
  c->number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
  c->silence = SILENCE;
  put_u32(&hello, PROTOCOL_VERSION);
  put_u32(&hello, l->worker);
  put_u64(&hello, instance());
  shared_open(&c->shared);
  put_u32(&hello, c->shared.p ? SHARED_BLOCKS : 0);
  put_u64(&hello, c->number);
  queue_frame(&c->out, HELLO, 0, 0, (span){hello.p, hello.n});
  free(hello.p);
  c->next = l->all;
  l->all = c;
  return c;
}

static int dial(const char *path) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), size = 4 << 20;
  if (fd < 0) return -1;
  memcpy(a.sun_path, path, strlen(path) + 1);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
  close(fd);
  return -1;
}

static void tell_again(request *r) {
  for (; r; r = r->next)
    if (!r->on && !r->giving_up && !r->answer && !r->answering && (r->state == ASKED || r->state == DECIDED)) post(r, DO_TELL);
}

/* channel_connect connects, if it is time to try. A request that asks does not wait as long as the
 * thread does: a gateway that is back has its requests at once. */
bool channel_connect(channel *l, bool asked) {
  int64_t now = now_ms();
  if (now < (asked ? l->last_try + ASKED_BACKOFF : l->next_try)) return false;
  int fd = dial(l->owner->path);
  l->last_try = now;
  if (!asked) {
    l->backoff = l->backoff ? l->backoff * 2 : FIRST_BACKOFF;
    if (l->backoff > LAST_BACKOFF) l->backoff = LAST_BACKOFF;
    l->next_try = now + l->backoff;
  }
  if (fd < 0) return false;
  l->current->fd = fd;
  count(l->owner, COUNT_MADE);
  connection_send(l, l->current, false);
  tell_again(l->asked);
  tell_again(l->settled);
  wake(l);
  return l->current->fd >= 0;
}

/* retire has further requests go over another connection. */
void retire(channel *l, connection *c) {
  c->retired = true;
  if (l->current == c) l->current = connection_new(l);
  wake(l); /* it connects, and closes what is over */
}

/* leave ends what a list of requests has on a connection that breaks. */
static void leave(channel *l, request *r, connection *c) {
  for (request *next; r; r = next) {
    next = r->next;
    if (r->on != c) continue;
    withdraw(l, r);
    if (r->state == ASKED && !r->answer && !r->answering && !r->giving_up) give_up(r);
  }
}

/* connection_break ends a connection. The thread closes it. The next one is told of requests that
 * are decided, and of those whose end is still in the queue. After a Bye it is connected already,
 * and is told at once. */
void connection_break(channel *l, connection *c) {
  if (c->broken || c->fd < 0) return;
  leave(l, l->asked, c);
  leave(l, l->settled, c);
  c->broken = true;
  shutdown(c->fd, SHUT_RDWR);
  if (l->current == c) retire(l, c);
  queue_keep_ends(&c->out, &l->current->out);
  queue_free(&c->out);
  if (l->current->fd >= 0) tell_again(l->settled);
  connection_send(l, l->current, false);
  count(l->owner, COUNT_LOST);
  wake(l);
}

/* next_piece returns what is to be sent next, or null. */
static piece *next_piece(connection *c) {
  piece *p = c->out.first;
  while (p && p->left == 0) p = p->next;
  return p;
}

/* connection_send sends what the socket takes. Only the worker can send bodies. */
void connection_send(channel *l, connection *c, bool worker) {
  struct iovec v[PARTS];
  shared_control control;
  if (c->fd < 0 || c->broken || c->blocked || c->ended) return;
  for (piece *p = next_piece(c); p; p = next_piece(c)) {
    if (p->body && !worker) {
      post(p->body, DO_FLUSH);
      return;
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)queue_iov(&c->out, worker ? l : NULL, v, PARTS)};
    shared_attach(&c->shared, &m, &control);
    ssize_t n = m.msg_iovlen ? sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    if (n >= 0) {
      shared_passed(&c->shared);
      queue_sent(&c->out, (size_t)n);
      continue;
    }
    if (m.msg_iovlen && errno == EINTR) continue;
    if (m.msg_iovlen == 0 || errno != EAGAIN) {
      connection_break(l, c);
      return;
    }
    c->blocked = true;
    c->blocked_since = now_ms();
    if (worker) wake(l);
    return;
  }
}

/* connection_over handles the end of a socket. What the gateway has said before may still be in the
 * inlet, so the worker breaks the connection when it has read that. */
static void connection_over(channel *l, connection *c) {
  if (!c->inlet || c->broken) {
    connection_break(l, c);
    return;
  }
  c->ended = now_ms();
  retire(l, c);
}

/* receive reads from a connection. It holds the lock while it handles frames, and copies nothing
 * large then. */
static void receive(channel *l, connection *c) {
  size_t room;
  char *to = input_room(&c->in, &room);
  ssize_t n = recv(c->fd, to, room, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  pthread_mutex_lock(&l->lock);
  if (n <= 0) connection_over(l, c);
  else if (!input_came(l, c, &c->in, (size_t)n)) connection_break(l, c);
  pthread_mutex_unlock(&l->lock);
}

static void connection_free(connection *c) {
  if (c->fd >= 0) close(c->fd);
  queue_free(&c->out);
  shared_close(&c->shared);
  input_free(&c->in);
  if (c->inlet) c->inlet->on = NULL;
  free(c);
}

/* reap closes the connections that are over. */
static void reap(channel *l) {
  for (connection **at = &l->all; *at;) {
    connection *c = *at;
    bool over = c->retired && c->requests == 0 && !next_piece(c);
    if (c == l->current || !(c->broken || over)) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    connection_free(c);
  }
}

/* end_wait gives up a request that has heard nothing. The thread does not know what is in an inlet,
 * nor whether a Join is. Where Envoy stood still, the thread may run before the worker, which reads
 * inlets. So the worker begins a last wait first. */
static void end_wait(request *r) {
  if (r->last_wait) {
    give_up(r);
    return;
  }
  r->deadline = 0;
  post(r, DO_LAST_WAIT);
}

/* look_for_silence gives up what has heard nothing until now. The thread has read since then. */
static void look_for_silence(channel *l, int64_t now) {
  l->last_waits = false;
  for (request *r = l->asked, *next; r; r = next) {
    next = r->next;
    if (r->deadline && now >= r->deadline) end_wait(r);
    else if (r->deadline && r->last_wait) l->last_waits = true;
  }
  for (connection *c = l->all, *next; c; c = next) {
    next = c->next;
    shared_tidy(&c->shared, now);
    if ((c->blocked && now - c->blocked_since >= c->silence) || (c->ended && now - c->ended >= c->silence)) connection_break(l, c);
  }
}

/* sleep_ms returns how long the thread may sleep. */
static int sleep_ms(channel *l, int64_t now) {
  int64_t ms = 1000, fifth = l->current->silence / 5 + 1;
  if (l->asked && fifth < ms) ms = fifth;
  if (l->last_waits) ms = LAST_WAIT / 2;
  if (l->current->fd < 0 && l->next_try - now < ms) ms = l->next_try - now;
  return ms > 1 ? (int)ms : 1;
}

/* collect lists what the thread is to wait for. */
static int collect(channel *l, struct pollfd *v, connection **of, int max) {
  int n = 0;
  v[n++] = (struct pollfd){l->wake, POLLIN, 0};
  for (connection *c = l->all; c && n < max; c = c->next) {
    if (c->fd < 0 || c->ended) continue;
    of[n] = c;
    v[n++] = (struct pollfd){c->fd, (short)(c->blocked ? POLLIN | POLLOUT : POLLIN), 0};
  }
  return n;
}

/* writable goes on with what a socket did not take before. */
static void writable(channel *l, connection *c) {
  pthread_mutex_lock(&l->lock);
  c->blocked = false;
  connection_send(l, c, false);
  pthread_mutex_unlock(&l->lock);
}

static void turn(channel *l) {
  enum { MOST = 64 };
  struct pollfd v[MOST];
  connection *of[MOST];
  uint64_t drained;
  pthread_mutex_lock(&l->lock);
  int64_t now = now_ms();
  reap(l);
  if (l->current->fd < 0) channel_connect(l, false);
  int n = collect(l, v, of, MOST), ms = sleep_ms(l, now);
  pthread_mutex_unlock(&l->lock);
  if (poll(v, (nfds_t)n, ms) > 0) {
    if (v[0].revents && read(l->wake, &drained, sizeof drained) < 0) return;
    for (int i = 1; i < n; i++) {
      if (v[i].revents & POLLOUT) writable(l, of[i]);
      if (v[i].revents & (POLLIN | POLLHUP | POLLERR)) receive(l, of[i]);
    }
  }
  pthread_mutex_lock(&l->lock);
  look_for_silence(l, now);
  pthread_mutex_unlock(&l->lock);
}

void *channel_thread(void *arg) {
  channel *l = arg;
  prctl(PR_SET_NAME, "sluice");
  while (!__atomic_load_n(&l->owner->stopping, __ATOMIC_ACQUIRE)) turn(l);
  while (l->all) {
    connection *c = l->all;
    l->all = c->next;
    connection_free(c);
  }
  return NULL;
}
