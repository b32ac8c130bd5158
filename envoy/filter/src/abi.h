/* The part of the interface for dynamic modules of Envoy 1.40.0 that the filter uses, written by
 * hand. The tests of package envoy/filter prove it against the real Envoy: each function, each
 * value and each attribute below has an effect that a test sees. Envoy promises this interface for
 * the next minor version only, so the filter is used with the version that it was tested with. */
#ifndef SLUICE_ABI_H
#define SLUICE_ABI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* span is memory of either side. Memory of Envoy is valid until the hook returns or a setter is
 * called. */
typedef struct {
  const char *p;
  size_t n;
} span;

/* pair is a header, or a value of metadata with its key. */
typedef struct {
  const char *key;
  size_t key_n;
  const char *value;
  size_t value_n;
} pair;

/* times of a request in nanoseconds since its beginning. What is not known is -1, and its flag is
 * not set. Envoy writes all of it. */
typedef struct {
  int64_t start_unix;
  int64_t connection_begin, handshake_start, handshake_complete;
  int64_t last_header_received, last_byte_received;
  int64_t connect_start, connect_complete, upstream_handshake_complete;
  int64_t first_byte_to_upstream, last_byte_to_upstream;
  int64_t first_byte_from_upstream, first_body_byte_from_upstream, last_byte_from_upstream;
  int64_t first_byte_sent, last_byte_sent, last_ack_received;
  int64_t duration, connection_end;
  bool known[19];
} times;

enum { REQUEST_HEADERS = 0, RESPONSE_HEADERS = 2 };
enum { BUFFERED_REQUEST_BODY = 1, RECEIVED_RESPONSE_BODY = 2 };
enum { HEADERS_CONTINUE = 0, HEADERS_STOP = 1 };
enum { BODY_CONTINUE = 0, BODY_STOP_AND_BUFFER = 1 };
enum { TRAILERS_CONTINUE = 0, TRAILERS_STOP = 1 };
enum { LOCAL_REPLY_CONTINUE = 0 };
enum { RESET_LOCAL = 0 };
enum { METADATA_HOST = 3 };
enum { NETWORK_CONTINUE = 0, NETWORK_STOP = 1 };
enum { NETWORK_REMOTE_CLOSE = 0, NETWORK_LOCAL_CLOSE = 1 };
enum { NETWORK_CLOSE_NO_FLUSH = 1 };
enum {
  ATTRIBUTE_REQUEST_BYTES = 13,
  ATTRIBUTE_STATUS = 15,
  ATTRIBUTE_DETAILS = 16,
  ATTRIBUTE_FLAGS = 17,
  ATTRIBUTE_RESPONSE_BYTES = 21,
  ATTRIBUTE_UPSTREAM = 41,
  ATTRIBUTE_ATTEMPTS = 53,
  ATTRIBUTE_CLUSTER = 57,
  ATTRIBUTE_ROUTE = 61,
};

/* Functions of Envoy. */
#define CALL(name) envoy_dynamic_module_callback_##name
int CALL(http_filter_config_define_counter)(void *config, span name, span *labels, size_t n, size_t *id);
int CALL(http_filter_config_increment_counter)(void *config, size_t id, span *values, size_t n, uint64_t by);
uint32_t CALL(http_filter_get_worker_index)(void *filter);
bool CALL(http_get_header)(void *filter, int kind, span key, span *value, size_t index, size_t *count);
size_t CALL(http_get_headers_size)(void *filter, int kind);
bool CALL(http_get_headers)(void *filter, int kind, pair *out);
bool CALL(http_set_header)(void *filter, int kind, span key, span value);
bool CALL(http_add_header)(void *filter, int kind, span key, span value);
size_t CALL(http_get_body_size)(void *filter, int kind);
size_t CALL(http_get_body_chunks_size)(void *filter, int kind);
bool CALL(http_get_body_chunks)(void *filter, int kind, span *out);
bool CALL(http_drain_body)(void *filter, int kind, size_t n);
bool CALL(http_append_body)(void *filter, int kind, span data);
void CALL(http_set_dynamic_metadata_string_batch)(void *filter, span ns, const pair *values, size_t n);
bool CALL(http_get_metadata_string)(void *filter, int source, span ns, span key, span *out);
void CALL(http_get_timing_info)(void *filter, times *out);
bool CALL(http_filter_get_attribute_string)(void *filter, int attribute, span *out);
bool CALL(http_filter_get_attribute_int)(void *filter, int attribute, uint64_t *out);
void CALL(http_clear_route_cache)(void *filter);
void CALL(http_filter_continue_decoding)(void *filter);
void CALL(http_send_response)(void *filter, uint32_t status, pair *headers, size_t n, span body, span details);
void CALL(http_filter_reset_stream)(void *filter, int reason, span details);
void *CALL(http_filter_scheduler_new)(void *filter);
void CALL(http_filter_scheduler_commit)(void *scheduler, uint64_t event);
void CALL(http_filter_scheduler_delete)(void *scheduler);
uint32_t CALL(network_filter_get_worker_index)(void *filter);
size_t CALL(network_filter_get_read_buffer_chunks_size)(void *filter);
bool CALL(network_filter_get_read_buffer_chunks)(void *filter, span *out);
bool CALL(network_filter_drain_read_buffer)(void *filter, size_t n);
void CALL(network_filter_write)(void *filter, span data, bool end);
void CALL(network_filter_close)(void *filter, int kind);

