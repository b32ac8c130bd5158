/* What the files of the filter share. See filter.c for how the parts work together. */
#ifndef SLUICE_FILTER_H
#define SLUICE_FILTER_H
#include "abi.h"
#include <pthread.h>
#include <sys/uio.h>

/* The protocol, see package internal/frames. */
enum { PROTOCOL_VERSION = 1, HEAD = 16 };
enum { HELLO = 1, HEADERS = 2, BODY = 3, END = 4, LIVE = 5 };
enum { WELCOME = 1, GO = 2, REPLY = 3, WAIT = 4, AGAIN = 5, BYE = 6 };
enum { FLAG_NO_BODY = 1, FLAG_BODY_REPLACED = 1 };
/* LARGEST_FRAME is the most bytes in the payload of a frame. */
#define LARGEST_FRAME (((size_t)1 << 30) + (4 << 20))
/* SMALL_BODY is the size up to which a body is copied into the queue. */
#define SMALL_BODY ((size_t)16 << 10)
/* QUEUE_LIMIT is how many bytes of small frames a connection may hold until it counts as broken. */
#define QUEUE_LIMIT ((size_t)16 << 20)
/* HELD_LIMIT is how many bytes of frames wait while there is no connection. Further ones are lost. */
#define HELD_LIMIT ((size_t)1 << 20)
/* SILENCE is how long a request waits for a word before Welcome has told it, in milliseconds. */
#define SILENCE 2000

/* text is memory that grows. Only the thread that fills it uses it. */
typedef struct {
  char *p;
  size_t n, cap;
} text;

/* piece is a part of a queue: bytes, a body that is still in Envoy's buffer, or zeros. */
typedef struct piece {
  struct piece *next;
  struct request *body; /* whose body this is; null for bytes and zeros */
  char *bytes;          /* null for zeros; for a body, the head of its frame */
  size_t at;            /* what is sent of bytes, or of head and body */
  size_t left;          /* what is not sent */
  size_t cap;           /* of bytes */
} piece;

typedef struct {
  piece *first, *last;
  size_t small; /* how many bytes of all pieces but bodies and zeros are not sent */
} queue;

/* connection is one connection to the gateway, or the wish for one if fd is -1. The lock of its channel
 * guards it, but for in, which only the thread of the channel uses. */
typedef struct connection {
  struct connection *next;
  int fd;
  bool broken;           /* the thread is to close it */
  bool retired;          /* further requests go over another one */
  bool blocked;          /* the socket takes no more at the moment */
  uint32_t requests;     /* how many have an id on it */
  int64_t silence;       /* see SILENCE; Welcome sets it */
  int64_t blocked_since; /* when the socket took something for the last time, while blocked */
  queue out;
  text in;
} connection;

enum state {
  NEW,     /* the gateway does not know of it */
  ASKED,   /* the gateway was told, and the request waits in Envoy */
  DECIDED, /* the request has gone on to its route */
  GONE,    /* the request was refused, or goes on undecided */
};

/* What the worker is to do for a request in its next event. */
enum { DO_FLUSH = 1, DO_ANSWER = 2, DO_GIVE_UP = 4, DO_TELL = 8 };

/* request is the filter of one request. The lock of its channel guards what the thread also uses. */
typedef struct request {
  struct gate *gate;
  struct channel *channel;
  void *envoy, *scheduler;
  enum state state;
  bool has_body, body_complete, responding;
  /* The rest is guarded. */
  struct request **list, *next, *prev; /* the list of its channel that it is in */
  struct request *next_body;           /* the list of complete bodies that are to be sent */
  bool in_bodies, posted, giving_up;
  unsigned todo;
  connection *on; /* the connection that knows id; null: none */
  uint64_t id;
  int64_t deadline; /* in milliseconds of now_ms; 0: none */
  piece *sending;   /* its body in the queue of on */
  struct answer *answer; /* what the worker is to do */
  bool answering;        /* the worker does what answer said */
} request;

/* answer is a Go or a Reply that is well-formed. */
typedef struct answer {
  int type, flags;
  size_t n;
  char payload[];
} answer;

/* channel is what one worker of Envoy has with one gateway: its connections and requests, and a thread
 * that reads what the gateway says. */
typedef struct channel {
  pthread_mutex_t lock;
  struct gates *owner;
  uint32_t worker;
  pthread_t thread;
  int wake;               /* an eventfd that ends the sleep of the thread */
  connection *all, *current;
  request *asked, *settled, *bodies, *flusher;
  request **slots;
  uint32_t slots_n, *free_slots, free_n;
  uint64_t sequence;
  int64_t next_try, backoff;
  text scratch; /* of the worker */
  span *chunks; /* of the worker */
  size_t chunks_cap;
} channel;

enum { COUNT_MADE, COUNT_LOST, COUNT_UNDECIDED, COUNTS };

/* gate is one configuration of the filter. */
typedef struct gate {
  struct gate *next;
  struct gates *owner;
  void *envoy;
  size_t counters[COUNTS];
} gate;

/* gates is one socket of a gateway, with the configurations that name it. */
enum { WORKERS = 512 };
typedef struct gates {
  struct gates *next;
  gate *first;
  char path[108];
  channel *links[WORKERS];
  bool stopping;
} gates;

/* memory.c */
void *allocate(size_t n);
void text_room(text *t, size_t more);
void put(text *t, const void *p, size_t n);
void put_u16(text *t, uint16_t v);
void put_u32(text *t, uint32_t v);
void put_u64(text *t, uint64_t v);
void put_pair(text *t, span name, span value);
int64_t now_ms(void);
#define SPAN(s) ((span){(s), sizeof(s) - 1})

/* queue.c */
void write_head(char *at, int type, int flags, uint64_t id, size_t n);
void queue_frame(queue *q, int type, int flags, uint64_t id, span payload);
void queue_body(queue *q, request *r, size_t n);
void queue_forget_body(queue *q, piece *p);
void queue_free(queue *q);
int queue_iov(queue *q, channel *worker, struct iovec *v, int max);
void queue_sent(queue *q, size_t n);

/* answer.c */
typedef struct {
  uint16_t set_n, remove_n, metadata_n;
  span set, remove, metadata, body;
} go_answer;
typedef struct {
  uint16_t status, headers_n;
  span headers, details, body;
} reply_answer;
bool read_go(span payload, int flags, go_answer *out);
bool read_reply(span payload, reply_answer *out);
bool read_u32(span payload, uint32_t *out);
pair next_pair(span *rest);
span next_name(span *rest);

/* record.c */
void put_headers(text *t, void *envoy);
void put_record(text *t, void *envoy);
void put_live(text *t, void *envoy);

/* channel.c; the lock of the channel is held, if not said otherwise */
channel *channel_of(gates *g, uint32_t worker); /* not held */
bool channel_ask(channel *l, request *r);
void channel_body(channel *l, request *r);
void channel_settle(channel *l, request *r, enum state s);
void channel_tell(channel *l, request *r);
bool channel_end(channel *l, request *r);
void channel_drop(channel *l, request *r);
void channel_flush(channel *l);
void channel_close(channel *l); /* not held */
request *request_of(channel *l, connection *c, uint64_t id);
void withdraw(channel *l, request *r);

/* thread.c */
void *channel_thread(void *l);
bool channel_connect(channel *l);
connection *connection_new(channel *l);
void connection_send(channel *l, connection *c, bool worker);
void connection_break(channel *l, connection *c);
void wake(channel *l);
void post(request *r, unsigned todo);
void give_up(request *r);

/* filter.c */
void count(gates *g, int which);
uint64_t instance(void);
#endif
