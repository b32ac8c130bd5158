package sim

import (
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
)

// messagesPath is the path of the Messages API.
const messagesPath = "/v1/messages"

// messages answers POST /v1/messages by way of a chat, as vLLM and SGLang do.
func (h *handler) messages() error { return h.chatFor(messages.ToChat) }

// countTokens answers POST /v1/messages/count_tokens.
func (h *handler) countTokens() error { return h.chatFor(messages.CountToChat) }

// chatFor answers a request that is translated into a chat.
func (h *handler) chatFor(toChat func([]byte) ([]byte, messages.Options, *openai.Error)) error {
	h.translation = new(messages.Stream)
	body, options, fault := toChat(h.requestBody)
	if fault != nil {
		return badRequest(fault.Param, "%s", fault.Message)
	}
	h.requestBody, h.translation.Options = body, options
	return h.chat()
}

func (e *apiError) messagesBody() []byte {
	return (&openai.Error{Code: openai.CodeOfStatus(e.status), Status: e.status, Message: e.message, Param: e.param}).MessagesBody()
}
