"""Calls an OpenAI endpoint with the official Python client and checks the answers against OpenAI's API.

    BASE_URL=http://127.0.0.1:8080/v1 MODEL=chat EMBED_MODEL=embed chat.py

The script prints "ok <check>" for every check. The first check that fails ends the script with a line
that says why. More settings: API_KEY (a wrong key must then be refused), AUDIO_MODEL (default MODEL),
BUSY_MODEL (a model whose queue is full), SKIP (checks to leave out, separated by commas).
"""
import asyncio
import io
import json
import os
import sys
import wave

import openai

BASE_URL = os.environ["BASE_URL"]
API_KEY = os.environ.get("API_KEY", "")
MODEL = os.environ["MODEL"]
EMBED_MODEL = os.environ.get("EMBED_MODEL", "")
AUDIO_MODEL = os.environ.get("AUDIO_MODEL", MODEL)
BUSY_MODEL = os.environ.get("BUSY_MODEL", "")
SKIP = os.environ.get("SKIP", "").split(",")

OPTIONS = {"base_url": BASE_URL, "max_retries": 0, "timeout": 90}
MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}}]

client = openai.OpenAI(api_key=API_KEY or "none", **OPTIONS)


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def refused(error, status, code, call):
    """Checks that the call raises exactly this error class, with Sluice's error code."""
    try:
        call()
    except openai.APIStatusError as e:
        expect(type(e) is error, f"{type(e).__name__} instead of {error.__name__}: {e}")
        expect(e.status_code == status and e.code == code, f"status {e.status_code} code {e.code}, want {status} {code}")
        expect(e.response.headers.get("x-request-id"), "no x-request-id")
        return e
    raise AssertionError(f"no error, want {error.__name__}")


def check_models():
    ids = [m.id for m in client.models.list()]
    for name in filter(None, [MODEL, EMBED_MODEL]):
        expect(name in ids, f"{name} is not among {ids}")
        one = client.models.retrieve(name)
        expect(one.id == name and one.object == "model", f"retrieved {one}")


def check_chat():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=16)
    reply = raw.parse()
    choice = reply.choices[0]
    expect(reply.object == "chat.completion" and choice.message.role == "assistant", f"{reply}")
    expect(choice.message.content and choice.finish_reason in ("stop", "length"), f"{choice}")
    usage = reply.usage
    expect(usage.completion_tokens and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}")
    for header, want in {"x-request-id": None, "x-sluice-source": "engine", "x-sluice-replica": None}.items():
        got = raw.headers.get(header)
        expect(got and want in (None, got), f"{header}: {got}")


def check_one_stream(chunks):
    """Checks a streamed chat that was asked to include usage."""
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    usage = [c.usage for c in chunks if c.usage]
    expect(len(chunks) > 3 and text, f"{len(chunks)} chunks, text {text!r}")
    expect(len(reasons) == 1 and reasons[0] in ("stop", "length"), f"finish reasons {reasons}")
    expect(usage and usage[-1].completion_tokens > 0, f"usage {usage}")
    expect(len({c.id for c in chunks}) == 1, "chunks of several completions")
    return text


STREAMED = {"model": MODEL, "max_tokens": 16, "stream": True, "stream_options": {"include_usage": True}}


def check_stream():
    check_one_stream(list(client.chat.completions.create(messages=MESSAGES, **STREAMED)))


def check_stream_left_early():
    with client.chat.completions.create(messages=MESSAGES, **STREAMED) as stream:
        expect(next(iter(stream)).choices, "no first chunk")
    check_stream()


async def async_streams():
    async with openai.AsyncOpenAI(api_key=API_KEY or "none", **OPTIONS) as c:
        async def one(number):
            messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
            return check_one_stream([x async for x in await c.chat.completions.create(messages=messages, **STREAMED)])
        await asyncio.gather(*(one(n) for n in range(8)))


def check_async_streams():
    asyncio.run(async_streams())


def check_completions():
    reply = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)
    expect(reply.object == "text_completion" and reply.choices[0].text, f"{reply}")
    parts = list(client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, stream=True))
    expect("".join(p.choices[0].text for p in parts if p.choices), f"{len(parts)} parts without text")


