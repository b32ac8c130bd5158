/* What the filter tells of a request: its headers, the record of its end, and what a gateway that
 * begins later needs to know of it. */
#include "filter.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* list_begin leaves room for the number of pairs, which list_end writes. */
static size_t list_begin(text *t) {
  put_u32(t, 0);
  return t->n - 4;
}

static void list_end(text *t, size_t at, size_t n) {
  t->p[at] = (char)n;
  t->p[at + 1] = (char)(n >> 8);
}

/* put_headers puts the list of the request's headers. It removes those that the gateway does not
 * read. */
void put_headers(text *t, const request *r) {
  const gate *g = r->gate;
  size_t n = CALL(http_get_headers_size)(r->envoy, REQUEST_HEADERS), told = 0;
  pair few[64], *all = n <= 64 ? few : allocate(n * sizeof *all);
  size_t at = list_begin(t);
  header_set unread = 0;
  if (n == 0 || n > UINT16_MAX || !CALL(http_get_headers)(r->envoy, REQUEST_HEADERS, all)) n = 0;
  for (size_t i = 0; i < n; i++) {
    span name = {all[i].key, all[i].key_n};
    header_set here = headers_find(&g->unread, name);
    unread |= here;
    if (here) continue;
    put_pair(t, name, (span){all[i].value, all[i].value_n});
    told++;
  }
  list_end(t, at, told);
  if (all != few) free(all);
  headers_remove(&g->unread, unread, r->envoy, REQUEST_HEADERS);
}

/* Response flags of Envoy by their bits, in the order in which its documentation lists them. */
static const struct {
  int bit;
  const char *name;
} flags[] = {
    {1, "UH"},  {5, "UF"},    {7, "UO"},    {8, "NR"},    {15, "URX"}, {24, "NC"}, {22, "DT"}, {14, "DC"},
    {0, "LH"},  {2, "UT"},    {3, "LR"},    {4, "UR"},    {6, "UC"},   {9, "DI"},  {10, "FI"}, {11, "RL"},
    {12, "UAEX"}, {13, "RLSE"}, {17, "IH"}, {16, "SI"},   {18, "DPE"}, {23, "UPE"}, {19, "UMSDR"}, {20, "RFCF"},
    {21, "NFCF"}, {25, "OM"}, {26, "DF"},   {27, "DO"},   {28, "DR"},  {29, "UDO"},
};

static size_t put_flags(text *t, void *envoy) {
  uint64_t set = 0;
  char s[256];
  size_t n = 0;
  CALL(http_filter_get_attribute_int)(envoy, ATTRIBUTE_FLAGS, &set);
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    if (!(set >> flags[i].bit & 1)) continue;
    if (n) s[n++] = ',';
    size_t k = strlen(flags[i].name);
    memcpy(s + n, flags[i].name, k);
    n += k;
  }
  if (n) put_pair(t, SPAN("flags"), (span){s, n});
  return n > 0;
}

static size_t put_attribute(text *t, void *envoy, span name, int attribute) {
  span v;
  if (!CALL(http_filter_get_attribute_string)(envoy, attribute, &v) || v.n == 0) return 0;
  put_pair(t, name, v);
  return 1;
}

/* LONGEST_TOLD is how many bytes of a header a record has at most. A client chooses how long its
 * headers are. */
enum { LONGEST_TOLD = 1 << 10 };

/* put_header puts the first value of a header, under name. */
static size_t put_header(text *t, void *envoy, span name, span header) {
  span v;
  if (!CALL(http_get_header)(envoy, REQUEST_HEADERS, header, &v, 0, NULL)) return 0;
  if (v.n > LONGEST_TOLD) v.n = LONGEST_TOLD;
  put_pair(t, name, v);
  return 1;
}

static size_t put_path(text *t, void *envoy) {
  span path = SPAN("path");
  return put_header(t, envoy, path, SPAN("x-envoy-original-path")) || put_header(t, envoy, path, SPAN(":path"));
}

