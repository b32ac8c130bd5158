/* What a connection that breaks leaves of its queue to the next one. */
#include "envoy.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static char payload[4096];
static const uint64_t ended = NO_SLOT | (uint64_t)1 << SLOT_BITS;

static void add(queue *q, int type, uint64_t id, size_t n) { queue_frame(q, type, 0, id, (span){payload, n}); }

/* check reads what is kept: pairs of Live and End, and Ends alone. It returns how many frames there
 * are. */
static int check(queue *kept) {
  int n = 0;
  size_t total = 0;
  uint64_t live = 0;
  for (piece *p = kept->first; p; p = p->next) {
    for (size_t at = p->at; at < p->at + p->left; n++) {
      uint32_t length;
      uint64_t id;
      memcpy(&length, p->bytes + at, 4);
      memcpy(&id, p->bytes + at + 8, 8);
      int type = p->bytes[at + 4];
      assert(type == LIVE || type == END);
      assert(type == END || !live);
      assert(!live || id == live);
      live = type == LIVE ? id : 0;
      at += HEAD + length;
      total += HEAD + length;
    }
  }
  assert(!live); /* a Live without its End */
  assert(total == kept->small && total <= HELD_LIMIT);
  return n;
}

static int keep(queue *q, queue *to) {
  queue_keep_ends(q, to);
  int n = check(to);
  queue_free(q);
  queue_free(to);
  return n;
}

int main(void) {
  queue q = {0}, to = {0};

  /* At the bound, the End of a request is as welcome as its Live. */
  for (size_t sent = 0; sent < 3 * HELD_LIMIT; sent += 3000) {
    add(&q, LIVE, ended + (sent << SLOT_BITS), 1500);
    add(&q, END, ended + (sent << SLOT_BITS), 1500);
  }
  int n = keep(&q, &to);
  assert(n == 2 * (int)(HELD_LIMIT / (3000 + 2 * HEAD)));

  /* One of a few bytes less than what is left goes in, and its Live does not without it. */
  for (size_t room = 2 * HEAD; room < 2 * HEAD + 40; room++) {
    for (to.small = 0; to.small < HELD_LIMIT - room;) {
      size_t left = HELD_LIMIT - room - to.small;
      add(&to, END, 1, left > 2000 ? 1000 : left - HEAD);
    }
    int before = check(&to);
    add(&q, LIVE, ended, 10);
    add(&q, END, ended, 20);
    n = keep(&q, &to);
    assert(n == before + (room >= 2 * HEAD + 30 ? 2 : 0));
  }

  /* A Live whose End never came, or was that of another request, is nothing that has ended. */
  add(&q, LIVE, ended, 10);
  assert(keep(&q, &to) == 0);
  add(&q, LIVE, ended, 10);
  add(&q, END, 7, 10);
  add(&q, LIVE, 7, 10); /* it runs */
  add(&q, END, 8, 10);
  add(&q, LIVE, ended, 10);
  add(&q, HEADERS, 9, 10);
  assert(keep(&q, &to) == 2);

  /* A pair of which a part was sent is kept as a whole, as long as its Live was not sent as a
   * whole. */
  add(&q, LIVE, ended, 10);
  add(&q, END, ended, 10);
  queue_sent(&q, HEAD + 9);
  assert(keep(&q, &to) == 2);
  add(&q, LIVE, ended, 10);
  add(&q, END, ended, 10);
  queue_sent(&q, HEAD + 10);
  assert(keep(&q, &to) == 1);
  return 0;
}
