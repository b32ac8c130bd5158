/* An Envoy stood still until the deadline of a request had passed. Its thread runs first, and its worker then carries
 * out what the thread has scheduled, before it reads the answer that waits in an inlet:
 *   stall SOCKET
 * The answer is not lost. */
#include "envoy.h"
#include <assert.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool decided;

static void decide(stream *s) { decided = s; }

static void receive(int gateway, int wanted, char *head, char *payload) {
  uint32_t n;
  do {
    assert(recv(gateway, head, HEAD, MSG_WAITALL) == HEAD);
    memcpy(&n, head, 4);
    assert(n <= 4096 && (n == 0 || recv(gateway, payload, n, MSG_WAITALL) == n));
  } while (head[4] != wanted);
}

static span frame(char *b, int type, uint64_t id, const char *payload, size_t n) {
  write_head(b, type, 0, id, n);
  memcpy(b + HEAD, payload, n);
  return (span){b, HEAD + n};
}

int main(int argc, char **argv) {
  static const char go[] = "\1\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0kv";
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  stream s = {.number = 1};
  int l = socket(AF_UNIX, SOCK_STREAM, 0), inlet[2];
  char nothing[1], head[HEAD], payload[4096], b[100];
  uint64_t id;
  if (argc != 2) return 2;
  strncpy(a.sun_path, argv[1], sizeof a.sun_path - 1);
  if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 4) || socketpair(AF_UNIX, SOCK_STREAM, 0, inlet)) return 2;
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
  receive(gateway, HELLO, head, payload);
  gatepost *g = gatepost_new(inlet_config, inlet[0]);
  assert(gatepost_hear(g, frame(b, JOIN, 0, payload + 20, 8)));
  receive(gateway, HEADERS, head, payload);
  memcpy(&id, head + 8, 8);
  unsigned before = scheduled(&s);
  span wait = frame(b, WAIT, id, (char[]){1, 0, 0, 0}, 4);
  assert(send(gateway, wait.p, wait.n, MSG_NOSIGNAL) == (ssize_t)wait.n);
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
