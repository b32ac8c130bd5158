/* The output of a connection. Small frames are copied into it. A large body stays in Envoy's buffer
 * until the socket takes it, and nothing is sent between the head of its frame and its end. */
#include "filter.h"
#include <stdlib.h>
#include <string.h>

static char zeros[64 << 10];

void write_head(char *at, int type, int flags, uint64_t id, size_t n) {
  for (int i = 0; i < 4; i++) at[i] = (char)(n >> (8 * i));
  at[4] = (char)type;
  at[5] = (char)flags;
  at[6] = at[7] = 0;
  for (int i = 0; i < 8; i++) at[8 + i] = (char)(id >> (8 * i));
}

static piece *append(queue *q, piece *p) {
  if (q->last) q->last->next = p;
  else q->first = p;
  return q->last = p;
}

/* room returns where n further bytes go, and counts them. */
static char *room(queue *q, size_t n) {
  piece *p = q->last;
  if (!p || p->body || !p->bytes) p = append(q, allocate(sizeof *p));
  size_t need = p->at + p->left + n;
  if (need > p->cap && p->frame) {
    memmove(p->bytes, p->bytes + p->frame, p->at + p->left - p->frame);
    need -= p->frame;
    p->at -= p->frame;
    p->frame = 0;
  }
  if (need > p->cap) {
    size_t cap = p->cap ? p->cap : 16 << 10;
    while (cap < need) cap *= 2;
    p->bytes = realloc(p->bytes, cap);
    if (!p->bytes) abort();
    p->cap = cap;
  }
  char *at = p->bytes + p->at + p->left;
  p->left += n;
  q->small += n;
  return at;
}

/* queue_frame appends a frame. */
void queue_frame(queue *q, int type, int flags, uint64_t id, span payload) {
  char *at = room(q, HEAD + payload.n);
  write_head(at, type, flags, id, payload.n);
  if (payload.n) memcpy(at + HEAD, payload.p, payload.n);
}

/* queue_body appends a frame with the n bytes of the body of r. */
void queue_body(queue *q, request *r, size_t n) {
  piece *p = append(q, allocate(sizeof *p));
  p->body = r;
  p->bytes = allocate(HEAD);
  p->cap = HEAD;
  p->left = HEAD + n;
  write_head(p->bytes, BODY, 0, r->id, n);
  r->sending = p;
}

static void piece_free(piece *p) {
  free(p->bytes);
  free(p);
}

static void unlink_piece(queue *q, piece *p) {
  piece **at = &q->first, *before = NULL;
  while (*at != p) {
    before = *at;
    at = &before->next;
  }
  *at = p->next;
  if (q->last == p) q->last = before;
  piece_free(p);
}

/* queue_forget_body ends the use of a body that goes away. If its frame was begun, zeros complete
 * it. */
void queue_forget_body(queue *q, piece *p) {
  p->body->sending = NULL;
  p->body = NULL;
  if (p->at == 0) {
    unlink_piece(q, p);
    return;
  }
  if (p->at < HEAD) { /* what is left of the head is bytes */
    piece *rest = allocate(sizeof *rest);
    rest->left = p->left - (HEAD - p->at);
    rest->next = p->next;
    p->next = rest;
    if (q->last == p) q->last = rest;
    p->left = HEAD - p->at;
    q->small += p->left;
    return;
  }
  free(p->bytes);
  p->bytes = NULL;
}

void queue_free(queue *q) {
  while (q->first) {
    piece *p = q->first;
    q->first = p->next;
    if (p->body) p->body->sending = NULL;
    piece_free(p);
  }
  *q = (queue){0};
}

/* body_iov describes what is left of a body. Only the worker of the request may call it. */
static int body_iov(piece *p, channel *l, struct iovec *v, int max) {
  int n = 0;
  size_t head = p->at < HEAD ? HEAD - p->at : 0, skip = p->at + head - HEAD, left = p->left - head;
  if (head) v[n++] = (struct iovec){p->bytes + p->at, head};
  size_t have = CALL(http_get_body_chunks_size)(p->body->envoy, BUFFERED_REQUEST_BODY);
  if (have > l->chunks_cap) {
    free(l->chunks);
    l->chunks = allocate(have * 2 * sizeof *l->chunks);
    l->chunks_cap = have * 2;
  }
  if (have == 0 || !CALL(http_get_body_chunks)(p->body->envoy, BUFFERED_REQUEST_BODY, l->chunks)) return n;
  for (size_t i = 0; i < have && n < max && left > 0; i++) {
    span c = l->chunks[i];
    size_t cut = skip < c.n ? skip : c.n;
    size_t some = c.n - cut < left ? c.n - cut : left;
    skip -= cut;
    left -= some;
    if (some) v[n++] = (struct iovec){(void *)(c.p + cut), some};
  }
  return n;
}

