/* What the files of the filter share. See filter.c for how the parts work together. */
#ifndef SLUICE_FILTER_H
#define SLUICE_FILTER_H
#include "abi.h"
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The protocol, see package internal/frames. */
enum { PROTOCOL_VERSION = 6, HEAD = 16 };
enum { HELLO = 1, HEADERS = 2, BODY = 3, END = 4, LIVE = 5, FIRST = 6, SHARED = 7, READY = 8 };
enum { WELCOME = 1, GO = 2, REPLY = 3, WAIT = 4, AGAIN = 5, BYE = 6, HEARD = 7, JOIN = 8 };
enum { FLAG_NO_BODY = 1, FLAG_BODY_REPLACED = 1, FLAG_NAMELESS = 2 };
/* MOST_OBSERVED is how much of a response the gateway is told at most, for the first token and its
 * id. */
#define MOST_OBSERVED ((size_t)64 << 10)
/* LARGEST_FRAME is the most bytes in the payload of a frame. */
#define LARGEST_FRAME (((size_t)1 << 30) + (4 << 20))
/* SMALL_BODY is the size up to which a body is copied into the queue. A larger one is copied into
 * shared memory, if that has room. */
#define SMALL_BODY ((size_t)16 << 10)
/* QUEUE_LIMIT is how many bytes of small frames a connection may hold when it is told of a request.
 * A request for which there is no room goes on undecided. */
#define QUEUE_LIMIT ((size_t)16 << 20)
/* HELD_LIMIT is how many bytes of frames wait while there is no connection. Further ones are
 * lost. */
#define HELD_LIMIT ((size_t)1 << 20)
/* LARGE_ANSWER is the length from which a payload is read straight into its answer. */
#define LARGE_ANSWER ((size_t)32 << 10)
/* SILENCE is how long a request waits for a word before Welcome has told it, in milliseconds. */
#define SILENCE 2000

/* LAST_WAIT is how long a request waits after its deadline for what an inlet has, in milliseconds.
 * Its worker begins it. */
#define LAST_WAIT 50

#define SPAN(s) ((span){(s), sizeof(s) - 1})
static inline bool begins(span s, span with) { return s.n >= with.n && memcmp(s.p, with.p, with.n) == 0; }
static inline bool ends(span s, span with) { return s.n >= with.n && memcmp(s.p + s.n - with.n, with.p, with.n) == 0; }
static inline bool equal(span a, span b) { return a.n == b.n && begins(a, b); }

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
  size_t frame;         /* where in bytes the first frame begins that is not sent as a whole */
  size_t cap;           /* of bytes */
} piece;

typedef struct {
  piece *first, *last;
  size_t small; /* how many bytes of all pieces but bodies and zeros are not sent */
} queue;

/* shared is memory that the gateway reads too. */
enum { SHARED_BLOCK = 32 << 10, SHARED_BLOCKS = 256 };
typedef struct {
  char *p;         /* null: there is none */
  int fd;          /* -1: it was passed to the gateway, or there is none */
  bool usable;     /* the gateway reads it */
  int64_t used_at; /* when a body was placed for the last time; 0: no page is in use */
} shared;

/* input is what was read of the gateway and is not handled yet. */
typedef struct input {
  text text;
  struct answer *large; /* a large answer of which not all has come; null: none */
  size_t large_n;       /* how much of it has come */
  struct inlet *inlet;  /* where the worker reads; null: the thread of the channel reads */
} input;

/* connection is one connection to the gateway, or the wish for one if fd is -1. The lock of its
 * channel guards it, but for in, which only the thread of the channel uses. */
typedef struct connection {
  struct connection *next;
  int fd;
  bool broken;           /* the thread is to close it */
  bool retired;          /* further requests go over another one */
  int64_t ended;         /* when the socket has ended, while the inlet goes on; 0: it has not */
  bool blocked;          /* the socket takes no more at the moment */
  uint32_t requests;     /* how many have an id on it */
  int64_t silence;       /* see SILENCE; Welcome sets it */
  int64_t blocked_since; /* when the socket took something for the last time, while blocked */
  queue out;
  shared shared;
  input in;
  uint64_t number;     /* unique in this Envoy; the gateway says it to an inlet */
  struct inlet *inlet; /* where the gateway says what it has to say; null: here */
} connection;

enum state {
  NEW,     /* the gateway does not know of it */
  ASKED,   /* the gateway was told, and the request waits in Envoy */
  DECIDED, /* the request has gone on to its route */
  GONE,    /* the request was refused, or goes on undecided */
};

/* What the worker is to do for a request in its next event. */
enum { DO_FLUSH = 1, DO_ANSWER = 2, DO_GIVE_UP = 4, DO_TELL = 8, DO_LAST_WAIT = 16 };

/* Names of members of a JSON object that the filter looks for. Those of texts and those of counts
 * stand together. */
