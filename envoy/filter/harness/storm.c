/* A storm of requests on the filter, for runs under sanitizers. It is in a stand-in for Envoy and
 * with a gateway that says anything:
 *   storm SOCKET REQUESTS SEED
 * The main thread is Envoy's worker. It begins requests, goes on with them and ends them in random
 * order. Another thread is the gateway. It answers well, wrongly, late or not at all. At the end
 * nothing may be left. */
#include "envoy.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 64, GATEPOSTS = 32 };

static stream streams[MOST];
static uint64_t numbers, undecided_n;
static bool over;
static unsigned seed_of_peer;
static struct sockaddr_un inlets = {.sun_family = AF_UNIX}; /* where the gateway answers */
static gatepost *gateposts[GATEPOSTS];
static unsigned long answered_directly;

static void add_chunk(stream *s) {
  static char content[200000];
  size_t n = pick(&seed_of_worker, 4) ? pick(&seed_of_worker, 9000) : pick(&seed_of_worker, sizeof content);
  memset(content, 'b', n);
  s->chunks[s->chunks_n++] = copy(content, n);
}

static void begin(stream *s, void *config) {
  *s = (stream){.number = ++numbers};
  s->filter = envoy_dynamic_module_on_http_filter_new(config, s);
  if (pick(&seed_of_worker, 30) == 0) return; /* another filter answers it */
  bool last = pick(&seed_of_worker, 3) == 0;
  s->stopped = envoy_dynamic_module_on_http_filter_request_headers(s, s->filter, last) == HEADERS_STOP;
  s->continued = !s->stopped;
  s->stage = last ? 2 : 1;
  if (!s->stopped) undecided_n++;
}

static void body(stream *s) {
  bool last = pick(&seed_of_worker, 3) == 0 || s->chunks_n > CHUNKS - 4;
  add_chunk(s);
  if (last && pick(&seed_of_worker, 5) == 0) {
    envoy_dynamic_module_on_http_filter_request_body(s, s->filter, false);
    envoy_dynamic_module_on_http_filter_request_trailers(s, s->filter);
  } else {
    envoy_dynamic_module_on_http_filter_request_body(s, s->filter, last);
  }
  if (last) s->stage = 2;
}

/* go_on does the next thing that happens to a stream. */
static void go_on(stream *s, void *config) {
  if (!s->filter) begin(s, config);
  else if (pick(&seed_of_worker, 12) == 0) end(s);
  else if (s->stage == 1) body(s);
  else if (s->stage == 2 && s->continued) {
    s->stage = 3;
    envoy_dynamic_module_on_http_filter_response_headers(s, s->filter, false);
  } else if (s->stage == 3 && pick(&seed_of_worker, 4) == 0) {
    end(s);
  } else if (s->stage == 3) {
    envoy_dynamic_module_on_http_filter_response_body(s, s->filter, pick(&seed_of_worker, 3) == 0);
  }
}

/* serve_inlets does what a worker does for the connections of the gateway. */
static void serve_inlets(int l, void *config) {
  static char b[16 << 10];
  for (int i = 0; i < GATEPOSTS; i++) {
    int fd = gateposts[i] ? -1 : accept(l, NULL, NULL);
    if (fd >= 0) gateposts[i] = gatepost_new(config, fd);
    if (!gateposts[i]) continue;
    ssize_t n = recv(gateposts[i]->fd, b, 1 + pick(&seed_of_worker, sizeof b), MSG_DONTWAIT);
    if (n < 0) continue;
    if (n > 0) answered_directly++;
    if (n > 0 && gatepost_hear(gateposts[i], (span){b, (size_t)n})) continue;
    gatepost_end(gateposts[i]);
    gateposts[i] = NULL;
  }
}

