// Package realtime serves GET /v1/realtime: conversations over a WebSocket, one after the other and turn by turn, which the client can
// hold up, stop and change while they run.
//
// Every message is one JSON object in one text frame, and has a "type". A field of a message that is not listed here is refused.
//
// # From the client
//
//   - start begins a turn: one answer of the model.
//     {"type":"start", "request_id":"abc", "model":"m", "messages":[…], "params":{"temperature":0.7}, "tools":[…], "credit":64}
//     messages begins a new conversation. Without it the conversation goes on, with the message {"role":…,"content":…} of the field
//     "message" added if there is one. model, tools and params are kept for later turns until they are given again; the model may
//     also come in the query, /v1/realtime?model=m. request_id names the turn as it does for other requests: the same start on another
//     socket joins it. credit asks for flow control, see below.
//   - pause holds token and tool_call messages back at once, and with them the engine; resume lets them go on. To pause or to
//     resume twice is once.
//   - cancel stops the engine and ends the turn; a final with finish_reason "cancelled" follows.
//   - update {"params":{…}} changes parameters from the next turn on. A null takes one away.
//   - tool_result {"tool_call_id":"…","content":"…"} answers a tool call of the last turn; content is a text or a list of parts. It may come
//     while the turn still runs. When all calls of a turn are answered the next turn starts by itself, with the same request_id.
//   - tool_cancel {"tool_call_id":"…"} answers it with a note that the user cancelled the call.
//   - credit {"tokens":n} allows n more messages.
//
// pause, resume and cancel may name the turn that they mean by request_id; they are refused when another one, or none, runs.
//
// params are those of a chat completion, passed on as they are: temperature, top_p, max_tokens, stop, seed, presence_penalty,
// frequency_penalty, response_format, tool_choice and whatever else the engine knows; timeout_ms and max_duration_ms are Sluice's. n can only be
// 1. model, messages, tools, request_id, stream and stream_options are not among them. A tool_choice that forces a call holds for one turn, since the turn
// that follows could only call again.
//
// # From the server
//
//   - token {"request_id","delta"}: text of the answer, usually one token. kind is "reasoning" or "refusal" when it is not the answer
//     itself, choice is the number of the choice when it is not 0.
//   - tool_call {"request_id","id","index","name","arguments","done"}: a fragment of the arguments of a call, as the JSON text that they are; id and
//     name are in every fragment. At the end of the turn each call has a last one without arguments and with done true.
//   - final {"request_id","finish_reason","usage"}: the turn has ended well, or was cancelled. usage is prompt_tokens, completion_tokens,
//     total_tokens and prompt_tokens_details.cached_tokens; where the engine did not tell, only completion_tokens, counted in
//     messages, and "estimated":true.
//   - error {"request_id","error":{"code","type","message","param","retryable","retry_after_ms"}}: with a request_id the turn of that name has
//     ended, or could not begin. Without one it is about the client's last message, which changed nothing. Codes are those of the HTTP API.
//   - heartbeat {"request_id","phase","position","waited_ms","note"}: the turn waits; phase is queued, starting, prefill, decode, or paused and
//     credit when it is the client that is waited for. position in the queue and note come when they are known.
//
// # Conversation
//
// Answers join the conversation, their reasoning does not. A turn that fails adds nothing and takes its "message" back; a start
// without messages tries the rest again. A cancelled turn leaves the text that was sent, without its tool calls; when there was none it
// is as if it had failed. Calls of an answer that was cut short (finish_reason length, content_filter) count as not made. While calls wait
// for answers only tool_result, tool_cancel and a start with messages lead on. A second start while a turn runs is refused: request_id_conflict
// when it has the same request_id, else invalid_request; the turn goes on.
//
// # Flow control
//
// Without "credit" in start only TCP and pause hold the server up. With it at most so many token and tool_call messages are sent until
// credit gives more; what is left over serves the turns that follow by tool results. final, error, heartbeat and a tool_call with done
// take none. The engine is held up meanwhile, and its replica with it, so a turn that can send nothing for Limits.Hold ends as client_too_slow.
//
// # Close codes
//
//   - 1000: the client closed.
//   - 1001: the gateway goes; turns that ran were allowed to end if there was time.
//   - 1003: a binary message.
//   - 1008: the client may not go on: it took no message for Limits.Write, or its tenant is no more.
//   - 1009: a message over Limits.Message.
//   - 1011: a fault of the gateway's own.
//   - 1013: too many sockets are open, of all or of the tenant; later there may be room.
//
// A socket on which nothing is heard for Handler.Heartbeat is pinged; without an answer it is dropped. A client that is gone, or
// dropped, frees the engine at once.
//
// The subprotocol "realtime" is chosen when it is offered. Browsers, which cannot set headers here, offer their key beside it as
// "openai-insecure-api-key.<key>"; that is read before a request comes here and is never answered.
package realtime
