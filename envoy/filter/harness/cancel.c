/* The gateway cancels a request at a moment at which the worker carries out its Go:
 *   cancel SOCKET
 * Nobody may lose such a cancel. */
#include "gateway.h"
#include <stdio.h>

static int gateway = -1;
static uint64_t ids[2];

static const char reply[] = "\231\1\0\0\0\0\0\0";

/* cancel is called while the worker carries out the Go of the first request. Both replies are for
 * the filter's thread, which reads them in their order. So it has read the first one when it has
 * scheduled the second. */
static void cancel(stream *s) {
  stream *other = s + 1;
  unsigned before = scheduled(other);
  on_set_header = NULL;
  say(gateway, REPLY, ids[0], reply, 8);
  say(gateway, REPLY, ids[1], reply, 8);
  while (scheduled(other) == before) usleep(100);
}

int main(int argc, char **argv) {
  stream s[2] = {{.number = 1}, {.number = 2}};
  int l = argc == 2 ? gateway_listen(argv[1]) : -1;
  char nothing[1];
  if (l < 0) return 2;
  seed_of_worker = 1;
  assert(envoy_dynamic_module_on_program_init());
  void *config = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), (span){argv[1], strlen(argv[1])});
  for (int i = 0; i < 2; i++) {
    s[i].filter = envoy_dynamic_module_on_http_filter_new(config, &s[i]);
    s[i].stopped = envoy_dynamic_module_on_http_filter_request_headers(&s[i], s[i].filter, true) == HEADERS_STOP;
    assert(s[i].stopped);
  }
  run_events();
  gateway = accept(l, NULL, NULL);
  receive(gateway, HELLO);
  say(gateway, WELCOME, 0, (char[]){PROTOCOL_VERSION, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, 12);
  for (int i = 0; i < 2; i++) ids[i] = receive(gateway, HEADERS).id;
  on_set_header = cancel;
  say(gateway, GO, ids[0], go, sizeof go - 1);
  while (!s[1].answered) run_events();
  printf("the cancelled request: %s\n", s[0].answered ? "answered" : "goes on");
  assert(s[0].answered || s[0].ended);
  for (int i = 0; i < 2; i++)
    if (s[i].filter) end(&s[i]);
  run_events();
  envoy_dynamic_module_on_http_filter_config_destroy(config);
  close(gateway);
  close(l);
  return 0;
}
