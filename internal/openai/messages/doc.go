// Package messages translates between Anthropic's Messages API and chat completions. Package
// internal/relay uses it for engines without /v1/messages and for managed requests, and
// internal/sim for its own route. docs/messages.md says what is translated and what is lost.
//
// [ToChat] translates a request, [CountToChat] one that counts tokens. [FromChat] translates an
// answer, and a [Stream] the events of a stream. Errors have the form of
// [openai.Error.MessagesBody]. The package keeps nothing between requests.
package messages