/* queue_iov describes what is to be sent next, in at most max parts. Without a worker it stops
 * before the first body. */
int queue_iov(queue *q, channel *worker, struct iovec *v, int max) {
  int n = 0;
  for (piece *p = q->first; p && n < max; p = p->next) {
    if (p->body) {
      if (!worker) break;
      int parts = body_iov(p, worker, v + n, max - n);
      size_t bytes = 0;
      for (int i = 0; i < parts; i++) bytes += v[n + i].iov_len;
      n += parts;
      if (bytes < p->left) break;
    } else if (p->bytes) {
      if (p->left) v[n++] = (struct iovec){p->bytes + p->at, p->left};
    } else {
      size_t some = p->left < sizeof zeros ? p->left : sizeof zeros;
      v[n++] = (struct iovec){zeros, some};
      if (some < p->left) break;
    }
  }
  return n;
}

/* complete removes the first piece, which is sent. The last piece of bytes is kept for the next
 * frames. */
static bool complete(queue *q, piece *p) {
  if (p->body) {
    request *r = p->body;
    r->sending = NULL;
    r->deadline = now_ms() + (r->on ? r->on->silence : SILENCE);
  } else if (p == q->last && p->bytes && p->cap <= 64 << 10) {
    p->at = p->frame = 0;
    return false;
  }
  q->first = p->next;
  if (!q->first) q->last = NULL;
  piece_free(p);
  return true;
}

static size_t frame_size(const char *head) {
  size_t n = HEAD;
  for (int i = 0; i < 4; i++) n += (size_t)(unsigned char)head[i] << (8 * i);
  return n;
}

/* pass_frames finds the first frame that is not sent as a whole. */
static void pass_frames(piece *p) {
  while (p->at - p->frame >= HEAD) {
    size_t n = frame_size(p->bytes + p->frame);
    if (p->at - p->frame < n) return;
    p->frame += n;
  }
}

/* frames_of_end returns the size of the frames at the front that tell of a request that has ended:
 * its End, or its Live and its End. 0: the first frame is another one. A Live whose End does not
 * follow is another one too, because the gateway would take that request for one that runs. */
static size_t frames_of_end(const char *at, size_t have) {
  uint32_t slot = (unsigned char)at[8] | (unsigned char)at[9] << 8 | ((unsigned char)at[10] & 15) << 16;
  size_t live = frame_size(at);
  if (at[4] == END) return live;
  if (at[4] != LIVE || slot != NO_SLOT || have - live < HEAD) return 0;
  const char *next = at + live;
  size_t end = frame_size(next);
  return next[4] == END && memcmp(at + 8, next + 8, 8) == 0 && end <= have - live ? live + end : 0;
}

/* queue_keep_ends copies the frames of requests that have ended from q to another queue, up to
 * HELD_LIMIT. A frame of which a part was sent is copied as a whole. */
void queue_keep_ends(queue *q, queue *to) {
  for (piece *p = q->first; p; p = p->next) {
    if (p->body || !p->bytes) continue;
    size_t at = p->frame, stop = p->at + p->left;
    while (stop - at >= HEAD) {
      size_t n = frame_size(p->bytes + at);
      if (n > stop - at) break; /* the head of a body, whose rest is zeros */
      size_t kept = frames_of_end(p->bytes + at, stop - at);
      if (kept && to->small + kept <= HELD_LIMIT) memcpy(room(to, kept), p->bytes + at, kept);
      at += kept ? kept : n;
    }
  }
}

/* queue_sent removes the first n bytes. */
void queue_sent(queue *q, size_t n) {
  while (q->first) {
    piece *p = q->first;
    size_t some = n < p->left ? n : p->left;
    p->at += some;
    p->left -= some;
    n -= some;
    if (!p->body && p->bytes) q->small -= some;
    if (p->left > 0 && !p->body && p->bytes) pass_frames(p);
    if (p->left > 0 || !complete(q, p)) return;
  }
}
