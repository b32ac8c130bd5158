/* Reads configurations, whose memory ends where they end, and looks for headers in them. */
#include "envoy.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static char nothing[1];

/* accepted reports whether the filter takes a configuration. */
static bool accepted(span config) {
  span exact = copy(config.p, config.n);
  void *g = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), exact);
  free((void *)exact.p);
  if (g) envoy_dynamic_module_on_http_filter_config_destroy(g);
  return g != NULL;
}

/* is_accepted is accepted for a text that a program prints. It has n names of a length in one
 * list. */
static bool is_accepted(size_t n, size_t length) {
  char text[16384] = "/s\nresponse";
  size_t at = strlen(text);
  for (size_t i = 0; i < n; i++) {
    text[at++] = ' ';
    memset(text + at, 'a', length);
    at += length;
  }
  return accepted((span){text, at});
}

static void read_configurations(void) {
  assert(accepted(SPAN("/s")));
  assert(accepted(SPAN("/s\nunread cookie")));
  assert(accepted(SPAN("/s\nunread a bb ccc\nresponse server")));
  static const span bad[] = {{"", 0}, {"s", 1}, {"\n/s", 3}, {"/s\0", 3}, {"/s\nunread", 9}, {"/s\nunread ", 10}, {"/s\nunread a ", 12}, {"/s\nunread a  b", 14},
                             {"/s\nother a", 10}, {"/s\n\nunread a", 12}, {"/s\nunr", 6}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert(!accepted(bad[i]));
  assert(is_accepted(HEADERS_MAX, HEADER_LONGEST) && !is_accepted(HEADERS_MAX + 1, 1) && !is_accepted(1, HEADER_LONGEST + 1));
}

static void find_headers(void) {
  header_list l;
  span words = copy("server nel alt-svc set-cookie x", 31);
  assert(headers_read(&l, words));
  header_set all = 0;
  static const span in[] = {{"x", 1}, {"nel", 3}, {"server", 6}, {"alt-svc", 7}, {"set-cookie", 10}};
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
    header_set one = headers_find(&l, in[i]);
    assert(one && (one & (one - 1)) == 0 && (all & one) == 0);
    all |= one;
  }
  static const span out[] = {{"", 0}, {"y", 1}, {"Nel", 3}, {"serve", 5}, {"servers", 7}, {"alt-svx", 7}};
  for (size_t i = 0; i < sizeof out / sizeof *out; i++) assert(!headers_find(&l, out[i]));
  char longest[HEADER_LONGEST + 1];
  memset(longest, 'a', sizeof longest);
  assert(!headers_find(&l, (span){longest, HEADER_LONGEST}) && !headers_find(&l, (span){longest, HEADER_LONGEST + 1}));
  free((void *)words.p);
}

int main(void) {
  read_configurations();
  find_headers();
  return 0;
}
