/* A JSON text that comes in parts. Nothing of it is kept but the path to where it is read, and the
 * beginning of the string or the word that is read. It takes what every reader takes, and some
 * more: numbers and the escapes of strings are not checked. */
#include "filter.h"
#include <string.h>

/* What may come next. */
enum { VALUE, VALUE_OR_END, NAME_OR_END, NAME, COLON, COMMA_OR_END, STRING, ESCAPE, WORD, NOTHING };

static const struct {
  const char *p;
  size_t n;
} names[NAMES] = {
#define OF(s) {s, sizeof(s) - 1}
    [NAME_CONTENT] = OF("content"),
    [NAME_TEXT] = OF("text"),
    [NAME_DELTA] = OF("delta"),
    [NAME_ARGUMENTS] = OF("arguments"),
    [NAME_REASONING_CONTENT] = OF("reasoning_content"),
    [NAME_REASONING] = OF("reasoning"),
    [NAME_REFUSAL] = OF("refusal"),
    [NAME_THINKING] = OF("thinking"),
    [NAME_PARTIAL_JSON] = OF("partial_json"),
    [NAME_FINISH_REASON] = OF("finish_reason"),
    [NAME_STOP_REASON] = OF("stop_reason"),
    [NAME_TOOL_CALLS] = OF("tool_calls"),
    [NAME_TYPE] = OF("type"),
    [NAME_USAGE] = OF("usage"),
    [NAME_RESPONSE] = OF("response"),
    [NAME_MESSAGE] = OF("message"),
    [NAME_PROMPT_TOKENS] = OF("prompt_tokens"),
    [NAME_INPUT_TOKENS] = OF("input_tokens"),
    [NAME_COMPLETION_TOKENS] = OF("completion_tokens"),
    [NAME_OUTPUT_TOKENS] = OF("output_tokens"),
    [NAME_PROMPT_DETAILS] = OF("prompt_tokens_details"),
    [NAME_INPUT_DETAILS] = OF("input_tokens_details"),
    [NAME_CACHED_TOKENS] = OF("cached_tokens"),
    [NAME_CACHE_READ] = OF("cache_read_input_tokens"),
    [NAME_CACHE_CREATION] = OF("cache_creation_input_tokens"),
    [NAME_TOTAL_TOKENS] = OF("total_tokens"),
#undef OF
};

/* by_length has the first name of each length, and next the name of the same length that follows. 0
 * is none. */
enum { NAME_LONGEST = sizeof("cache_creation_input_tokens") - 1 };
static uint8_t by_length[NAME_LONGEST + 1], next[NAMES];

/* json_init must be called before anything is read. A second call does nothing. */
void json_init(void) {
  if (by_length[NAME_LONGEST]) return;
  for (uint8_t i = NAMES - 1; i > NAME_OTHER; i--) {
    next[i] = by_length[names[i].n];
    by_length[names[i].n] = i;
  }
}

void json_begin(json *j) {
  j->depth = 0;
  j->names[0] = NAME_OTHER;
  j->state = VALUE;
  j->bad = false;
}

/* json_is_empty reports whether nothing has come but blanks. */
bool json_is_empty(const json *j) { return !j->bad && j->state == VALUE && j->depth == 0; }

bool json_is_whole(const json *j) { return !j->bad && j->state == NOTHING; }

/* is_text reports whether the string or word that was read is this one. */
static bool is_text(const json *j, const char *s, size_t n) { return j->length == n && memcmp(j->text, s, n) == 0; }

static uint8_t name_of(const json *j) {
  if (j->length > NAME_LONGEST) return NAME_OTHER;
  for (uint8_t i = by_length[j->length]; i; i = next[i])
    if (memcmp(j->text, names[i].p, names[i].n) == 0) return i;
  return NAME_OTHER;
}

/* is_kept reports whether the beginning of a string is kept: that of a name, and that of a member
 * whose text is compared. Of others the length alone matters. */
static bool is_kept(const json *j) {
  uint8_t of = j->names[j->depth];
  return j->is_name || of == NAME_TYPE || of == NAME_FINISH_REASON || of == NAME_STOP_REASON;
}

static void keep(json *j, const char *p, size_t n) {
  size_t room = j->length < sizeof j->text ? sizeof j->text - j->length : 0;
  if (room) memcpy(j->text + j->length, p, n < room ? n : room);
  j->length += n;
}

static void after_value(json *j) { j->state = j->depth ? COMMA_OR_END : NOTHING; }

/* begin_text begins a string or a word. before is the state that it ends. */
static void begin_text(json *j, int state, int before) {
  j->is_name = before == NAME || before == NAME_OR_END;
  j->state = (uint8_t)state;
  j->length = 0;
}

static void open_container(json *j, bool array, json_found *found, void *of) {
  if (++j->depth == DEPTHS) {
    j->bad = true;
    return;
  }
  if (!array) found(of, j, JSON_OBJECT);
  j->names[j->depth] = array ? IN_ARRAY : NAME_OTHER;
  j->state = array ? VALUE_OR_END : NAME_OR_END;
}

