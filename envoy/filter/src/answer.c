/* Answers of the gateway. Each is read whole before it is used, so a malformed one ends the
 * connection and has no effect. */
#include "filter.h"
#include <string.h>

typedef struct {
  const unsigned char *p;
  size_t n;
  bool bad;
} reader;

static span take(reader *r, size_t n) {
  if (n > r->n) r->bad = true;
  if (r->bad) return (span){"", 0};
  span s = {(const char *)r->p, n};
  r->p += n;
  r->n -= n;
  return s;
}

/* u16 and u32 read little-endian numbers. Compilers make one instruction of the four bytes. */
static uint16_t u16(reader *r) {
  span s = take(r, 2);
  const unsigned char *b = (const unsigned char *)s.p;
  return s.n ? (uint16_t)(b[0] | b[1] << 8) : 0;
}

static uint32_t u32(reader *r) {
  span s = take(r, 4);
  const unsigned char *b = (const unsigned char *)s.p;
  return s.n ? b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24 : 0;
}

static void reserved(reader *r) {
  if (u16(r) != 0) r->bad = true;
}

static reader reader_of(span s) { return (reader){(const unsigned char *)s.p, s.n, false}; }

static pair read_pair(reader *r) {
  size_t name = u16(r);
  reserved(r);
  size_t value = u32(r);
  span k = take(r, name), v = take(r, value);
  return (pair){k.p, k.n, v.p, v.n};
}

static span read_name(reader *r) { return take(r, u16(r)); }

/* is_name reports whether a header may have this name. Pseudo headers begin with a colon. */
static bool is_name(span s) {
  if (s.n == 0 || (s.n == 1 && s.p[0] == ':')) return false;
  bool bad = false;
  for (size_t i = 0; i < s.n; i++) {
    unsigned c = (unsigned char)s.p[i];
    bad |= (c - '!' >= 0x7f - '!') | (c - 'A' < 26);
  }
  return !bad && !memchr(s.p + 1, ':', s.n - 1);
}

static bool is_value(span s) {
  bool bad = false;
  for (size_t i = 0; i < s.n; i++) bad |= (s.p[i] == 0) | (s.p[i] == '\r') | (s.p[i] == '\n');
  return !bad;
}

/* headers skips n headers and checks them. */
static span headers(reader *r, uint16_t n) {
  span all = {(const char *)r->p, r->n};
  for (; n > 0 && !r->bad; n--) {
    pair h = read_pair(r);
    if (!is_name((span){h.key, h.key_n}) || !is_value((span){h.value, h.value_n})) r->bad = true;
  }
  all.n -= r->n;
  return all;
}

static span removed(reader *r, uint16_t n) {
  span all = {(const char *)r->p, r->n};
  for (; n > 0 && !r->bad; n--) {
    span name = read_name(r);
    if (!is_name(name) || name.p[0] == ':') r->bad = true;
  }
  all.n -= r->n;
  return all;
}

static span values(reader *r, uint16_t n) {
  span all = {(const char *)r->p, r->n};
  while (n-- > 0 && !r->bad) read_pair(r);
  all.n -= r->n;
  return all;
}

bool read_go(span payload, int flags, go_answer *out) {
  reader r = reader_of(payload);
  out->set_n = u16(&r);
  out->remove_n = u16(&r);
  out->metadata_n = u16(&r);
  reserved(&r);
  out->set = headers(&r, out->set_n);
  out->remove = removed(&r, out->remove_n);
  out->metadata = values(&r, out->metadata_n);
  out->body = (span){(const char *)r.p, r.n};
  return !r.bad && (flags & ~(FLAG_BODY_REPLACED | FLAG_NAMELESS)) == 0 && (flags & FLAG_BODY_REPLACED || r.n == 0);
}

bool read_reply(span payload, reply_answer *out) {
  reader r = reader_of(payload);
  out->status = u16(&r);
  out->headers_n = u16(&r);
  size_t details = u16(&r);
  reserved(&r);
  out->headers = headers(&r, out->headers_n);
  out->details = take(&r, details);
  out->body = (span){(const char *)r.p, r.n};
  return !r.bad && out->status >= 200 && out->status < 600 && is_value(out->details);
}

bool read_u32(span payload, uint32_t *out) {
  reader r = reader_of(payload);
  *out = u32(&r);
  return !r.bad;
}

/* next_pair takes a pair from what read_go or read_reply has checked. */
pair next_pair(span *rest) {
  reader r = reader_of(*rest);
  pair h = read_pair(&r);
  *rest = (span){(const char *)r.p, r.n};
  return h;
}

/* is_for_response reports whether a value is a header of the response. The others are for the
 * gateway itself. */
bool is_for_response(pair value) {
  span name = {value.key, value.key_n};
  return begins(name, SPAN("x-")) || equal(name, SPAN("request-id"));
}

span next_name(span *rest) {
  reader r = reader_of(*rest);
  span name = read_name(&r);
  *rest = (span){(const char *)r.p, r.n};
  return name;
}
