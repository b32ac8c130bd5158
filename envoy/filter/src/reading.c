/* What the filter reads of a response while it passes. It reads the usage, if the gateway wants it,
 * and the events of a stream, if the gateway has it in its sample. The response is not changed and
 * not delayed. The Lua reader of package xds does the same for requests that ext_proc decides. */
#include "filter.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* A gap of SHORTEST microseconds or less is of class 0. Each class is 2 % longer. */
enum { SHORTEST = 10, CLASSES = 1024 };
static double ends_of_classes[CLASSES];

/* How much of the line of an event has come: up to DATA how many bytes of "data:". */
enum { DATA = 5, OTHER_LINE };

/* UNKNOWN is a number of tokens that was not told. MOST_TOKENS is more than any response can
 * have. */
enum { UNKNOWN = -1 };
#define MOST_TOKENS ((int64_t)1 << 40)

/* counts are numbers of tokens as a response tells them. Those of other names count if the usual
 * names are missing: some servers write both, and zeros under one of them. */
typedef struct {
  int64_t input, output, cached, written;
  int64_t other_input, other_output, other_cached;
  int64_t total;
} counts;
static const counts no_counts = {UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN};

/* seen is what was found in an event, or in a response that is no stream. */
typedef struct {
  counts counts;
  bool malformed; /* one of the counts is no number of tokens */
  bool data;      /* there is any */
  bool text;      /* a part of the answer */
  bool delta;     /* the same in a member of that name */
  bool end;       /* the end marker */
  bool responses; /* it is an event of the Responses API */
  bool is_delta, completed, incomplete, failed; /* of which type */
  char reason[33];
} seen;

/* beginning is how events of a stream begin: up to KNOWN bytes of one, and what was read of its
 * first n bytes, if n is not 0. Chunks of a stream begin with the same LEAST_KNOWN bytes at least,
 * and mostly differ in their last third. */
enum { KNOWN = 512, LEAST_KNOWN = 16 };
typedef struct {
  char text[KNOWN];
  size_t length, n;
  json json;
  seen seen;
} beginning;

struct reading {
  bool of_messages, of_stream;    /* what the gateway wants to know */
  bool begun, success, ended;     /* the response has come, with such a status, and to its end */
  bool is_stream, is_json;        /* it is of this type, and not compressed */
  bool broken;                    /* a part of it is no JSON, or tells no usage that can be read */
  bool over;                      /* the last event has come; further ones do not count */
  bool after_cr;                  /* the last byte was one that a line feed may follow */
  bool fresh;                     /* nothing of the event's data was read */
  uint8_t line;                   /* see DATA */
  json json;
  seen now;
  beginning known;
  counts usage;
  int64_t tokens, bytes, first, last; /* times in microseconds since 1970 */
  bool marked;
  char finish[33];
  uint32_t *gaps; /* how many of each class */
};

/* reading_init must be called before the first reader is made. */
void reading_init(void) {
  json_init();
  double end = SHORTEST * 1.00995049383620779; /* the root of 1.02 */
  for (int i = 0; i < CLASSES; i++, end *= 1.02) ends_of_classes[i] = end;
}

/* is_kind compares the beginning of a value whose letters may be large. */
static bool is_kind(span s, span with) { return s.n >= with.n && strncasecmp(s.p, with.p, with.n) == 0; }

/* reading_new returns a reader for a value of the header x-sluice-usage. */
reading *reading_new(span wanted) {
  reading *r = allocate(sizeof *r);
  r->of_messages = begins(wanted, SPAN("messages"));
  r->of_stream = ends(wanted, SPAN("+stream"));
  return r;
}

void reading_free(reading *r) {
  if (r) free(r->gaps);
  free(r);
}

static void begin_text(reading *r) {
  r->now = (seen){.counts = no_counts};
  r->fresh = true;
  json_begin(&r->json);
}

/* reading_begin begins with the headers of the response. */
void reading_begin(reading *r, void *envoy) {
  span v;
  bool plain = !CALL(http_get_header)(envoy, RESPONSE_HEADERS, SPAN("content-encoding"), &v, 0, NULL) || is_kind(v, SPAN("identity"));
  r->begun = true;
  r->success = CALL(http_get_header)(envoy, RESPONSE_HEADERS, SPAN(":status"), &v, 0, NULL) && begins(v, SPAN("2"));
  if (CALL(http_get_header)(envoy, RESPONSE_HEADERS, SPAN("content-type"), &v, 0, NULL)) {
    r->is_stream = plain && is_kind(v, SPAN("text/event-stream"));
    r->is_json = plain && is_kind(v, SPAN("application/json"));
  }
  r->usage = no_counts;
  begin_text(r);
}