def check_responses():
    reply = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
    expect(reply.object == "response" and reply.output_text, f"{reply}")
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=16) as stream:
        kinds = [e.type for e in stream]
    expect(kinds[0] == "response.created" and "response.output_text.delta" in kinds, f"events {kinds}")
    expect(kinds[-1] in ("response.completed", "response.incomplete"), f"last event {kinds[-1]}")


def check_tools():
    parts = {}
    finish = None
    question = [{"role": "user", "content": "Use a tool to find the weather in Lisbon."}]
    for chunk in client.chat.completions.create(model=MODEL, messages=question, tools=TOOLS, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                part = parts.setdefault(call.index, {"name": "", "arguments": ""})
                part["name"] += call.function.name or ""
                part["arguments"] += call.function.arguments or ""
    expect(finish == "tool_calls" and parts, f"finish reason {finish}, calls {parts}")
    for part in parts.values():
        expect(part["name"] == "get_weather", f"tool {part['name']}")
        expect(isinstance(json.loads(part["arguments"]), dict), f"arguments {part['arguments']}")


def check_embeddings():
    reply = client.embeddings.create(model=EMBED_MODEL, input=["one text", "another text"])
    lengths = {len(d.embedding) for d in reply.data}
    expect([d.index for d in reply.data] == [0, 1] and len(lengths) == 1 and lengths.pop() > 1, f"{reply}")
    expect(any(reply.data[0].embedding) and reply.data[0].embedding != reply.data[1].embedding, "texts without a difference")


def check_transcription():
    recording = io.BytesIO()
    with wave.open(recording, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes(bytes(2 * 16000))
    reply = client.audio.transcriptions.create(model=AUDIO_MODEL, file=("silence.wav", recording.getvalue()))
    expect(reply.text, f"{reply}")


def check_unknown_model():
    create = client.chat.completions.create
    refused(openai.NotFoundError, 404, "model_not_found", lambda: create(model="no-such-model", messages=MESSAGES))
    refused(openai.NotFoundError, 404, "model_not_found", lambda: create(model="no-such-model", messages=MESSAGES, stream=True))
    refused(openai.NotFoundError, 404, "model_not_found", lambda: client.models.retrieve("no-such-model"))


def check_wrong_key():
    for key in ("sk-wrong", API_KEY + "x"):
        stranger = openai.OpenAI(api_key=key, **OPTIONS)
        create = stranger.chat.completions.create
        refused(openai.AuthenticationError, 401, "invalid_api_key", lambda: create(model=MODEL, messages=MESSAGES))
        refused(openai.AuthenticationError, 401, "invalid_api_key", lambda: stranger.models.list())


def check_bad_body():
    def post(body):
        return lambda: client.post("/chat/completions", body=body, cast_to=object)
    refused(openai.BadRequestError, 400, "invalid_request", post({"model": 7, "messages": MESSAGES}))
    refused(openai.BadRequestError, 400, "invalid_request", post({"messages": MESSAGES}))


def check_full_queue():
    e = refused(openai.RateLimitError, 429, "queue_full",
                lambda: client.chat.completions.create(model=BUSY_MODEL, messages=MESSAGES))
    expect(int(e.response.headers.get("retry-after", "0")) >= 1, "no Retry-After")


CHECKS = {
    "models": check_models,
    "chat": check_chat,
    "streamed chat": check_stream,
    "streamed chat left early": check_stream_left_early,
    "async streamed chats": check_async_streams,
    "completions": check_completions,
    "responses": check_responses,
    "streamed tool call": check_tools,
    "embeddings": EMBED_MODEL and check_embeddings,
    "transcription": AUDIO_MODEL and check_transcription,
    "unknown model": check_unknown_model,
    "wrong key": API_KEY and check_wrong_key,
    "bad body": check_bad_body,
    "full queue": BUSY_MODEL and check_full_queue,
}


def main():
    print("openai for Python", openai.__version__, flush=True)
    for name, check in CHECKS.items():
        if not check or name in SKIP:
            continue
        try:
            check()
        except Exception as e:
            sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
        print("ok", name, flush=True)


main()
