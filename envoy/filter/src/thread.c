/* The connections of a channel, and the thread that reads from them. The thread also connects again, and ends
 * the waits of requests that have heard nothing. It never calls Envoy, but to schedule events. */

#include "filter.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_BACKOFF = 50, LAST_BACKOFF = 1000, PARTS = 128 };
enum { IN_ROOM = 64 << 10 };

void wake(channel *l) {
  uint64_t one = 1;
  if (write(l->wake, &one, sizeof one) < 0) return; /* it is awake already */
}

/* post has the worker do something for r. It is safe from each thread that holds the lock, because a
 * request leaves the lists of its channel before Envoy destroys its filter. */
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
  connection *c = allocate(sizeof *c);
  text hello = {0};
  c->fd = -1;
  c->silence = SILENCE;
  put_u32(&hello, PROTOCOL_VERSION);
  put_u32(&hello, l->worker);
  put_u64(&hello, instance());
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

/* channel_connect connects, if it is time to try. */
bool channel_connect(channel *l) {
  int64_t now = now_ms();
  if (now < l->next_try) return false;
  int fd = dial(l->owner->path);
  l->backoff = l->backoff ? l->backoff * 2 : FIRST_BACKOFF;
  if (l->backoff > LAST_BACKOFF) l->backoff = LAST_BACKOFF;
  l->next_try = now + l->backoff;
  if (fd < 0) return false;
  l->current->fd = fd;
  count(l->owner, COUNT_MADE);
  connection_send(l, l->current, false);
  tell_again(l->asked);
  tell_again(l->settled);
  wake(l);
  return l->current->fd >= 0;
}