/* count_of returns which count the value belongs to that was found, or null. Usage is a member of
 * the whole, or of its member response or message. Arrays on the way do not matter. */
static int64_t *count_of(counts *c, const json *j, bool of_messages) {
  uint8_t path[4];
  size_t n = 0, at = 0;
  if (j->names[j->depth] < NAME_PROMPT_TOKENS || j->names[j->depth] == IN_ARRAY) return NULL;
  for (uint16_t d = 1; d <= j->depth; d++) {
    if (j->names[d] == IN_ARRAY) continue;
    if (n == sizeof path) return NULL;
    path[n++] = j->names[d];
  }
  if (n > 0 && (path[0] == NAME_RESPONSE || path[0] == NAME_MESSAGE)) at = 1;
  if (n < at + 2 || path[at] != NAME_USAGE) return NULL;
  if (n == at + 3) {
    if (of_messages || path[at + 2] != NAME_CACHED_TOKENS) return NULL;
    return path[at + 1] == NAME_PROMPT_DETAILS ? &c->cached : path[at + 1] == NAME_INPUT_DETAILS ? &c->other_cached : NULL;
  }
  if (n != at + 2) return NULL;
  switch (path[at + 1]) {
  case NAME_PROMPT_TOKENS: return of_messages ? NULL : &c->input;
  case NAME_INPUT_TOKENS: return of_messages ? &c->input : &c->other_input;
  case NAME_COMPLETION_TOKENS: return of_messages ? NULL : &c->output;
  case NAME_OUTPUT_TOKENS: return of_messages ? &c->output : &c->other_output;
  case NAME_CACHE_READ: return of_messages ? &c->cached : NULL;
  case NAME_CACHE_CREATION: return of_messages ? &c->written : NULL;
  case NAME_TOTAL_TOKENS: return of_messages ? NULL : &c->total;
  }
  return NULL;
}

/* tokens_of returns the number of tokens that a number is, or UNKNOWN. 11.0 is 11. */
static int64_t tokens_of(const json *j) {
  int64_t n = 0;
  size_t i = 0, end = j->length;
  if (end > sizeof j->text) return UNKNOWN;
  while (end > 1 && j->text[end - 1] == '0' && memchr(j->text, '.', end)) end--;
  if (end > 1 && j->text[end - 1] == '.') end--;
  for (; i < end && j->text[i] >= '0' && j->text[i] <= '9' && n <= MOST_TOKENS; i++) n = n * 10 + (j->text[i] - '0');
  return i == end && n <= MOST_TOKENS ? n : UNKNOWN;
}

/* found_count takes a number. Another value in its place makes the usage unknown, but for null, and
 * but for the total, which matters only where nothing else is told. */
static void found_count(reading *r, const json *j, int what) {
  int64_t *to = count_of(&r->now.counts, j, r->of_messages);
  if (!to || (what == JSON_OTHER && j->text[0] == 'n')) return;
  *to = what == JSON_NUMBER ? tokens_of(j) : UNKNOWN;
  r->now.malformed |= *to == UNKNOWN && to != &r->now.counts.total;
}