enum {
  NAME_OTHER,
  NAME_CONTENT, NAME_TEXT, NAME_DELTA, NAME_ARGUMENTS, NAME_REASONING_CONTENT, NAME_REASONING, NAME_REFUSAL, NAME_THINKING, NAME_PARTIAL_JSON,
  NAME_FINISH_REASON, NAME_STOP_REASON, NAME_TOOL_CALLS, NAME_TYPE, NAME_USAGE, NAME_RESPONSE, NAME_MESSAGE, NAME_PROMPT_DETAILS, NAME_INPUT_DETAILS,
  NAME_PROMPT_TOKENS, NAME_INPUT_TOKENS, NAME_COMPLETION_TOKENS, NAME_OUTPUT_TOKENS, NAME_CACHED_TOKENS, NAME_CACHE_READ, NAME_CACHE_CREATION,
  NAME_TOTAL_TOKENS,
  NAMES,
  IN_ARRAY = 255, /* in the place of a name: the value is in an array */
};

/* What json_read finds. Of an object it finds the beginning. */
enum { JSON_STRING, JSON_NUMBER, JSON_DONE, JSON_OTHER, JSON_OBJECT };

/* json is a JSON text of which a part was read. */
enum { DEPTHS = 256 };
typedef struct json {
  uint8_t state;
  bool bad;     /* it is no JSON, or deeper than DEPTHS */
  bool is_name; /* the string that is read is a name */
  uint16_t depth;
  size_t length;         /* of the string or word */
  const char *begin;     /* where the string begins, if it is in one part */
  /* The beginning of a word, of a name, and of a string that is a type or a reason to finish or
   * stop. */
  char text[64];
  uint8_t names[DEPTHS]; /* by depth: the member of the object that is read, or IN_ARRAY */
} json;
typedef void json_found(void *of, const json *j, int what);

typedef struct reading reading;

/* header_list has names of headers, ordered by their lengths: those of the length n begin at at[n]
 * and end at at[n + 1]. */
enum { HEADERS_MAX = 64, HEADER_LONGEST = 62 };
typedef struct {
  span of[HEADERS_MAX];
  uint8_t at[HEADER_LONGEST + 2];
} header_list;

/* header_set is a set of those that a message has, by their places in of. */
typedef uint64_t header_set;

/* request is the filter of one request. The lock of its channel guards what the thread also
 * uses. */
typedef struct request {
  struct gate *gate;
  struct channel *channel;
  void *envoy, *scheduler;
  enum state state;
  bool has_body, body_complete, responding;
  reading *reading; /* null: nothing of the response is read */
  bool relayed;     /* the relay answers it */
  bool streamed;    /* its response is a stream */
  bool nameless;    /* the client does not learn which replica has answered */
  bool local;       /* Envoy answers it */
  bool unframed;    /* only the end of its connection ends the response */
  bool observing;   /* the gateway is told the beginning of the response; atomic */
  size_t observed;  /* how much of it */
  span values;      /* what the gateway has given the request: pairs, as next_pair reads them; its own memory */
  uint16_t values_n;
  bool told; /* Envoy's access log knows that the gateway is told the end */
  /* The rest is guarded. */
  struct request **list, *next, *prev; /* the list of its channel that it is in */
  struct request *next_body;           /* the list of complete bodies that are to be sent */
  bool in_bodies, posted, giving_up;
  bool last_wait; /* see LAST_WAIT */
  bool gap; /* the gateway may lack some of what was observed */
  unsigned todo;
  connection *on; /* the connection that knows id; null: none */
  uint64_t id;
  int64_t deadline; /* in milliseconds of now_ms; 0: none */
  piece *sending;   /* its body in the queue of on */
  struct answer *answer; /* what the worker is to do */
  int answering;         /* the type of the answer that the worker carries out; 0: none */
} request;

/* answer is a Go or a Reply that is well-formed. */
typedef struct answer {
  int type, flags;
  uint64_t id;
  size_t n;
  char payload[];
} answer;

/* channel is what one worker of Envoy has with one gateway: its connections and requests, and a
 * thread that reads what the gateway says. */
typedef struct channel {
  pthread_mutex_t lock;
  struct gates *owner;
  uint32_t worker;
  pthread_t thread;
  int wake;               /* an eventfd that ends the sleep of the thread */
  connection *all, *current;
  request *asked, *settled, *bodies, *flusher;
  request *due; /* what the worker has just read is for it */
  request **slots;
  uint32_t slots_n, *free_slots, free_n;
  uint64_t sequence;
  int64_t next_try, last_try, backoff;
  bool last_waits; /* a request has its last wait; the thread looks for its end */
  bool refused; /* the gateway speaks another version of the protocol */
  text scratch; /* of the worker */
  span *chunks; /* of the worker */
  size_t chunks_cap;
} channel;

/* inlet is a connection of the gateway to a worker of Envoy. It takes what the gateway says over
 * one connection of the filter, so that the worker reads it itself. The lock of the channel guards
 * on. Only the worker uses the rest. */
typedef struct inlet {
  struct gates *owner;
  channel *channel; /* null: it has no channel yet, or none */
  connection *on;   /* whose answers come here; null: not said yet, or it has ended */
  bool joined;
  input in;
} inlet;