/* ANY marks a parameter that a hook does not use. */
#define ANY __attribute__((unused))

/* Hooks that Envoy calls. HOOK makes one visible to Envoy. */
#define HOOK(type, name) __attribute__((visibility("default"))) type envoy_dynamic_module_on_##name
HOOK(const char *, program_init)(void);
HOOK(void *, http_filter_config_new)(void *envoy, span name, span config);
HOOK(void, http_filter_config_destroy)(void *config);
HOOK(void *, http_filter_per_route_config_new)(span name, span config);
HOOK(void, http_filter_per_route_config_destroy)(void *config);
HOOK(void *, http_filter_new)(void *config, void *envoy);
HOOK(int, http_filter_request_headers)(void *envoy, void *filter, bool end);
HOOK(int, http_filter_request_body)(void *envoy, void *filter, bool end);
HOOK(int, http_filter_request_trailers)(void *envoy, void *filter);
HOOK(int, http_filter_response_headers)(void *envoy, void *filter, bool end);
HOOK(int, http_filter_response_body)(void *envoy, void *filter, bool end);
HOOK(int, http_filter_response_trailers)(void *envoy, void *filter);
HOOK(void, http_filter_stream_complete)(void *envoy, void *filter);
HOOK(void, http_filter_destroy)(void *filter);
HOOK(void, http_filter_scheduled)(void *envoy, void *filter, uint64_t event);
HOOK(int, http_filter_local_reply)(void *envoy, void *filter, uint32_t status, span details, bool reset);
HOOK(void, http_filter_http_callout_done)(void *, void *, uint64_t, int, pair *, size_t, span *, size_t);
HOOK(void, http_filter_http_stream_headers)(void *, void *, uint64_t, pair *, size_t, bool);
HOOK(void, http_filter_http_stream_data)(void *, void *, uint64_t, const span *, size_t, bool);
HOOK(void, http_filter_http_stream_trailers)(void *, void *, uint64_t, pair *, size_t);
HOOK(void, http_filter_http_stream_complete)(void *, void *, uint64_t);
HOOK(void, http_filter_http_stream_reset)(void *, void *, uint64_t, int);
HOOK(void, http_filter_config_scheduled)(void *, void *, uint64_t);
HOOK(void, http_filter_config_http_callout_done)(void *, void *, uint64_t, int, pair *, size_t, span *, size_t);
HOOK(void, http_filter_config_http_stream_headers)(void *, void *, uint64_t, pair *, size_t, bool);
HOOK(void, http_filter_config_http_stream_data)(void *, void *, uint64_t, const span *, size_t, bool);
HOOK(void, http_filter_config_http_stream_trailers)(void *, void *, uint64_t, pair *, size_t);
HOOK(void, http_filter_config_http_stream_complete)(void *, void *, uint64_t);
HOOK(void, http_filter_config_http_stream_reset)(void *, void *, uint64_t, int);
HOOK(void, http_filter_downstream_above_write_buffer_high_watermark)(void *, void *);
HOOK(void, http_filter_downstream_below_write_buffer_low_watermark)(void *, void *);
HOOK(void *, network_filter_config_new)(void *envoy, span name, span config);
HOOK(void, network_filter_config_destroy)(void *config);
HOOK(void *, network_filter_new)(void *config, void *envoy);
HOOK(int, network_filter_new_connection)(void *envoy, void *filter);
HOOK(int, network_filter_read)(void *envoy, void *filter, size_t n, bool end);
HOOK(int, network_filter_write)(void *envoy, void *filter, size_t n, bool end);
HOOK(void, network_filter_event)(void *envoy, void *filter, int event);
HOOK(void, network_filter_destroy)(void *filter);
HOOK(void, network_filter_http_callout_done)(void *, void *, uint64_t, int, pair *, size_t, span *, size_t);
HOOK(void, network_filter_scheduled)(void *, void *, uint64_t);
HOOK(void, network_filter_config_scheduled)(void *, uint64_t);
HOOK(void, network_filter_above_write_buffer_high_watermark)(void *, void *);
HOOK(void, network_filter_below_write_buffer_low_watermark)(void *, void *);
#endif
