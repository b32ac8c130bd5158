/* Names of headers that do not cross the gateway. A header costs a comparison with the names of its
 * own length. A list of Envoy's costs a look-up for each name, whether a message has it or not. */
#include "filter.h"
#include <string.h>

/* headers_read reads words with a space between them. It fails for too many of them, and for one
 * that is empty or too long. */
bool headers_read(header_list *l, span words) {
  uint8_t n = 0;
  *l = (header_list){0};
  for (const char *p = words.p, *end = words.p + words.n; p <= end;) {
    const char *space = memchr(p, ' ', (size_t)(end - p));
    span word = {p, (size_t)((space ? space : end) - p)};
    if (n == HEADERS_MAX || word.n == 0 || word.n > HEADER_LONGEST) return false;
    uint8_t i = n++;
    for (; i > 0 && l->of[i - 1].n > word.n; i--) l->of[i] = l->of[i - 1];
    l->of[i] = word;
    p = word.p + word.n + 1;
  }
  for (size_t i = 0, length = 0; length < sizeof l->at; length++) {
    while (i < n && l->of[i].n < length) i++;
    l->at[length] = (uint8_t)i;
  }
  return true;
}

/* headers_find returns the set that has only this name. It is empty if the name is not in l. */
header_set headers_find(const header_list *l, span name) {
  if (name.n > HEADER_LONGEST) return 0;
  for (size_t i = l->at[name.n]; i < l->at[name.n + 1]; i++)
    if (memcmp(l->of[i].p, name.p, name.n) == 0) return (header_set)1 << i;
  return 0;
}

/* headers_remove removes the headers that were found. */
void headers_remove(const header_list *l, header_set found, void *envoy, int kind) {
  for (size_t i = 0; found; found >>= 1, i++)
    if (found & 1) CALL(http_set_header)(envoy, kind, l->of[i], (span){NULL, 0});
}
