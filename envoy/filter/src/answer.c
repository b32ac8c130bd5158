/* Answers of the gateway. Each is read whole before it is used, so a malformed one ends the connection and
 * has no effect. */
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

static uint64_t number(reader *r, size_t bytes) {
  span s = take(r, bytes);
  uint64_t v = 0;
  for (size_t i = 0; i < s.n; i++) v |= (uint64_t)(unsigned char)s.p[i] << (8 * i);
  return v;
}

static void reserved(reader *r) {
  if (number(r, 2) != 0) r->bad = true;
}

static reader reader_of(span s) { return (reader){(const unsigned char *)s.p, s.n, false}; }

static pair read_pair(reader *r) {
  size_t name = number(r, 2);
  reserved(r);
  size_t value = number(r, 4);
  span k = take(r, name), v = take(r, value);
  return (pair){k.p, k.n, v.p, v.n};
}

static span read_name(reader *r) { return take(r, number(r, 2)); }

/* is_name reports whether a header may have this name. Pseudo headers begin with a colon. */
static bool is_name(span s) {
  if (s.n == 0 || (s.n == 1 && s.p[0] == ':')) return false;
  for (size_t i = 0; i < s.n; i++) {
    unsigned char c = (unsigned char)s.p[i];
    if (c <= ' ' || c >= 0x7f || (c >= 'A' && c <= 'Z') || (c == ':' && i > 0)) return false;
  }
  return true;
}

static bool is_value(span s) {
  return !memchr(s.p, 0, s.n) && !memchr(s.p, '\r', s.n) && !memchr(s.p, '\n', s.n);
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
  out->set_n = (uint16_t)number(&r, 2);
  out->remove_n = (uint16_t)number(&r, 2);
  out->metadata_n = (uint16_t)number(&r, 2);
  reserved(&r);
  out->set = headers(&r, out->set_n);
  out->remove = removed(&r, out->remove_n);
  out->metadata = values(&r, out->metadata_n);
  out->body = (span){(const char *)r.p, r.n};
  return !r.bad && (flags & ~FLAG_BODY_REPLACED) == 0 && (flags || r.n == 0);
}

bool read_reply(span payload, reply_answer *out) {
  reader r = reader_of(payload);
  out->status = (uint16_t)number(&r, 2);
  out->headers_n = (uint16_t)number(&r, 2);
  size_t details = number(&r, 2);
  reserved(&r);
  out->headers = headers(&r, out->headers_n);
  out->details = take(&r, details);
  out->body = (span){(const char *)r.p, r.n};
  return !r.bad && out->status >= 200 && out->status < 600 && is_value(out->details);
}

bool read_u32(span payload, uint32_t *out) {
  reader r = reader_of(payload);
  *out = (uint32_t)number(&r, 4);
  return !r.bad;
}

/* next_pair takes a pair from what read_go or read_reply has checked. */
pair next_pair(span *rest) {
  reader r = reader_of(*rest);
  pair h = read_pair(&r);
  *rest = (span){(const char *)r.p, r.n};
  return h;
}

/* is_for_response reports whether a value is a header of the response. The others are for the gateway itself. */
bool is_for_response(pair value) { return value.key_n > 2 && value.key[0] == 'x' && value.key[1] == '-'; }

span next_name(span *rest) {
  reader r = reader_of(*rest);
  span name = read_name(&r);
  *rest = (span){(const char *)r.p, r.n};
  return name;
}