/* replica_of says which replica has the request, if its endpoint names one. */
bool replica_of(void *envoy, span *out) {
  return CALL(http_get_metadata_string)(envoy, METADATA_HOST, SPAN("sluice"), SPAN("replica"), out);
}

static size_t put_replica(text *t, void *envoy) {
  span v;
  if (!replica_of(envoy, &v) || v.n == 0) return 0;
  put_pair(t, SPAN("replica"), v);
  return 1;
}

/* put_values puts what the gateway has given the request, but for headers of the response. */
static size_t put_values(text *t, const request *r) {
  span rest = r->values;
  size_t done = 0;
  for (uint16_t i = 0; i < r->values_n; i++) {
    pair v = next_pair(&rest);
    char name[256] = "@";
    if (v.key_n >= sizeof name || is_for_response(v)) continue;
    memcpy(name + 1, v.key, v.key_n);
    put_pair(t, (span){name, v.key_n + 1}, (span){v.value, v.value_n});
    done++;
  }
  return done;
}

static void put_integer(text *t, void *envoy, int attribute) {
  uint64_t v;
  put_u64(t, CALL(http_filter_get_attribute_int)(envoy, attribute, &v) ? v : (uint64_t)-1);
}

/* put_time puts a time in microseconds. */
static void put_time(text *t, int64_t ns) { put_u64(t, (uint64_t)(ns < 0 ? -1 : ns / 1000)); }

/* put_place puts where Envoy has sent a request. The headers that say so are gone by then: the
 * routes remove them. */
static size_t put_place(text *t, void *envoy) {
  return put_attribute(t, envoy, SPAN("route"), ATTRIBUTE_ROUTE) + put_attribute(t, envoy, SPAN("upstream"), ATTRIBUTE_UPSTREAM) +
         put_attribute(t, envoy, SPAN("cluster"), ATTRIBUTE_CLUSTER) + put_replica(t, envoy);
}

/* put_record puts the record of a request that has ended. Its values are final in the hook
 * stream_complete. */
void put_record(text *t, const request *r) {
  void *envoy = r->envoy;
  times at;
  CALL(http_get_timing_info)(envoy, &at);
  put_integer(t, envoy, ATTRIBUTE_STATUS);
  put_integer(t, envoy, ATTRIBUTE_REQUEST_BYTES);
  put_integer(t, envoy, ATTRIBUTE_RESPONSE_BYTES);
  put_integer(t, envoy, ATTRIBUTE_ATTEMPTS);
  put_time(t, at.duration);
  put_time(t, at.first_body_byte_from_upstream);
  put_time(t, at.last_byte_from_upstream);
  put_time(t, at.first_byte_to_upstream);
  put_time(t, at.start_unix);
  size_t list = list_begin(t), n = 0;
  n += put_header(t, envoy, SPAN("method"), SPAN(":method"));
  n += put_path(t, envoy);
  n += put_header(t, envoy, SPAN("id"), SPAN("x-request-id"));
  n += put_attribute(t, envoy, SPAN("details"), ATTRIBUTE_DETAILS);
  n += put_flags(t, envoy);
  n += put_place(t, envoy);
  if (r->reading) n += put_reading(t, r->reading);
  if (r->unframed) put_pair(t, SPAN("unframed"), SPAN("1")), n++;
  n += put_values(t, r);
  list_end(t, list, n);
}

/* put_live puts what a gateway that begins after the decision needs to know of a request. */
void put_live(text *t, const request *r) {
  void *envoy = r->envoy;
  struct timespec now;
  times at;
  CALL(http_get_timing_info)(envoy, &at);
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t age = (now.tv_sec * 1000000000LL + now.tv_nsec - at.start_unix) / 1000;
  put_u64(t, (uint64_t)(age > 0 ? age : 0));
  size_t list = list_begin(t), n = 0;
  n += put_header(t, envoy, SPAN("id"), SPAN("x-request-id"));
  n += put_place(t, envoy);
  n += put_values(t, r);
  list_end(t, list, n);
}
