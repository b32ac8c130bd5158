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
  const char *answer; /* where the text begins, if it is one */
  bool end;       /* the end marker */
  bool responses; /* it is an event of the Responses API */
  bool is_delta, completed, incomplete, failed; /* of which type */
  char reason[33];
} seen;

/* known is an event that was a part of the answer and told nothing else. Most of a stream's events
 * differ from it in the text alone, which stands between its beginning and its end. */
enum { KNOWN = 512, TRIES = 8 };
typedef struct {
  char beginning[KNOWN], end[KNOWN];
  size_t beginning_n, end_n; /* 0: none is known */
  int tries; /* how many events became the known one since another was like it */
} known;

struct reading {
  bool of_messages, of_stream;    /* what the gateway wants to know */
  bool begun, success, ended;     /* the response has come, with such a status, and to its end */
  bool is_stream, is_json;        /* it is of this type, and not compressed */
  bool broken;                    /* a part of it is no JSON, or tells no usage that can be read */
  bool over;                      /* the last event has come; further ones do not count */
  bool after_cr;                  /* the last byte was one that a line feed may follow */
  bool between;                   /* nothing of the next event has come */
  uint8_t line;                   /* see DATA */
  const char *answer;             /* where it begins in the last event, if that told nothing else */
  json json;
  seen now;
  known known;
  counts usage;
  int64_t tokens, bytes, first, last; /* times in microseconds since 1970 */
  bool marked;
  char finish[33];
  uint32_t *gaps;   /* how many of each class; null: none */
  int least, most;  /* their first class and their last one */
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
  r->between = true;
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
    s->answer = j->begin;
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
  if (gap <= SHORTEST) return 0; /* mostly: events that came together */
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
  int class = class_of(now - r->last);
  if (!r->gaps) {
    r->gaps = allocate(CLASSES * sizeof *r->gaps);
    r->least = r->most = class;
  }
  r->gaps[class]++;
  if (class < r->least) r->least = class;
  if (class > r->most) r->most = class;
  if (now > r->last) r->last = now; /* the clock may be set back */
}

static void finish(reading *r, const char *reason) {
  if (reason[0]) memcpy(r->finish, reason, strlen(reason) + 1);
}

/* is_only_token reports whether an event is a part of the answer and tells nothing else. */
static bool is_only_token(const seen *s) {
  bool answer = s->responses ? s->is_delta && s->delta : s->text;
  bool last = s->end || s->completed || s->incomplete || s->failed || s->reason[0];
  return answer && !last && memcmp(&s->counts, &no_counts, sizeof no_counts) == 0;
}

/* end_of_event counts an event of which all has come. */
static void end_of_event(reading *r, int64_t now) {
  seen *s = &r->now;
  r->answer = NULL;
  r->between = true;
  if (!s->data || json_is_empty(&r->json)) {
    s->data = false;
    return;
  }
  if (!r->over) end_of_json(r);
  if (is_only_token(s)) r->answer = s->answer;
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

/* read_some reads one byte of p at least, and at most to the end of a line. It returns what is
 * left. */
static const char *read_some(reading *r, const char *p, const char *stop, int64_t now) {
  r->between = false;
  if (r->line < DATA) {
    begin_of_line(r, *p++, now);
    return p;
  }
  const char *end = p + before(p, (size_t)(stop - p), '\n', '\r');
  if (r->line == DATA) json_read(&r->json, p, (size_t)(end - p), found, r);
  if (end < stop) end_of_line(r, *end++, now);
  return end;
}

/* learn makes an event the known one, if it was only a token. Its beginning ends where the text of
 * its answer begins, and its end begins there where the text ends. */
static void learn(reading *r, const char *event, const char *stop) {
  known *k = &r->known;
  if (!r->answer || k->tries == TRIES) return;
  k->tries++;
  const char *rest = r->answer + before_end_of_text(r->answer, (size_t)(stop - r->answer));
  bool fits = rest > r->answer && *rest == '"' && r->answer - event <= KNOWN && stop - rest <= KNOWN;
  k->beginning_n = fits ? (size_t)(r->answer - event) : 0;
  k->end_n = fits ? (size_t)(stop - rest) : 0;
  memcpy(k->beginning, event, k->beginning_n);
  memcpy(k->end, rest, k->end_n);
}

/* read_known reads an event that is like the known one, and returns its length. Of another one it
 * reads nothing. */
static size_t read_known(reading *r, const char *p, size_t n, int64_t now) {
  known *k = &r->known;
  if (!k->beginning_n || n < k->beginning_n || memcmp(p, k->beginning, k->beginning_n) != 0) return 0;
  size_t text = before_end_of_text(p + k->beginning_n, n - k->beginning_n), rest = k->beginning_n + text;
  if (text == 0 || n - rest < k->end_n || memcmp(p + rest, k->end, k->end_n) != 0) return 0;
  k->tries = 0;
  token(r, now);
  return rest + k->end_n;
}

static void read_events(reading *r, const char *p, size_t n, int64_t now) {
  const char *stop = p + n, *event = NULL; /* where the event begins, if it begins here */
  while (p < stop) {
    bool rest_of_end = r->after_cr && *p == '\n';
    r->after_cr = false;
    if (rest_of_end) {
      p++;
      continue;
    }
    if (r->between) {
      size_t known = read_known(r, p, (size_t)(stop - p), now);
      event = p += known;
      if (known) continue;
    }
    p = read_some(r, p, stop, now);
    if (!r->between || !event) continue;
    learn(r, event, p);
    event = NULL;
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
  for (int i = r->least; r->gaps && i <= r->most; i++) {
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