static void close_container(json *j, bool array) {
  if (j->depth == 0 || (j->names[j->depth] == IN_ARRAY) != array) {
    j->bad = true;
    return;
  }
  j->depth--;
  after_value(j);
}

/* end_word ends a word. [DONE] is how streams end, and the only other word. */
static void end_word(json *j, json_found *found, void *of) {
  bool number = j->text[0] == '-' || (j->text[0] >= '0' && j->text[0] <= '9');
  bool done = j->depth == 1 && j->names[1] == IN_ARRAY && is_text(j, "DONE", 4);
  if (!number && !done && !is_text(j, "null", 4) && !is_text(j, "true", 4) && !is_text(j, "false", 5)) {
    j->bad = true;
    return;
  }
  after_value(j);
  found(of, j, number ? JSON_NUMBER : done ? JSON_DONE : JSON_OTHER);
}

static void end_string(json *j, json_found *found, void *of) {
  if (j->is_name) {
    j->names[j->depth] = name_of(j);
    j->state = COLON;
    return;
  }
  after_value(j);
  found(of, j, JSON_STRING);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "see before");

static const uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;

/* equal_to marks the bytes of w that are c, by their highest bits. Marks above the first one may be
 * wrong. */
static inline uint64_t equal_to(uint64_t w, char c) {
  uint64_t other = w ^ ones * (unsigned char)c;
  return (other - ones) & ~other & highs;
}

/* before returns how many bytes come before the first a or b, which are ASCII. It looks at eight at
 * a time, the first of which is the least of a number (little-endian). */
size_t before(const char *p, size_t n, char a, char b) {
  size_t i = 0;
  for (uint64_t w; i + 8 <= n; i += 8) {
    memcpy(&w, p + i, 8);
    uint64_t found = equal_to(w, a) | equal_to(w, b);
    if (found) return i + (size_t)__builtin_ctzll(found) / 8;
  }
  while (i < n && p[i] != a && p[i] != b) i++;
  return i;
}

/* before_end_of_text returns how many bytes come before the end of a string, an escape, or a byte
 * that no string may have. It is as before is. */
size_t before_end_of_text(const char *p, size_t n) {
  size_t i = 0;
  for (uint64_t w; i + 8 <= n; i += 8) {
    memcpy(&w, p + i, 8);
    uint64_t found = equal_to(w, '"') | equal_to(w, '\\') | ((w - ones * ' ') & ~w & highs);
    if (found) return i + (size_t)__builtin_ctzll(found) / 8;
  }
  while (i < n && p[i] != '"' && p[i] != '\\' && (unsigned char)p[i] >= ' ') i++;
  return i;
}

static bool ends_word(char c) {
  switch (c) {
  case ',': case ']': case '}': case ':': case '"': case '[': case '{': case ' ': case '\t': case '\n': case '\r': return true;
  }
  return false;
}

/* structure handles a byte between strings and words. */
static void structure(json *j, char c, json_found *found, void *of) {
  int s = j->state;
  bool value = s == VALUE || s == VALUE_OR_END;
  switch (c) {
  case ' ': case '\t': case '\n': case '\r': return;
  case '"':
    if (value || s == NAME || s == NAME_OR_END) begin_text(j, STRING, s);
    else j->bad = true;
    return;
  case '{': case '[':
    if (value) open_container(j, c == '[', found, of);
    else j->bad = true;
    return;
  case '}': case ']':
    if (s == COMMA_OR_END || s == (c == ']' ? VALUE_OR_END : NAME_OR_END)) close_container(j, c == ']');
    else j->bad = true;
    return;
  case ',':
    if (s == COMMA_OR_END) j->state = j->names[j->depth] == IN_ARRAY ? VALUE : NAME;
    else j->bad = true;
    return;
  case ':':
    if (s == COLON) j->state = VALUE;
    else j->bad = true;
    return;
  }
  if (!value) {
    j->bad = true;
    return;
  }
  begin_text(j, WORD, s);
  keep(j, &c, 1);
}

/* json_read reads the next part of a text, and calls found for each value. After a fault it reads
 * nothing. */
void json_read(json *j, const char *p, size_t n, json_found *found, void *of) {
  for (const char *stop = p + n; p < stop && !j->bad;) {
    size_t some;
    switch (j->state) {
    case STRING:
      some = before(p, (size_t)(stop - p), '"', '\\');
      if (is_kept(j)) keep(j, p, some);
      else j->length += some;
      p += some;
      if (p == stop) return;
      if (*p++ == '"') end_string(j, found, of);
      else j->state = ESCAPE;
      break;
    case ESCAPE:
      keep(j, "\\", 1); /* so that it is equal to no name */
      j->state = STRING;
      p++;
      break;
    case WORD:
      for (some = 0; p + some < stop && !ends_word(p[some]);) some++;
      keep(j, p, some);
      p += some;
      if (p < stop) end_word(j, found, of);
      break;
    default:
      structure(j, *p++, found, of);
      j->begin = p;
    }
  }
}

/* json_end tells that the text has no more parts. */
void json_end(json *j, json_found *found, void *of) {
  if (j->state == WORD && !j->bad) end_word(j, found, of);
}