static void retire(channel *l, connection *c) {
  c->retired = true;
  if (l->current == c) l->current = connection_new(l);
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

/* connection_break ends a connection. The thread closes it. Requests that are decided are told over the
 * next one. */
void connection_break(channel *l, connection *c) {
  if (c->broken || c->fd < 0) return;
  leave(l, l->asked, c);
  leave(l, l->settled, c);
  c->broken = true;
  queue_free(&c->out);
  shutdown(c->fd, SHUT_RDWR);
  if (l->current == c) retire(l, c);
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
  if (c->fd < 0 || c->broken || c->blocked) return;
  for (piece *p = next_piece(c); p; p = next_piece(c)) {
    if (p->body && !worker) {
      post(p->body, DO_FLUSH);
      return;
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)queue_iov(&c->out, worker ? l : NULL, v, PARTS)};
    ssize_t n = m.msg_iovlen ? sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    if (n >= 0) {
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

static void keep_answer(request *r, int type, int flags, span payload) {
  answer *a = allocate(sizeof *a + payload.n);
  *a = (answer){.type = type, .flags = flags, .n = payload.n};
  memcpy(a->payload, payload.p, payload.n);
  r->answer = a;
  r->deadline = 0;
  post(r, DO_ANSWER);
}

/* again has a request told over another connection. */
static void again(channel *l, connection *c, request *r) {
  withdraw(l, r);
  r->deadline = now_ms() + c->silence;
  retire(l, c);
  if (l->current->fd >= 0) post(r, DO_TELL);
}

static bool welcome(channel *l, connection *c, span payload) {
  uint32_t version, ms;
  if (payload.n != 8 || !read_u32(payload, &version)) return false;
  if (!read_u32((span){payload.p + 4, 4}, &ms) || version != PROTOCOL_VERSION || ms == 0) return false;
  c->silence = ms;
  l->backoff = 0;
  l->next_try = 0;
  return true;
}

/* to_request handles a frame for a request. It reports whether the frame is well-formed. */
static bool to_request(channel *l, connection *c, int type, int flags, uint64_t id, span payload) {
  request *r = request_of(l, c, id);
  go_answer go;
  reply_answer reply;
  uint32_t ms = 0;
  bool good = (type == GO && read_go(payload, flags, &go)) ||
              (type == REPLY && flags == 0 && read_reply(payload, &reply)) ||
              (type == WAIT && flags == 0 && payload.n == 4 && read_u32(payload, &ms)) ||
              (type == AGAIN && flags == 0 && payload.n == 0);
  if (!good || !r || r->giving_up || r->answering) return good;
  if (r->answer) {
    if (r->answer->type != GO || type != REPLY) return true;
    free(r->answer); /* the request is cancelled before it has gone on */
  }
  if (r->state == DECIDED && type == REPLY) keep_answer(r, type, flags, payload);
  if (r->state != ASKED) return true;
  if (type == GO || type == REPLY) keep_answer(r, type, flags, payload);
  if (type == WAIT) r->deadline = now_ms() + ms;
  if (type == AGAIN) again(l, c, r);
  return true;
}

static bool handle(channel *l, connection *c, const char *head, span payload) {
  int type = (unsigned char)head[4], flags = (unsigned char)head[5];
  uint64_t id = 0;
  for (int i = 0; i < 8; i++) id |= (uint64_t)(unsigned char)head[8 + i] << (8 * i);
  if (head[6] || head[7]) return false;
  if (id != 0) return to_request(l, c, type, flags, id, payload);
  if (type == WELCOME && flags == 0) return welcome(l, c, payload);
  if (type != BYE || flags != 0 || payload.n != 0) return false;
  retire(l, c);
  return true;
}

/* frames handles all whole frames of the input. It reports whether they are well-formed. */
static bool frames(channel *l, connection *c) {
  size_t at = 0;
  bool good = true;
  while (good && !c->broken && c->in.n - at >= HEAD) {
    const char *head = c->in.p + at;
    uint32_t n;
    if (!read_u32((span){head, 4}, &n) || n > LARGEST_FRAME) return false;
    if (c->in.n - at - HEAD < n) break;
    good = handle(l, c, head, (span){head + HEAD, n});
    at += HEAD + n;
  }
  if (at) memmove(c->in.p, c->in.p + at, c->in.n - at);
  c->in.n -= at;
  return good;
}

/* receive reads from a connection, without the lock but to handle frames. */
static void receive(channel *l, connection *c) {
  text_room(&c->in, IN_ROOM);
  ssize_t n = recv(c->fd, c->in.p + c->in.n, c->in.cap - c->in.n, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  pthread_mutex_lock(&l->lock);
  if (n > 0) c->in.n += (size_t)n;
  if (n <= 0 || !frames(l, c)) connection_break(l, c);
  pthread_mutex_unlock(&l->lock);
  if (c->in.n == 0 && c->in.cap > 1 << 20) {
    free(c->in.p);
    c->in = (text){0};
  }
}

static void connection_free(connection *c) {
  if (c->fd >= 0) close(c->fd);
  queue_free(&c->out);
  free(c->in.p);
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

static void look_for_silence(channel *l, int64_t now) {
  for (request *r = l->asked, *next; r; r = next) {
    next = r->next;
    if (r->deadline && now >= r->deadline) give_up(r);
  }
  for (connection *c = l->all, *next; c; c = next) {
    next = c->next;
    if (c->blocked && now - c->blocked_since >= c->silence) connection_break(l, c);
  }
}

/* sleep_ms returns how long the thread may sleep. */
static int sleep_ms(channel *l, int64_t now) {
  int64_t ms = 1000, fourth = l->current->silence / 4 + 1;
  if (l->asked && fourth < ms) ms = fourth;
  if (l->current->fd < 0 && l->next_try - now < ms) ms = l->next_try - now;
  return ms > 1 ? (int)ms : 1;
}

/* collect lists what the thread is to wait for. */
static int collect(channel *l, struct pollfd *v, connection **of, int max) {
  int n = 0;
  v[n++] = (struct pollfd){l->wake, POLLIN, 0};
  for (connection *c = l->all; c && n < max; c = c->next) {
    if (c->fd < 0) continue;
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
  look_for_silence(l, now);
  reap(l);
  if (l->current->fd < 0) channel_connect(l);
  int n = collect(l, v, of, MOST), ms = sleep_ms(l, now);
  pthread_mutex_unlock(&l->lock);
  if (poll(v, (nfds_t)n, ms) <= 0) return;
  if (v[0].revents && read(l->wake, &drained, sizeof drained) < 0) return;
  for (int i = 1; i < n; i++) {
    if (v[i].revents & POLLOUT) writable(l, of[i]);
    if (v[i].revents & (POLLIN | POLLHUP | POLLERR)) receive(l, of[i]);
  }
}

void *channel_thread(void *arg) {
  channel *l = arg;
  while (!__atomic_load_n(&l->owner->stopping, __ATOMIC_ACQUIRE)) turn(l);
  while (l->all) {
    connection *c = l->all;
    l->all = c->next;
    connection_free(c);
  }
  return NULL;
}
