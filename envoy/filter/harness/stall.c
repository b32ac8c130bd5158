/* An Envoy stood still until the deadline of a request had passed. Its thread runs first. Its
 * worker then carries out what the thread has scheduled, before it reads the answer that waits in
 * an inlet:
 *   stall SOCKET
 * The answer is not lost. */
#include "gateway.h"

static bool decided;

static void decide(stream *s) { decided = s; }

int main(int argc, char **argv) {
  stream s = {.number = 1};
  int l = argc == 2 ? gateway_listen(argv[1]) : -1, inlet[2];
  char nothing[1], b[100];
  if (l < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, inlet)) return 2;
  seed_of_worker = 1;
  on_set_header = decide;
  assert(envoy_dynamic_module_on_program_init());
  span path = {argv[1], strlen(argv[1])};
  void *config = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), path);
  void *inlet_config = envoy_dynamic_module_on_network_filter_config_new(nothing, SPAN("a"), path);
  s.filter = envoy_dynamic_module_on_http_filter_new(config, &s);
  s.stopped = envoy_dynamic_module_on_http_filter_request_headers(&s, s.filter, true) == HEADERS_STOP;
  assert(s.stopped);
  run_events();
  int gateway = accept(l, NULL, NULL);
  heard hello = receive(gateway, HELLO);
  gatepost *g = gatepost_new(inlet_config, inlet[0]);
  assert(gatepost_hear(g, frame(b, JOIN, 0, hello.payload + 20, 8)));
  uint64_t id = receive(gateway, HEADERS).id;
  unsigned before = scheduled(&s);
  say(gateway, WAIT, id, (char[]){1, 0, 0, 0}, 4);
  while (scheduled(&s) == before) usleep(100);
  run_events();
  assert(gatepost_hear(g, frame(b, GO, id, go, sizeof go - 1)));
  run_events();
  assert(decided);
  if (s.filter) end(&s);
  run_events();
  gatepost_end(g);
  envoy_dynamic_module_on_http_filter_config_destroy(config);
  envoy_dynamic_module_on_network_filter_config_destroy(inlet_config);
  close(gateway);
  close(inlet[1]);
  close(l);
  return 0;
}
