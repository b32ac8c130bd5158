/* What the gateway says. The thread of a channel reads it from the connection, or the worker reads
 * it from an inlet. */

#include "filter.h"
#include <stdlib.h>
#include <string.h>

enum { IN_ROOM = 64 << 10 };

/* frame is what the gateway has sent. */
typedef struct {
  int type, flags;
  uint64_t id;
  span payload;
  answer *whole; /* the memory of the payload if it may be kept, else null */
  bool direct;   /* the worker has read it */
} frame;

/* keep_answer keeps a Go or a Reply for the worker. */
static void keep_answer(request *r, frame *f) {
  answer *a = f->whole;
  if (!a) {
    a = allocate(sizeof *a + f->payload.n);
    *a = (answer){.type = f->type, .flags = f->flags, .n = f->payload.n};
    memcpy(a->payload, f->payload.p, f->payload.n);
  }
  f->whole = NULL;
  r->answer = a;
  r->deadline = 0;
  r->giving_up = false; /* the worker has not carried it out */
  r->todo &= ~(unsigned)DO_GIVE_UP;
  if (f->direct) {
    r->todo |= DO_ANSWER;
    r->channel->due = r;
  } else {
    post(r, DO_ANSWER);
  }
}

static void wait_for(request *r, int64_t ms) {
  r->deadline = now_ms() + ms;
  r->last_wait = false;
}

/* again has a request told over another connection. */
static void again(channel *l, connection *c, request *r) {
  withdraw(l, r);
  wait_for(r, c->silence);
  retire(l, c);
  if (l->current->fd >= 0) post(r, DO_TELL);
}

static bool welcome(channel *l, connection *c, span payload) {
  uint32_t version, ms, shares;
  if (!read_u32(payload, &version)) return false;
  l->refused = version != PROTOCOL_VERSION;
  if (l->refused || payload.n != 12) return false;
  if (!read_u32((span){payload.p + 4, 4}, &ms) || ms == 0 || !read_u32((span){payload.p + 8, 4}, &shares) || shares > 1) return false;
  c->silence = ms;
  c->shared.usable = shares && c->shared.p;
  l->backoff = 0;
  l->next_try = 0;
  return true;
}

static bool is_well_formed(const frame *f, uint32_t *ms) {
  go_answer go;
  reply_answer reply;
  if (f->type == GO) return read_go(f->payload, f->flags, &go);
  if (f->flags != 0) return false;
  if (f->type == REPLY) return read_reply(f->payload, &reply);
  if (f->type == WAIT) return f->payload.n == 4 && read_u32(f->payload, ms);
  return (f->type == AGAIN || f->type == HEARD) && f->payload.n == 0;
}

/* cancels reports whether a frame is the Reply that follows a Go. */
static bool cancels(int answer, const frame *f) { return answer == GO && f->type == REPLY; }

/* to_request handles a frame for a request. It reports whether the frame is well-formed. */
static bool to_request(channel *l, connection *c, frame *f) {
  request *r = request_of(l, c, f->id);
  uint32_t ms = 0;
  if (!is_well_formed(f, &ms)) return false;
  bool answers = f->type == GO || f->type == REPLY;
  if (!r || (r->giving_up && !answers)) return true;
  if (f->type == HEARD) {
    __atomic_store_n(&r->observing, false, __ATOMIC_RELAXED);
    return true;
  }
  if (r->answering && !cancels(r->answering, f)) return true;
  if (r->answer) {
    if (!cancels(r->answer->type, f)) return true;
    free(r->answer); /* the request is cancelled before it has gone on */
    r->answer = NULL;
  }
  if (r->state == DECIDED && f->type == REPLY) keep_answer(r, f);
  else if (r->state != ASKED) return true;
  else if (answers) keep_answer(r, f);
  else if (f->type == WAIT) wait_for(r, ms);
  else again(l, c, r);
  return true;
}

static frame frame_of(const input *in, const char *head, span payload) {
  return (frame){.type = (unsigned char)head[4], .flags = (unsigned char)head[5], .id = get_u64(head + 8), .payload = payload, .direct = in->inlet};
}

static bool handle(channel *l, connection *c, const input *in, const char *head, span payload) {
  frame f = frame_of(in, head, payload);
  if (head[6] || head[7]) return false;
  if (f.id != 0) return to_request(l, c, &f);
  if (f.type == WELCOME && f.flags == 0) return welcome(l, c, payload);
  if (f.type != BYE || f.flags != 0 || payload.n != 0) return false;
  retire(l, c);
  return true;
}

/* begin_large has the rest of a frame with n bytes of payload read into its answer. It reports
 * whether such a frame may be so large. */
static bool begin_large(input *in, const char *head, size_t n, span begun) {
  frame f = frame_of(in, head, begun);
  if (head[6] || head[7] || f.id == 0 || (f.type != GO && f.type != REPLY)) return false;
  in->large = allocate(sizeof *in->large + n);
  *in->large = (answer){.type = f.type, .flags = f.flags, .id = f.id, .n = n};
  if (begun.n) memcpy(in->large->payload, begun.p, begun.n);
  in->large_n = begun.n;
  return true;
}

/* carry_out_due has the worker do what it has just read, without the lock. It reports whether the
 * connection still reads. */
static bool carry_out_due(channel *l, connection *c, const input *in) {
  request *r = l->due;
  l->due = NULL;
  if (r) {
    pthread_mutex_unlock(&l->lock);
    carry_out(r, false);
    pthread_mutex_lock(&l->lock);
    if (!in->inlet->on) return false; /* c may be gone */
  }
  return !c->broken;
}

/* frames handles all whole frames of the input. It reports whether they are well-formed. */
static bool frames(channel *l, connection *c, input *in) {
  size_t at = 0;
  bool good = true, reads = !c->broken;
  while (good && reads && in->text.n - at >= HEAD) {
    const char *head = in->text.p + at;
    size_t have = in->text.n - at - HEAD;
    uint32_t n;
    if (!read_u32((span){head, 4}, &n) || n > LARGEST_FRAME) return false;
    if (have < n && n < LARGE_ANSWER) break;
    size_t some = have < n ? have : n;
    good = have < n ? begin_large(in, head, n, (span){head + HEAD, have}) : handle(l, c, in, head, (span){head + HEAD, n});
    at += HEAD + some;
    reads = carry_out_due(l, c, in);
  }
  if (at) memmove(in->text.p, in->text.p + at, in->text.n - at);
  in->text.n -= at;
  return good;
}

/* large_frame handles the large answer, all of which has come. */
static bool large_frame(channel *l, connection *c, input *in) {
  answer *a = in->large;
  frame f = {a->type, a->flags, a->id, {a->payload, a->n}, a, in->inlet};
  in->large = NULL;
  bool good = to_request(l, c, &f);
  free(f.whole);
  carry_out_due(l, c, in);
  return good;
}

/* input_room returns where the next bytes go, and for how many there is room. */
char *input_room(input *in, size_t *room) {
  if (in->large) {
    *room = in->large->n - in->large_n;
    return in->large->payload + in->large_n;
  }
  text_room(&in->text, IN_ROOM);
  *room = in->text.cap - in->text.n;
  return in->text.p + in->text.n;
}

/* input_came handles the n bytes that have come. It reports whether they are well-formed. */
bool input_came(channel *l, connection *c, input *in, size_t n) {
  if (!in->large) {
    in->text.n += n;
    return frames(l, c, in);
  }
  in->large_n += n;
  return in->large_n < in->large->n || large_frame(l, c, in);
}

void input_free(input *in) {
  free(in->large);
  free(in->text.p);
}
