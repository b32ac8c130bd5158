// Package realtime serves GET /v1/realtime: conversations over a WebSocket, which a client can
// pause, cancel and change while they run. internal/gateway uses it behind Envoy.
//
// A turn is one answer of the model in a conversation. A client begins a turn with a start message
// or by answering all tool calls of the turn before. Each turn is one call of the relay.
//
// Every message is one JSON object in one text frame, and has a "type". A field of a message that
// is not listed here is refused.
//
// # From the client
//
//   - start begins a turn, for example {"type":"start", "request_id":"abc", "model":"m",
//     "messages":[…], "params":{"temperature":0.7}, "tools":[…], "credit":64}. With messages a new
//     conversation begins. Without messages the conversation continues, and the field "message",
//     {"role":…,"content":…}, adds a message to it. model, tools and params are kept for later
//     turns until they are given again; the model may also come in the query,
//     /v1/realtime?model=m. request_id names the turn as it does for other requests: the same start
//     on another socket joins it. credit asks for flow control, see below.
//   - pause holds token and tool_call messages back at once, and with them the engine; resume sends
//     them again. A second pause or resume has no effect.
//   - cancel stops the engine and ends the turn; a final with finish_reason "cancelled" follows.
//   - update {"params":{…}} changes parameters from the next turn on. A null removes a parameter.
//   - tool_result {"tool_call_id":"…","content":"…"} answers a tool call of the last turn; content
//     is a text or a list of parts. The message may come while the turn still runs. When all calls
//     of a turn are answered, the next turn starts by itself with the same request_id.
//   - tool_cancel {"tool_call_id":"…"} answers a tool call with a note that the user cancelled it.
//   - credit {"tokens":n} allows n more messages.
//
// pause, resume and cancel may name their turn by request_id. They are refused when that turn does
// not run.
//
// params are those of a chat completion, passed on as they are. They are temperature, top_p,
// max_tokens, stop, seed, presence_penalty, frequency_penalty, response_format, tool_choice and
// whatever else the engine knows. timeout_ms and max_duration_ms are Sluice's. n can only be 1.
// model, messages, tools, request_id, stream and stream_options are not among them. A tool_choice
// that forces a call holds for one turn, because the next turn could otherwise only call again.
//
// # From the server
//
//   - token {"request_id","delta"}: text of the answer, usually one token. kind is "reasoning" or
//     "refusal" when it is not the answer itself, choice is the number of the choice when it is not
//     0.
//   - tool_call {"request_id","id","index","name","arguments","done"}: a fragment of the arguments
//     of a call, as the JSON text that they are; id and name are in every fragment. At the end of
//     the turn each call has a last one without arguments and with done true.
//   - final {"request_id","finish_reason","usage"}: the turn was successful, or was cancelled.
//     usage is prompt_tokens, completion_tokens, total_tokens and
//     prompt_tokens_details.cached_tokens; if the engine did not report it, only
//     completion_tokens, counted in messages, and "estimated":true.
//   - error {"request_id","error":{"code","type","message","param","retryable","retry_after_ms"}}:
//     with a request_id the turn of that name has ended, or could not begin. Without one it is
//     about the client's last message, which changed nothing. Codes are those of the HTTP API.
//   - heartbeat {"request_id","phase","position","waited_ms","note"}: the turn waits; phase is
//     queued, starting, prefill, decode, or paused and credit when the turn waits for the
//     client. position in the queue and note come when they are known.
//
// # Conversation
//
// Answers are added to the conversation, their reasoning is not. A turn that fails adds nothing,
// and its "message" is removed; a start without messages tries again with the messages before. A
// cancelled turn adds the text that was sent, without its tool calls. Without any text it counts as
// failed. Tool calls of an answer that was cut short (finish_reason length, content_filter) are
// dropped. While tool calls wait for answers, only tool_result, tool_cancel and a start with
// messages continue the conversation. A second start while a turn runs is refused:
// request_id_conflict when it has the same request_id, else invalid_request; the turn goes on.
//
// # Flow control
//
// Without "credit" in start only TCP and pause hold the server back. With credit, the server sends
// at most so many token and tool_call messages until a credit message allows more. Credit that is
// left serves the turns that follow by tool results. final, error, heartbeat and a tool_call with
// done need no credit. The engine and its replica are held up meanwhile, so a turn that can send
// nothing for Limits.Hold ends as client_too_slow.
//
// # OpenAI's protocol
//
// The same path speaks the part of OpenAI's realtime protocol that is about text. A handshake with
// the headers of OpenAI's clients (X-Stainless-Lang, OpenAI-Beta) or with their subprotocol
// openai-beta.realtime-v1 chooses it. So does a first message with one of its types, such as
// session.update. A client that names its model in the query and is silent gets session.created
// after 300 ms, and may still speak Sluice's own protocol.
//
//   - From the client: session.update (instructions, tools of the type function, tool_choice,
//     temperature, max_output_tokens, parallel_tool_calls, reasoning.effort, model),
//     conversation.item.create (messages of text and images, function_call,
//     function_call_output), response.create with the same settings for one response and with
//     metadata, response.cancel.
//   - From the server: session.created, session.updated, conversation.item.added and .done, also
//     for the items of a response, response.created, response.output_item.added and .done,
//     response.content_part.added and .done, response.output_text.delta and .done,
//     response.function_call_arguments.delta and .done, response.done, error. With the header
//     OpenAI-Beta the names of the first version: response.text.delta and .done,
//     conversation.item.created.
//
// Everything else is refused by name with an error event. That is audio, items of other types,
// changes of items, items that are not to be the last one, and responses outside of the
// conversation. Settings of audio are ignored beside modalities of text alone. Items that come
// while a response is generated join the conversation behind it. The engine gets the output of a
// function behind its call, whatever came between, and no call without an output. Heartbeats are
// not sent; the server pings.
//
// # Close codes
//
//   - 1000: the client closed.
//   - 1001: the gateway stops. Running turns were allowed to end if there was time.
//   - 1003: a binary message.
//   - 1008: the client accepted no message for Limits.Write, or its key or tenant was removed.
//   - 1009: a message over Limits.Message.
//   - 1011: an internal error of the gateway.
//   - 1013: too many sockets are open, in all or of the tenant. A later attempt may succeed.
//   - 4408: no turn ran and the client sent no message for Limits.Idle.
//
// The server pings a client from which it has received nothing for Handler.Heartbeat, and drops a
// client that does not answer. The engine of a client that is gone or dropped is free at once.
//
// The subprotocol "realtime" is chosen when it is offered. Browsers cannot set headers here, and
// offer their key beside it as "openai-insecure-api-key.<key>". ext_authz reads the key. The server
// never chooses that subprotocol.
package realtime