static bool is_word(span s) {
  for (size_t i = 0; i < s.n; i++) {
    char c = s.p[i];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return s.n > 0;
}

static void found_type(seen *s, span type) {
  s->end |= equal(type, SPAN("message_stop"));
  s->responses |= begins(type, SPAN("response."));
  s->completed |= equal(type, SPAN("response.completed"));
  s->incomplete |= equal(type, SPAN("response.incomplete"));
  s->failed |= equal(type, SPAN("response.failed"));
  s->is_delta |= ends(type, SPAN(".delta"));
}

static void found_string(seen *s, const json *j) {
  uint8_t name = j->names[j->depth];
  span v = {j->text, j->length < sizeof j->text ? j->length : sizeof j->text};
  if (name == NAME_TYPE && j->depth == 1) found_type(s, v);
  if (name >= NAME_CONTENT && name <= NAME_PARTIAL_JSON && j->length > 0) {
    s->text = true;
    s->delta |= name == NAME_DELTA;
  }
  if ((name == NAME_FINISH_REASON || name == NAME_STOP_REASON) && !s->reason[0] && is_word(v))
    memcpy(s->reason, v.p, v.n < sizeof s->reason ? v.n : sizeof s->reason - 1);
}

/* found_tool_call: the first object of a list of calls is a part of the answer, whatever it has. */
static bool found_tool_call(const json *j) {
  return j->depth > 2 && j->names[j->depth - 1] == IN_ARRAY && j->names[j->depth - 2] == NAME_TOOL_CALLS;
}

static void found(void *of, const json *j, int what) {
  reading *r = of;
  if (what == JSON_NUMBER || what == JSON_STRING || what == JSON_OTHER) found_count(r, j, what);
  if (what == JSON_STRING) found_string(&r->now, j);
  else if (what == JSON_DONE) r->now.end = true;
  else if (what == JSON_OBJECT) r->now.text |= found_tool_call(j);
}

static void add(int64_t *to, int64_t n, int64_t other) {
  if (n != UNKNOWN) *to = n;
  else if (other != UNKNOWN) *to = other;
}

/* end_of_json takes over what the usage of an event or of the whole response says. */
static void end_of_json(reading *r) {
  json_end(&r->json, found, r);
  if (!json_is_whole(&r->json) || r->now.malformed) {
    r->broken = true;
    return;
  }
  counts *c = &r->now.counts;
  add(&r->usage.input, c->input, c->other_input);
  add(&r->usage.output, c->output, c->other_output);
  add(&r->usage.cached, c->cached, c->other_cached);
  add(&r->usage.written, c->written, UNKNOWN);
  add(&r->usage.total, c->total, UNKNOWN);
}

static int class_of(int64_t gap) {
  int low = 0, high = CLASSES - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if ((double)gap < ends_of_classes[middle]) high = middle;
    else low = middle + 1;
  }
  return low;
}

static void token(reading *r, int64_t now) {
  if (r->tokens++ == 0) {
    r->first = r->last = now;
    return;
  }
  if (!r->gaps) r->gaps = allocate(CLASSES * sizeof *r->gaps);
  r->gaps[class_of(now - r->last)]++;
  if (now > r->last) r->last = now; /* the clock may be set back */
}

static void finish(reading *r, const char *reason) {
  if (reason[0]) memcpy(r->finish, reason, strlen(reason) + 1);
}

/* end_of_event counts an event of which all has come. */
static void end_of_event(reading *r, int64_t now) {
  seen *s = &r->now;
  if (!s->data || json_is_empty(&r->json)) {
    s->data = false;
    return;
  }
  if (!r->over) end_of_json(r);
  if (s->responses) {
    r->marked |= s->completed || s->incomplete;
    finish(r, s->completed ? "stop" : s->incomplete ? "length" : "");
    if (s->is_delta && s->delta) token(r, now);
  } else {
    if (s->end) r->marked = true;
    else if (s->text) token(r, now);
    finish(r, s->reason);
  }
  r->over |= s->end || s->completed || s->incomplete || s->failed;
  begin_text(r);
}

/* same returns how many bytes at the beginning of both are equal. */
static size_t same(const char *a, const char *b, size_t n) {
  size_t i = 0;
  for (uint64_t v, w; i + 8 <= n; i += 8) {
    memcpy(&v, a + i, 8);
    memcpy(&w, b + i, 8);
    if (v != w) return i + (size_t)__builtin_ctzll(v ^ w) / 8; /* little-endian, see before */
  }
  while (i < n && a[i] == b[i]) i++;
  return i;
}

/* read_known reads the beginning of an event that an earlier one had too, and returns its
 * length. */
static size_t read_known(reading *r, const char *p, size_t n) {
  beginning *k = &r->known;
  if (k->n && n >= k->n && memcmp(p, k->text, k->n) == 0) {
    r->json = k->json;
    r->now = k->seen;
    return k->n;
  }
  size_t known = same(p, k->text, n < k->length ? n : k->length);
  if (known < LEAST_KNOWN) {
    k->n = 0;
    k->length = n < KNOWN ? n : KNOWN;
    memcpy(k->text, p, k->length);
    return 0;
  }
  json_read(&r->json, p, known, found, r);
  k->json = r->json;
  k->seen = r->now;
  return k->n = k->length = known;
}

/* read_data reads some of a line of an event's data, or its whole. */
static void read_data(reading *r, const char *p, size_t n, bool whole) {
  size_t known = r->fresh && whole ? read_known(r, p, n) : 0;
  r->fresh = false;
  json_read(&r->json, p + known, n - known, found, r);
}

