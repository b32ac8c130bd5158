/* The gateway that programs of this folder play. */
#ifndef SLUICE_GATEWAY_H
#define SLUICE_GATEWAY_H
#include "envoy.h"
#include <assert.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* go is the payload of a Go that sets the header k to v. */
static const char go[] = "\1\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0kv";

/* gateway_listen returns a socket that listens at a path, or -1. */
static inline int gateway_listen(const char *path) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  int l = socket(AF_UNIX, SOCK_STREAM, 0);
  strncpy(a.sun_path, path, sizeof a.sun_path - 1);
  return bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 4) ? -1 : l;
}

/* frame writes a frame into b, which has room for it. */
static inline span frame(char *b, int type, uint64_t id, const char *payload, size_t n) {
  write_head(b, type, 0, id, n);
  memcpy(b + HEAD, payload, n);
  return (span){b, HEAD + n};
}

/* say sends a frame of at most 100 bytes to the filter. */
static inline void say(int gateway, int type, uint64_t id, const char *payload, size_t n) {
  char b[100];
  span s = frame(b, type, id, payload, n);
  assert(send(gateway, s.p, s.n, MSG_NOSIGNAL) == (ssize_t)s.n);
}

/* heard is a frame of the filter. */
typedef struct {
  uint64_t id;
  char payload[4096];
} heard;

/* receive returns the next frame of a type, and skips others. */
static inline heard receive(int gateway, int wanted) {
  heard f;
  char head[HEAD];
  uint32_t n;
  do {
    assert(recv(gateway, head, HEAD, MSG_WAITALL) == HEAD);
    memcpy(&n, head, 4);
    assert(n <= sizeof f.payload && (n == 0 || recv(gateway, f.payload, n, MSG_WAITALL) == n));
  } while (head[4] != wanted);
  memcpy(&f.id, head + 8, 8);
  return f;
}
#endif
