/* The gateway cancels a request at a moment at which the worker carries out its Go:
 *   cancel SOCKET
 * Nobody may lose such a cancel. */
#include "envoy.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int gateway = -1;
static uint64_t ids[2];

static void say(int type, uint64_t id, const char *payload, size_t n) {
  char b[100];
  write_head(b, type, 0, id, n);
  memcpy(b + HEAD, payload, n);
  assert(send(gateway, b, HEAD + n, MSG_NOSIGNAL) == (ssize_t)(HEAD + n));
}

static const char go[] = "\1\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0kv", reply[] = "\231\1\0\0\0\0\0\0";

/* cancel is called while the worker carries out the Go of the first request. Both replies are for the filter's
 * thread, which reads them in their order. So it has read the first one when it has scheduled the second. */
static void cancel(stream *s) {
  stream *other = s + 1;
  unsigned before = scheduled(other);
  on_set_header = NULL;
  say(REPLY, ids[0], reply, 8);
  say(REPLY, ids[1], reply, 8);
  while (scheduled(other) == before) usleep(100);
}

static void receive(int wanted, uint64_t *id) {
  char head[HEAD], payload[4096];
  uint32_t n;
  do {
    assert(recv(gateway, head, HEAD, MSG_WAITALL) == HEAD);
    memcpy(&n, head, 4);
    assert(n <= sizeof payload && (n == 0 || recv(gateway, payload, n, MSG_WAITALL) == n));
  } while (head[4] != wanted);
  memcpy(id, head + 8, 8);
}

int main(int argc, char **argv) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  stream s[2] = {{.number = 1}, {.number = 2}};
  int l = socket(AF_UNIX, SOCK_STREAM, 0);
  uint64_t none;
  char nothing[1];
  if (argc != 2) return 2;
  strncpy(a.sun_path, argv[1], sizeof a.sun_path - 1);
  if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 4)) return 2;
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
  receive(HELLO, &none);
  say(WELCOME, 0, (char[]){PROTOCOL_VERSION, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, 12);
  for (int i = 0; i < 2; i++) receive(HEADERS, &ids[i]);
  on_set_header = cancel;
  say(GO, ids[0], go, sizeof go - 1);
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
