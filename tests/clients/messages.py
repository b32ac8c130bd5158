"""Calls the Messages API with Anthropic's Python client and checks the answers.

    BASE_URL=http://127.0.0.1:8080 MODEL=chat API_KEY=sk-… messages.py

The script prints "ok <check>" for every check. The first check that fails ends the script with a line
that says why. EMBED_MODEL is a model that does not serve the Messages API. FAULTS=1 says that a
broken stream ends with an error event, as it does on the way through the relay.
"""
import os
import sys

import anthropic

MODEL = os.environ["MODEL"]
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]
TOOLS = [{"name": "get_weather", "description": "The weather of a city",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]
WEATHER = [{"role": "user", "content": "Use a tool to find the weather in Lisbon."}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

client = anthropic.Anthropic(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0, timeout=90)


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def check_message():
    reply = client.messages.create(model=MODEL, max_tokens=8, system="Be brief.", messages=MESSAGES)
    expect(reply.type == "message" and reply.role == "assistant" and reply.content[0].text, reply)
    expect(reply.stop_reason == "max_tokens" and reply.usage.output_tokens == 8 and reply.usage.input_tokens > 0, reply)
    expect(reply._request_id, "an answer without a request id")


def check_stream():
    with client.messages.stream(model=MODEL, max_tokens=16, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text and final.content[0].text == text and final.stop_reason in ("max_tokens", "end_turn"), final)
    expect(final.usage.output_tokens > 0, final.usage)
    kinds = [e.type for e in client.messages.create(model=MODEL, max_tokens=16, messages=MESSAGES, stream=True)]
    expect(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds)


def check_conversation():
    reply = client.messages.create(model=MODEL, max_tokens=16, system=[{"type": "text", "text": "Be brief."}], stop_sequences=["zzz"], messages=[
        {"role": "user", "content": [{"type": "text", "text": "What is this?"},
                                     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}]},
        {"role": "assistant", "content": "A pixel."}, {"role": "user", "content": "Which colour?"}])
    expect(reply.content[0].text, reply)


def check_tools():
    with client.messages.stream(model=MODEL, max_tokens=64, messages=WEATHER, tools=TOOLS) as stream:
        reply = stream.get_final_message()
    calls = [b for b in reply.content if b.type == "tool_use"]
    expect(calls and reply.stop_reason == "tool_use" and calls[0].name == "get_weather" and calls[0].input["city"], reply)
    whole = client.messages.create(model=MODEL, max_tokens=64, messages=WEATHER, tools=TOOLS, tool_choice={"type": "any"})
    expect([b.type for b in whole.content if b.type == "tool_use"], whole)
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": calls[0].id, "content": "Rain."}]}
    reply = client.messages.create(model=MODEL, max_tokens=16, tools=TOOLS, tool_choice={"type": "none"},
                                   messages=WEATHER + [{"role": "assistant", "content": reply.content}, answer])
    expect(reply.content, reply)


def check_count_tokens():
    short = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    long = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "the sea " * 50}], system="Be brief.").input_tokens
    expect(0 < short < long, f"{short} and {long} tokens")


def refused(kind, call):
    try:
        call()
    except anthropic.APIStatusError as e:
        expect(type(e) is kind, f"{type(e).__name__} instead of {kind.__name__}: {e}")
        expect(e.body["type"] == "error" and e.body["error"]["type"] and e.body["error"]["message"], e.body)
        expect(e.request_id and e.request_id == e.response.headers["x-request-id"], f"request id {e.request_id} of {e.response.headers}")
        return e
    raise AssertionError(f"no error, want {kind.__name__}")


def check_errors():
    create = client.messages.create
    refused(anthropic.NotFoundError, lambda: create(model="none", max_tokens=1, messages=MESSAGES))
    refused(anthropic.BadRequestError, lambda: create(model=os.environ["EMBED_MODEL"], max_tokens=1, messages=MESSAGES))
    refused(anthropic.BadRequestError, lambda: create(model=MODEL, max_tokens=1, messages=[]))
    refused(anthropic.AuthenticationError, lambda: client.with_options(api_key="sk-none").messages.create(model=MODEL, max_tokens=1, messages=MESSAGES))
    late = refused(anthropic.RateLimitError, lambda: create(model=MODEL, max_tokens=1, messages=MESSAGES, extra_headers={"x-sim-fault": "status=429"}))
    expect(late.response.headers.get("retry-after"), late.response.headers)


def check_models():
    names = [m.id for m in client.models.list() if m.type == "model" and m.display_name == m.id and m.created_at.year > 2000]
    expect(MODEL in names, names)
    expect(client.models.retrieve(MODEL).display_name == MODEL, "another model")
    refused(anthropic.NotFoundError, lambda: client.models.retrieve("none"))
    refused(anthropic.AuthenticationError, lambda: client.with_options(api_key="sk-none").models.list())


def check_broken_stream():
    if not os.environ.get("FAULTS"):
        return
    try:
        with client.messages.stream(model=MODEL, max_tokens=32, messages=MESSAGES, extra_headers={"x-sim-fault": "cut=4"}) as stream:
            text = "".join(stream.text_stream)
    except anthropic.APIStatusError as e:
        expect(e.body["error"]["code"] == "upstream_truncated", e.body)
        return
    raise AssertionError(f"a broken stream has ended well: {text}")


def check_client_that_leaves():
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream:
        expect(next(iter(stream)).type == "message_start", "no first event")
    check_message()


for name, check in [(n, f) for n, f in globals().copy().items() if n.startswith("check_")]:
    try:
        check()
    except Exception as e:
        sys.exit(f"FAILED {name} of {MODEL} with anthropic {anthropic.__version__}: {type(e).__name__}: {e}")
    print("ok", name)