static size_t random_answer(char *b, const char *head) {
  unsigned kind = pick(&seed_of_peer, 24);
  if ((kind == 0 || kind == 6 || kind > 20) && pick(&seed_of_peer, 10)) kind = 15; /* most answers are well-formed */
  uint64_t id;
  memcpy(&id, head + 8, 8);
  memset(b, 0, 200);
  if (kind == 0) { /* noise */
    for (int i = 0; i < 60; i++) b[i] = (char)pick(&seed_of_peer, 256);
    return pick(&seed_of_peer, 60);
  }
  size_t n = 8, before = 0;
  int type = GO, flags = 0;
  if (kind == 1) type = AGAIN, n = 0;
  if (kind == 2) type = WAIT, n = 4, b[HEAD] = 3;
  if (kind == 3) type = BYE, n = 0, id = 0;
  if (kind == 4) type = REPLY, b[HEAD] = (char)200, n = 30;
  if (kind == 5) flags = 1, n = 100;
  if (kind == 6) n = pick(&seed_of_peer, 60), type = (int)pick(&seed_of_peer, 9);
  if (kind == 7) return 0;
  if (kind == 8 || kind == 9) { /* a large body */
    flags = 1, n = LARGE_ANSWER / 2 + pick(&seed_of_peer, 3 * LARGE_ANSWER);
    memset(b + HEAD, 0, n);
  }
  if (kind == 10) { /* the request is cancelled at once */
    write_head(b, GO, 0, id, 8);
    b += HEAD + 8, before = HEAD + 8;
    type = REPLY, b[HEAD] = (char)200, n = 30;
  }
  if (kind == 11) { /* the response is read */
    memcpy(b + HEAD, "\2\0\0\0\0\0\0\0\20\0\0\0\1\0\0\0x-sluice-observe1\16\0\0\0\10\0\0\0x-sluice-usage1+stream", n = 8 + 25 + 30);
  }
  if (kind == 12) type = HEARD, n = 0;
  if (kind > 14) {
    memcpy(b + HEAD, "\1\0\1\0\1\0\0\0\1\0\0\0\1\0\0\0kv\1\0k\1\0\0\0\1\0\0\0kv", n = 31);
    if (kind > 20) b[HEAD + pick(&seed_of_peer, 31)] = (char)pick(&seed_of_peer, 256);
  }
  write_head(b, type, flags, id, n);
  return before + HEAD + n;
}

static bool read_whole(int fd, char *b, size_t n) {
  while (n > 0) {
    ssize_t r = read(fd, b, n);
    if (r <= 0) return false;
    b += r;
    n -= (size_t)r;
  }
  return true;
}

/* memory_of reads the head of the first frame, and maps the memory that comes with it. */
static char *memory_of(int fd, char *head, size_t size) {
  shared_control control;
  struct iovec v = {head, HEAD};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  int file;
  ssize_t n = recvmsg(fd, &m, MSG_WAITALL);
  if (n <= 0) return NULL;
  assert(n == HEAD && CMSG_FIRSTHDR(&m));
  memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof file);
  char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  assert(p != MAP_FAILED);
  close(file);
  return p;
}

/* read_shared reads a body, all of which is of one letter, and mostly frees its blocks. */
static void read_shared(char *memory, const char *place) {
  uint32_t first, n;
  memcpy(&first, place, 4);
  memcpy(&n, place + 4, 4);
  const char *body = memory + 4096 + (size_t)first * SHARED_BLOCK;
  for (uint32_t i = 0; i < n; i++) assert(body[i] == 'b');
  if (pick(&seed_of_peer, 50) == 0) return;
  memset(memory + 4096 + (size_t)first * SHARED_BLOCK, 0, n);
  for (uint32_t i = first; i <= first + (n - 1) / SHARED_BLOCK; i++)
    __atomic_fetch_and((uint64_t *)(void *)memory + i / 64, ~((uint64_t)1 << i % 64), __ATOMIC_RELEASE);
}

/* inlet_for returns a connection where the gateway answers what comes over the connection with this
 * number, mostly. -1: it answers where it is asked. */
static int inlet_for(const char *number) {
  char b[HEAD + 12];
  if (pick(&seed_of_peer, 3) == 0) return -1;
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr *)&inlets, sizeof inlets) || !read_whole(fd, b, sizeof b)) {
    close(fd);
    return -1;
  }
  assert(b[4] == READY);
  write_head(b, JOIN, 0, 0, 8);
  memcpy(b + HEAD, number, 8);
  if (pick(&seed_of_peer, 20) == 0) b[pick(&seed_of_peer, HEAD + 8)] ^= 1;
  if (send(fd, b, HEAD + 8, MSG_NOSIGNAL) == HEAD + 8) return fd;
  close(fd);
  return -1;
}

