"""Reads managed streams of Sluice with the official, unmodified Python client.

    BASE_URL=http://127.0.0.1:8080/v1 ENGINE_URL=http://127.0.0.1:9000 MANAGED_MODEL=a AUTO_MODEL=b API_KEY=sk-… managed.py

Each model must be served by one simulated engine (`sluice sim`), with heartbeats far below a second.
ENGINE_URL is the engine of AUTO_MODEL. The script prints "ok <check>" for every check. The first check
that fails ends the script with a line that says why.
"""
import asyncio
import json
import os
import sys
import urllib.request

import openai

MANAGED, AUTO = os.environ["MANAGED_MODEL"], os.environ["AUTO_MODEL"]
OPTIONS = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0, "timeout": 90}
STALL = {"x-sim-fault": "stall=3:700ms"}
LONG_STALL = {"x-sim-fault": "stall=3:2s"}  # has several heartbeats on a busy machine, too
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

client = openai.OpenAI(**OPTIONS)
stalling = openai.OpenAI(**OPTIONS, default_headers=STALL)
chunked = openai.OpenAI(**OPTIONS, default_headers=STALL | {"x-sluice-heartbeat": "chunk"})


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def chat(model, text, **more):
    """Returns the arguments of a streamed chat of exactly max_tokens tokens."""
    body = {"ignore_eos": True} | more.pop("extra_body", {})
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 20, "extra_body": body,
            "stream_options": {"include_usage": True}} | more


def said(chunks, reason="length"):
    """Returns the text of a stream, which must end with that finish reason and contain its usage."""
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    usage = [c.usage for c in chunks if c.usage]
    expect(text and reasons == [reason], f"finish reasons {reasons} after {text!r}")
    expect(usage and usage[-1].completion_tokens > 0 and usage[-1].prompt_tokens > 0, f"usage {usage}")
    return text


def check_heartbeats():
    want = said(list(client.chat.completions.create(**chat(MANAGED, "heartbeats"))))
    for model in (MANAGED, AUTO):
        # The client hides heartbeats, so the script reads them from the response below it.
        ask = chat(model, "raw", extra_body={"max_duration_ms": 600000}, extra_headers=LONG_STALL)
        with client.chat.completions.with_streaming_response.create(**ask) as raw:
            comments = [line for line in raw.iter_lines() if line.startswith(":")]
        expect(sum("decode" in c for c in comments) >= 2, f"heartbeats {comments}")
    chunks = list(stalling.chat.completions.create(**chat(MANAGED, "heartbeats")))
    expect(said(chunks) == want, "another text between heartbeats")
    expect(len({c.id for c in chunks}) == 1, "chunks of several completions")


def check_empty_chunks():
    want = said(list(client.chat.completions.create(**chat(MANAGED, "chunks"))))
    chunks = list(chunked.chat.completions.create(**chat(MANAGED, "chunks")))
    expect([c for c in chunks if c.id == "heartbeat"], "no heartbeat among the chunks")
    expect(said(chunks) == want, "another text between empty chunks")
    parts = {"model": MANAGED, "messages": [{"role": "user", "content": "chunks"}]}  # the client raises when an answer ends for its length
    wholes = []
    for c in (client, chunked):
        with c.chat.completions.stream(**parts) as stream:  # the client puts the answer together itself
            wholes.append(stream.get_final_completion().choices[0].message.content)
    expect(wholes[0] and wholes[0] == wholes[1], f"put together: {wholes}")


def check_error_after_200():
    for fault in ("cut=4", "eof=4"):
        got = []
        try:
            for chunk in client.chat.completions.create(**chat(MANAGED, fault, extra_headers={"x-sim-fault": fault})):
                got.append(chunk)
        except openai.APIError as e:
            expect(e.code == "upstream_truncated" and e.body["retryable"] and e.body["retry_after_ms"] > 0, f"{fault}: {e.code} {e.body}")
            expect(got, f"{fault}: nothing came before it")
            continue
        raise AssertionError(f"{fault}: no error after {len(got)} chunks")


