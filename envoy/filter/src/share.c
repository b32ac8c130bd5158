/* The memory that a connection shares with the gateway, in which long bodies lie: so they are
 * copied once, and wake the gateway once. It is a file without a name, whose descriptor goes with
 * Hello. Its first page has a bit for each block: the filter sets it, and the gateway clears it
 * when it has read the body. */
#include "filter.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Names that headers for glibc 2.17 lack. */
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1U
#define MFD_ALLOW_SEALING 2U
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

enum { MAP_HEAD = 4096, WORDS = SHARED_BLOCKS / 64 };
/* UNUSED is how long the memory keeps its pages after the last body, in milliseconds. */
enum { UNUSED = 10000 };
#define SHARED_SIZE ((size_t)MAP_HEAD + (size_t)SHARED_BLOCKS * SHARED_BLOCK)

/* make returns a file without a name. Some systems demand that nobody can execute it, and others do
 * not know that. */
static int make(void) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = (int)syscall(SYS_memfd_create, "sluice", flags | MFD_NOEXEC_SEAL);
  return fd >= 0 ? fd : (int)syscall(SYS_memfd_create, "sluice", flags);
}

/* shared_open makes the memory. Without it, all bodies go through the socket. */
void shared_open(shared *s) {
  *s = (shared){.fd = make()};
  if (s->fd < 0) return;
  bool sized = ftruncate(s->fd, (off_t)SHARED_SIZE) == 0 && fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  void *p = sized ? mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0) : MAP_FAILED;
  if (p != MAP_FAILED) {
    s->p = p;
    return;
  }
  close(s->fd);
  s->fd = -1;
}

void shared_close(shared *s) {
  if (s->p) munmap(s->p, SHARED_SIZE);
  shared_passed(s);
  *s = (shared){.fd = -1};
}

/* shared_attach has a message pass the descriptor, unless an earlier one has. */
void shared_attach(const shared *s, struct msghdr *m, shared_control *room) {
  if (s->fd < 0) return;
  memset(room, 0, sizeof *room);
  m->msg_control = room;
  m->msg_controllen = sizeof room->bytes;
  struct cmsghdr *h = CMSG_FIRSTHDR(m);
  h->cmsg_level = SOL_SOCKET;
  h->cmsg_type = SCM_RIGHTS;
  h->cmsg_len = CMSG_LEN(sizeof s->fd);
  memcpy(CMSG_DATA(h), &s->fd, sizeof s->fd);
}

/* shared_passed tells that the descriptor was sent. */
void shared_passed(shared *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}

/* word is the n-th 64 bits of the map. The gateway reads and clears them as a number of this
 * machine. */
static uint64_t *word(const shared *s, uint32_t n) { return (uint64_t *)(void *)s->p + n; }

/* shared_take returns the memory for a body of n bytes, and its first block. Null: there is no
 * room. */
char *shared_take(shared *s, size_t n, uint32_t *first) {
  size_t blocks = (n + SHARED_BLOCK - 1) / SHARED_BLOCK, run = 0;
  uint32_t at = 0;
  if (!s->usable || n == 0 || blocks > SHARED_BLOCKS) return NULL;
  for (uint64_t used = 0; at < SHARED_BLOCKS && run < blocks; at++) {
    /* What the gateway has read of a block precedes that it clears the bit. */
    if (at % 64 == 0) used = __atomic_load_n(word(s, at / 64), __ATOMIC_ACQUIRE);
    run = used >> at % 64 & 1 ? 0 : run + 1;
  }
  if (run < blocks) return NULL;
  *first = at - (uint32_t)blocks;
  for (uint32_t i = *first; i < at; i++) __atomic_fetch_or(word(s, i / 64), (uint64_t)1 << i % 64, __ATOMIC_RELAXED);
  s->used_at = now_ms();
  return s->p + MAP_HEAD + (size_t)*first * SHARED_BLOCK;
}

/* shared_tidy gives the pages back that no body has used for long. */
void shared_tidy(shared *s, int64_t now) {
  if (!s->p || !s->used_at || now - s->used_at < UNUSED) return;
  for (uint32_t i = 0; i < WORDS; i++)
    if (__atomic_load_n(word(s, i), __ATOMIC_ACQUIRE)) return;
  size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (MAP_HEAD + page - 1) / page * page;
  madvise(s->p + from, SHARED_SIZE - from, MADV_REMOVE);
  s->used_at = 0;
}