/* end_of_line handles a CR or an LF. An empty line ends an event. */
static void end_of_line(reading *r, char c, int64_t now) {
  if (r->line == 0) end_of_event(r, now);
  else if (r->line == DATA) json_read(&r->json, "\n", 1, found, r);
  r->line = 0;
  r->after_cr = c == '\r';
}

/* begin_of_line compares a byte with "data:". */
static void begin_of_line(reading *r, char c, int64_t now) {
  if (c == '\n' || c == '\r') end_of_line(r, c, now);
  else r->line = c == "data:"[r->line] ? r->line + 1 : OTHER_LINE;
  r->now.data |= r->line == DATA;
}

static void read_events(reading *r, const char *p, size_t n, int64_t now) {
  for (const char *stop = p + n; p < stop;) {
    bool rest_of_end = r->after_cr && *p == '\n';
    r->after_cr = false;
    if (rest_of_end) {
      p++;
    } else if (r->line < DATA) {
      begin_of_line(r, *p++, now);
    } else {
      size_t some = before(p, (size_t)(stop - p), '\n', '\r');
      if (r->line == DATA) read_data(r, p, some, p + some < stop);
      p += some;
      if (p < stop) end_of_line(r, *p++, now);
    }
  }
}

/* reading_feed reads the next bytes of the response. now is needed for streams. */
void reading_feed(reading *r, span s, int64_t now) {
  r->bytes += (int64_t)s.n;
  if (r->is_stream) read_events(r, s.p, s.n, now);
  else if (r->is_json) json_read(&r->json, s.p, s.n, found, r);
}

/* reading_read reads what has come of the response's body. */
void reading_read(reading *r, const span *chunks, size_t n) {
  struct timespec now = {0};
  if (r->of_stream) clock_gettime(CLOCK_REALTIME, &now);
  for (size_t i = 0; i < n; i++) reading_feed(r, chunks[i], now.tv_sec * 1000000LL + now.tv_nsec / 1000);
}

/* reading_end tells that the response has come to its end. An event without its end does not
 * count. */
void reading_end(reading *r) {
  if (r->ended) return;
  r->ended = true;
  if (r->is_stream && r->now.data && !r->over) r->broken = true; /* the stream ends within an event */
  if (!r->is_json) return;
  end_of_json(r);
  finish(r, r->now.reason);
}

/* put_usage puts the numbers of tokens of the prompt, of the answer, and those of the prompt that
 * came from the cache. If the total is told alone or with an answer of 0, it stands for the prompt,
 * and the answer is unknown. Without an end, or after a fault, those that were read may be too
 * small. */
static size_t put_usage(text *t, const reading *r) {
  counts c = r->usage;
  char s[3 * DECIMAL], digits[DECIMAL];
  size_t n = 0;
  bool only_total = c.input == UNKNOWN && c.output <= 0;
  if (only_total) c.input = c.total;
  if (!r->ended || !r->success || r->broken || c.input == UNKNOWN) return 0;
  if (r->of_messages) c.input += (c.cached > 0 ? c.cached : 0) + (c.written > 0 ? c.written : 0);
  const int64_t numbers[] = {c.input, only_total ? UNKNOWN : c.output > 0 ? c.output : 0, c.cached};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    span d = decimal(digits, numbers[i]);
    if (n) s[n++] = ' ';
    memcpy(s + n, d.p, d.n);
    n += d.n;
  }
  put_pair(t, SPAN("usage"), (span){s, n});
  return 1;
}

/* put_events puts what was read of a stream, as the Lua reader writes it. */
static size_t put_events(text *t, const reading *r) {
  char s[160], gap[32];
  text all = {0};
  if (!r->of_stream || !r->begun) return 0;
  int n = snprintf(s, sizeof s, "%lld %lld %lld %lld %d %s ", (long long)r->tokens, (long long)r->bytes, (long long)r->first,
                   (long long)r->last, r->marked, r->finish[0] ? r->finish : "-");
  put(&all, s, (size_t)n);
  for (int i = 0; r->gaps && i < CLASSES; i++) {
    if (!r->gaps[i]) continue;
    n = snprintf(gap, sizeof gap, "%d:%u,", i, r->gaps[i]);
    put(&all, gap, (size_t)n);
  }
  if (r->gaps) all.n--; /* the last comma */
  put_pair(t, SPAN("read"), (span){all.p, all.n});
  free(all.p);
  return 1;
}

/* put_reading puts what was read of a response. */
size_t put_reading(text *t, const reading *r) { return put_usage(t, r) + put_events(t, r); }