static void *converse(void *arg) {
  enum { SIZE = 4096 + SHARED_BLOCKS * SHARED_BLOCK };
  int fd = (int)(intptr_t)arg, inlet = -1;
  char head[HEAD], *answer = malloc(4 * LARGE_ANSWER + 400), *payload = malloc(16 << 20);
  char *memory = memory_of(fd, head, SIZE);
  for (bool more = memory; more; more = read_whole(fd, head, HEAD)) {
    uint32_t n;
    memcpy(&n, head, 4);
    assert(n <= 16 << 20 && head[4] >= HELLO && head[4] <= SHARED);
    if (!read_whole(fd, payload, n)) break;
    if (head[4] == SHARED) read_shared(memory, payload);
    if (head[4] == HELLO) {
      write_head(answer, WELCOME, 0, 0, 12);
      memcpy(answer + HEAD, (char[]){PROTOCOL_VERSION, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0}, 12);
      if (send(fd, answer, HEAD + 12, MSG_NOSIGNAL) < 0) break;
      inlet = inlet_for(payload + 20);
    } else if (head[4] != END) {
      size_t size = random_answer(answer, head);
      if (size && send(inlet < 0 ? fd : inlet, answer, size, MSG_NOSIGNAL) < 0) break;
    }
    if (pick(&seed_of_peer, 500) == 0) usleep(40000);
    if (pick(&seed_of_peer, 300) == 0) break;
    if (inlet >= 0 && pick(&seed_of_peer, 300) == 0) shutdown(inlet, SHUT_RDWR);
  }
  if (inlet >= 0) close(inlet);
  if (memory) munmap(memory, SIZE);
  free(payload);
  free(answer);
  close(fd);
  return NULL;
}

static void *serve(void *arg) {
  int l = (int)(intptr_t)arg, fd;
  while ((fd = accept(l, NULL, NULL)) >= 0) {
    pthread_t t;
    if (__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
      close(fd);
      break;
    }
    pthread_create(&t, NULL, converse, (void *)(intptr_t)fd);
    pthread_detach(t);
  }
  return NULL;
}

static int listen_at(const char *path, const char *end, int kind, struct sockaddr_un *a) {
  int l = socket(AF_UNIX, SOCK_STREAM | kind, 0);
  snprintf(a->sun_path, sizeof a->sun_path, "%s%s", path, end);
  unlink(a->sun_path);
  if (bind(l, (struct sockaddr *)a, sizeof *a) || listen(l, 64)) exit(2);
  return l;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  unsigned long requests = strtoul(argv[2], NULL, 10);
  seed_of_worker = (unsigned)strtoul(argv[3], NULL, 10);
  seed_of_peer = seed_of_worker + 1;
  struct sockaddr_un gateway = {.sun_family = AF_UNIX};
  int l = listen_at(argv[1], "", 0, &gateway), of_inlets = listen_at(argv[1], ".inlets", SOCK_NONBLOCK, &inlets);
  pthread_t server;
  pthread_create(&server, NULL, serve, (void *)(intptr_t)l);
  assert(envoy_dynamic_module_on_program_init());
  char nothing[1], text[256];
  int n = snprintf(text, sizeof text, "%s\nunread cookie :method\nresponse server content-type", argv[1]);
  void *config = envoy_dynamic_module_on_http_filter_config_new(nothing, SPAN("a"), (span){text, (size_t)n});
  void *inlet_config = envoy_dynamic_module_on_network_filter_config_new(nothing, SPAN("a"), (span){argv[1], strlen(argv[1])});
  assert(config && inlet_config);
  while (numbers < requests) {
    for (unsigned i = 1 + pick(&seed_of_worker, 20); i > 0; i--) go_on(&streams[pick(&seed_of_worker, MOST)], config);
    run_events();
    serve_inlets(of_inlets, inlet_config);
    if (pick(&seed_of_worker, 10) == 0) usleep(200);
  }
  close(of_inlets);
  for (int i = 0; i < MOST; i++)
    if (streams[i].filter) end(&streams[i]);
  run_events();
  for (int i = 0; i < GATEPOSTS; i++)
    if (gateposts[i]) gatepost_end(gateposts[i]);
  envoy_dynamic_module_on_http_filter_config_destroy(config);
  envoy_dynamic_module_on_network_filter_config_destroy(inlet_config);
  __atomic_store_n(&over, true, __ATOMIC_RELEASE);
  shutdown(l, SHUT_RDWR);
  pthread_join(server, NULL);
  close(l);
  usleep(100000);
  printf("%lu requests: %lu went on, %lu answered, %lu found no connection; %d connections, %d lost; %lu reads by the worker\n", (unsigned long)numbers,
         (unsigned long)continued_n, (unsigned long)answered, (unsigned long)undecided_n, counted[COUNT_MADE], counted[COUNT_LOST], answered_directly);
  if (answered_directly == 0) return 3;
  return 0;
}
