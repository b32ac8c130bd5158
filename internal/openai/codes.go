package openai

import (
	"slices"
	"time"
)

// Code is the stable, machine-readable name of an error. Clients may branch on it; the message is
// for people.
type Code string

// The codes that a client can meet. Each is a row of the table below.
const (
	CodeInvalidRequest     Code = "invalid_request"
	CodeModelNotCapable    Code = "model_not_capable"
	CodeInvalidAPIKey      Code = "invalid_api_key"
	CodeExpiredAPIKey      Code = "expired_api_key"
	CodeContentFilter      Code = "content_filter"
	CodeModelNotFound      Code = "model_not_found"
	CodeStreamNotFound     Code = "stream_not_found"
	CodeResponseNotFound   Code = "response_not_found"
	CodeRequestTimeout     Code = "request_timeout"
	CodeClientTooSlow      Code = "client_too_slow"
	CodeRequestIDConflict  Code = "request_id_conflict"
	CodeRequestTooLarge    Code = "request_too_large"
	CodeInsufficientQuota  Code = "insufficient_quota"
	CodeRateLimited        Code = "rate_limited"
	CodeQueueFull          Code = "queue_full"
	CodeHeadersTooLarge    Code = "headers_too_large"
	CodeCancelled          Code = "cancelled"
	CodeUpstreamError      Code = "upstream_error"
	CodeUpstreamTruncated  Code = "upstream_truncated"
	CodeQueueTimeout       Code = "queue_timeout"
	CodeNoReplica          Code = "no_replica"
	CodeColdStartTimeout   Code = "cold_start_timeout"
	CodeReplicaFailed      Code = "replica_failed"
	CodeGatewayUnavailable Code = "gateway_unavailable"
	CodeUpstreamTimeout    Code = "upstream_timeout"
)

// CodeInfo is a row of the table of codes.
type CodeInfo struct {
	Code Code
	// Status is the HTTP status of the code. An Error may override it.
	Status int
	// Meaning is what the code means, for the documentation.
	Meaning string
}

// codes is the one table of codes. The type of an error, whether it is retryable and its gRPC
// status follow from the HTTP status. An engine's error has only a status, and no code of Sluice's.
// See TypeOf, retryableStatus and CodeOf in api/llm/v1. docs/errors.md is generated from the table.
var codes = [...]CodeInfo{
	{CodeInvalidRequest, 400, "The body or an option is wrong, or the request can never fit a limit. " +
		"Also 404 for an unknown path, 405 for a wrong method and 415 for a wrong Content-Type."},
	{CodeModelNotCapable, 400,
		"The endpoint does not serve the `task` of the model, such as embeddings of a model that generates text. No replica is started. " +
			"Also 404 if the engine lacks `/v1/responses/input_tokens` or `/v1/responses/compact`."},
	{CodeInvalidAPIKey, 401, "The API key, or what stands for it (`auth.mode`), is missing, unknown or revoked."},
	{CodeExpiredAPIKey, 401, "The API key, or the token of the identity provider, was good and has expired."},
	{CodeContentFilter, 403, "A moderation rule forbids the answer, and the answer has no `finish_reason` that could say so: a transcription, for example."},
	{CodeModelNotFound, 404, "No model or pool has this name, or the tenant may not use it. The two are not told apart."},
	{CodeResponseNotFound, 404, "The tenant has no stored response with this id, or the gateway does not know any more which replica has it."},
	{CodeStreamNotFound, 404, "No request with this id is running, and none has ended a moment ago."},
	{CodeRequestTimeout, 408, "The `timeout_ms` of the request ended, or its body arrived too slowly (`upload.min_rate`)."},
	{CodeClientTooSlow, 408, "The client reads more slowly than the engine writes, and too much waits for it."},
	{CodeRequestIDConflict, 409, "A request with this `request_id` is running or had another body, or the events after the last one seen are not kept."},
	{CodeRequestTooLarge, 413, "The body is larger than `max_body`."},
	{CodeInsufficientQuota, 429, "A budget of the tenant or of the key is used up for this day or month. `Retry-After` says when it begins anew."},
	{CodeRateLimited, 429, "A limit of the tenant or of its key is reached, or the model's tokens are not back within `queue_timeout`."},
	{CodeQueueFull, 429, "Too many requests wait, or the request left the queue for one that goes before it."},
	{CodeHeadersTooLarge, 431, "The request has more headers, or more bytes of them, than `max_headers` and `max_header_bytes` allow."},
	{CodeCancelled, 499, "The request was cancelled, or its client disconnected."},
	{CodeUpstreamError, 502, "The replica failed."},
	{CodeUpstreamTruncated, 502, "The answer of the replica ended before it was whole."},
	{CodeQueueTimeout, 503, "The request waited for longer than `queue_timeout`."},
	{CodeNoReplica, 503, "The model has no replica that is ready."},
	{CodeColdStartTimeout, 503,
		"No replica of the model became ready in time (`cold_start.wait`). The start goes on, and `Retry-After` tells when to ask again."},
	{CodeReplicaFailed, 503, "The replicas of the model fail to start. The message has the kind of fault, `Retry-After` the next start."},
	{CodeGatewayUnavailable, 503, "The gateway is starting or stopping, a part of it does not answer, or it has no room for the request (docs/budgets.md)."},
	{CodeUpstreamTimeout, 504, "The replica did not answer in time."},
}

// defaultRetryAfter is the Retry-After of a retryable error that does not say when to retry.
const defaultRetryAfter = time.Second

// Codes returns the table of codes, by status.
func Codes() []CodeInfo { return slices.Clone(codes[:]) }

// Known reports whether the code is one of the table.
func (c Code) Known() bool { return c.info() != nil }

// Status returns the HTTP status of the code, and 500 for a code that is not of the table.
func (c Code) Status() int {
	if info := c.info(); info != nil {
		return info.Status
	}
	return 500
}

func (c Code) info() *CodeInfo {
	for i := range codes {
		if codes[i].Code == c {
			return &codes[i]
		}
	}
	return nil
}

// CodeOfStatus returns the code of an engine's error that has none of its own, by its HTTP status.
// An engine that refuses Sluice's credentials has failed; the client's key is good.
func CodeOfStatus(status int) Code {
	switch {
	case status == 408 || status == 504:
		return CodeUpstreamTimeout
	case status == 413:
		return CodeRequestTooLarge
	case status == 429:
		return CodeRateLimited
	case status == 401, status == 403, status == 407, status >= 500:
		return CodeUpstreamError
	}
	return CodeInvalidRequest
}

// TypeOf returns OpenAI's coarse class of an error with the given HTTP status.
func TypeOf(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// retryableStatus reports whether the same request may succeed later.
func retryableStatus(status int) bool {
	switch status {
	case 408, 429, 502, 503, 504:
		return true
	}
	return false
}