enum { COUNT_MADE, COUNT_LOST, COUNT_UNDECIDED, COUNTS };

/* gate is one configuration of the filter. */
typedef struct gate {
  struct gate *next;
  struct gates *owner;
  void *envoy;
  size_t counters[COUNTS];
  /* Headers that do not cross the gateway: those of requests that it does not read, and those of
   * engines. The routes remove those of requests that it reads. */
  header_list unread, response;
  char *config; /* the text that these are parts of */
} gate;

/* gates is one socket of a gateway, with the configurations that name it. */
enum { WORKERS = 512 };
typedef struct gates {
  struct gates *next;
  gate *first;
  char path[108];
  channel *links[WORKERS];
  unsigned uses; /* configurations of filters and of inlets */
  bool stopping;
} gates;

/* memory.c */
void *allocate(size_t n);
void text_room(text *t, size_t more);
void put(text *t, const void *p, size_t n);
void put_u16(text *t, uint16_t v);
void put_u32(text *t, uint32_t v);
void put_u64(text *t, uint64_t v);
uint64_t get_u64(const char *p);
void put_pair(text *t, span name, span value);
enum { DECIMAL = 24 };
span decimal(char *room, int64_t v);
enum { FEW = 16 };
size_t chunks_of(void *envoy, int kind, span **out);
int64_t now_ms(void);

/* queue.c */
void write_head(char *at, int type, int flags, uint64_t id, size_t n);
void queue_frame(queue *q, int type, int flags, uint64_t id, span payload);
void queue_body(queue *q, request *r, size_t n);
void queue_forget_body(queue *q, piece *p);
void queue_free(queue *q);
void queue_keep_ends(queue *q, queue *to);
int queue_iov(queue *q, channel *worker, struct iovec *v, int max);
void queue_sent(queue *q, size_t n);

/* share.c */
typedef union {
  struct cmsghdr head;
  char bytes[CMSG_SPACE(sizeof(int))];
} shared_control;
void shared_open(shared *s);
void shared_close(shared *s);
void shared_attach(const shared *s, struct msghdr *m, shared_control *room);
void shared_passed(shared *s);
char *shared_take(shared *s, size_t n, uint32_t *first);
void shared_tidy(shared *s, int64_t now);

/* answer.c */
/* An id is a number that counts the requests of a channel, and the index of the request in slots.
 * NO_SLOT is the index of a request that has ended. */
enum { SLOT_BITS = 20, NO_SLOT = (1 << SLOT_BITS) - 1 };

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
bool is_for_response(pair value);
pair next_pair(span *rest);
span next_name(span *rest);

/* headers.c */
bool headers_read(header_list *l, span words);
header_set headers_find(const header_list *l, span name);
void headers_remove(const header_list *l, header_set found, void *envoy, int kind);

/* record.c */
void put_headers(text *t, const request *r);
void put_record(text *t, const request *r);
void put_live(text *t, const request *r);
bool replica_of(void *envoy, span *out);

/* json.c */
void json_init(void);
void json_begin(json *j);
void json_read(json *j, const char *p, size_t n, json_found *found, void *of);
void json_end(json *j, json_found *found, void *of);
bool json_is_empty(const json *j);
bool json_is_whole(const json *j);
size_t before(const char *p, size_t n, char a, char b);
size_t before_end_of_text(const char *p, size_t n);

/* reading.c */
void reading_init(void);
reading *reading_new(span wanted);
void reading_begin(reading *r, void *envoy);
void reading_read(reading *r, const span *chunks, size_t n);
void reading_feed(reading *r, span s, int64_t now_us);
void reading_end(reading *r);
void reading_free(reading *r);
size_t put_reading(text *t, const reading *r);

/* channel.c; the lock of the channel is held, if not said otherwise */
channel *channel_of(gates *g, uint32_t worker); /* not held */
bool channel_ask(channel *l, request *r);
void channel_body(channel *l, request *r);
void channel_settle(channel *l, request *r, enum state s);
void channel_tell(channel *l, request *r);
void channel_first(channel *l, request *r, span s);
bool channel_end(channel *l, request *r);
void channel_drop(channel *l, request *r);
void channel_flush(channel *l);
void channel_close(channel *l); /* not held */
request *request_of(channel *l, connection *c, uint64_t id);
void withdraw(channel *l, request *r);

/* input.c; the lock of the channel is held, if not said otherwise */
char *input_room(input *in, size_t *room); /* not held */
bool input_came(channel *l, connection *c, input *in, size_t n);
void input_free(input *in); /* not held */

/* thread.c */
void *channel_thread(void *l);
bool channel_connect(channel *l, bool asked);
connection *connection_new(channel *l);
void connection_send(channel *l, connection *c, bool worker);
void connection_break(channel *l, connection *c);
void wake(channel *l);
void retire(channel *l, connection *c);
void post(request *r, unsigned todo);
void give_up(request *r);

/* filter.c */
gates *gates_use(span path);
void gates_leave(gates *g);
void carry_out(request *r, bool scheduled); /* not held */
void count(gates *g, int which);
uint64_t instance(void);
#endif