def check_timeout():
    for model in (MANAGED, AUTO):
        chunks = list(client.chat.completions.create(**chat(model, "long", max_tokens=5000, extra_body={"timeout_ms": 4000})))
        said(chunks)
        expect(chunks[-1].usage, f"the last chunk is {chunks[-1]}")
        expect(chunks[-1].usage.completion_tokens < 5000, "the time did not bound the stream")


def engine(path):
    with urllib.request.urlopen(os.environ["ENGINE_URL"] + path, timeout=90) as r:
        return json.load(r)


def generations(mark):
    """Counts the requests with this mark that the engine has received."""
    return sum(r["headers"].get("x-mark") == mark for r in engine("/sim/requests")["requests"])


async def join():
    async with openai.AsyncOpenAI(**OPTIONS, default_headers={"x-mark": "python"}) as c:
        begun = asyncio.Event()
        ask = chat(AUTO, "join", max_tokens=60, extra_body={"request_id": "joined by python"})

        async def one(after=None):
            if after:
                await after.wait()
            chunks = []
            async for chunk in await c.chat.completions.create(**ask):
                chunks.append(chunk)
                begun.set()
            return said(chunks), {x.id for x in chunks}

        answers = await asyncio.gather(one(), one(begun), one(begun))
        late = await one()  # and one when it is over
        expect(all(a == late for a in answers), f"several answers: {answers} {late}")
    expect(generations("python") == 1, f"{generations('python')} generations")
    try:
        client.chat.completions.create(**chat(AUTO, "another", extra_body={"request_id": "joined by python"}))
    except openai.ConflictError as e:
        expect(e.code == "request_id_conflict", f"{e}")
        return
    raise AssertionError("another body under the same request_id was taken")


async def heartbeats_at_once():
    async with openai.AsyncOpenAI(**OPTIONS, default_headers=STALL) as c:
        async def one(model, number):
            return said([x async for x in await c.chat.completions.create(**chat(model, f"number {number}"))])
        await asyncio.gather(*(one(model, n) for n in range(4) for model in (MANAGED, AUTO)))


def check_tools():
    ask = chat(MANAGED, "Use a tool to find the weather in Lisbon.", tools=TOOLS)
    del ask["max_tokens"], ask["extra_body"]
    for c in (client, stalling, chunked):
        parts, finish = {}, None
        for chunk in c.chat.completions.create(**ask):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or []:
                    part = parts.setdefault(call.index, {"name": "", "arguments": ""})
                    part["name"] += call.function.name or ""
                    part["arguments"] += call.function.arguments or ""
        expect(finish == "tool_calls" and parts, f"finish reason {finish}, calls {parts}")
        for part in parts.values():
            expect(part["name"] == "get_weather" and "city" in json.loads(part["arguments"]), f"{part}")


def check_responses():
    def text_of(c):
        with c.responses.stream(model=MANAGED, input="hello", max_output_tokens=20) as stream:
            events = list(stream)
        kinds, final = [e.type for e in events], events[-1].response
        expect(kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), f"events {kinds}")
        expect(final.usage.output_tokens > 0 and final.usage.input_tokens > 0, f"usage {final.usage}")
        return final.output_text
    want = text_of(client)
    expect(want and text_of(stalling) == want and text_of(chunked) == want, "another text between heartbeats")
    with stalling.responses.with_streaming_response.create(model=MANAGED, input="hello", stream=True) as raw:
        expect(any(line.startswith(":") for line in raw.iter_lines()), "no heartbeat")
    try:
        list(client.responses.create(model=MANAGED, input="hello", stream=True, extra_headers={"x-sim-fault": "cut=6"}))
    except openai.APIError as e:
        expect(e.code == "upstream_truncated", f"{e.code}: {e}")
        return
    raise AssertionError("no error of a stream that was cut")


CHECKS = {
    "heartbeats": check_heartbeats,
    "heartbeats as empty chunks": check_empty_chunks,
    "heartbeats in async streams": lambda: asyncio.run(heartbeats_at_once()),
    "error after 200": check_error_after_200,
    "timeout_ms": check_timeout,
    "request_id joins": lambda: asyncio.run(join()),
    "tool calls": check_tools,
    "responses": check_responses,
}


def main():
    print("openai for Python", openai.__version__, flush=True)
    for name, check in CHECKS.items():
        try:
            check()
        except Exception as e:
            sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
        print("ok", name, flush=True)


main()
