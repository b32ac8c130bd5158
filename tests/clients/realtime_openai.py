"""Checks with the official, unmodified Python client that OpenAI's realtime protocol holds conversations of text.

    BASE_URL=http://127.0.0.1:8080/v1 REALTIME_URL=ws://127.0.0.1:8080/v1/realtime MODEL=a API_KEY=sk-… realtime_openai.py

The model must be served by a simulated engine (`sluice sim`). The script prints "ok <check>" for every check. The first
check that fails ends the script with a line that says why.
"""
import asyncio
import json
import os
import sys

import openai
import websockets

MODEL = os.environ["MODEL"]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]

client = openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0)


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def until(connection, kind):
    """Returns the events up to the first of this kind."""
    events = []
    async for event in connection:
        events.append(event)
        if event.type == kind:
            return events
    raise AssertionError(f"the socket was closed after {[e.type for e in events]}")


async def answer(connection, text, **response):
    await connection.conversation.item.create(item=user(text))
    await connection.response.create(response=response)
    return await until(connection, "response.done")


async def check_conversation():
    async with client.realtime.connect(model=MODEL) as c:
        first = await c.recv()
        expect(first.type == "session.created" and first.session.model == MODEL, first)
        await c.session.update(session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be brief."})
        expect((await until(c, "session.updated"))[-1].session.instructions == "Be brief.", "no instructions")
        sizes = []
        for text in ("Tell me of the sea.", "And of the wind?"):
            events = await answer(c, text)
            kinds, done = [e.type for e in events], events[-1].response
            said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
            for kind in ("conversation.item.added", "response.created", "response.output_item.added", "response.content_part.added",
                         "response.output_text.done", "response.content_part.done", "response.output_item.done"):
                expect(kind in kinds, f"no {kind} in {kinds}")
            expect(done.status == "completed" and said and done.output[0].content[0].text == said, done)
            expect(done.usage.output_tokens > 0, done.usage)
            sizes.append(done.usage.input_tokens)
        expect(sizes[1] > sizes[0], f"the conversation does not grow: {sizes}")


async def check_cancel():
    async with client.realtime.connect(model=MODEL) as c:
        await c.conversation.item.create(item=user("Write a long text."))
        await c.response.create()
        await until(c, "response.output_text.delta")
        await c.response.cancel()
        done = (await until(c, "response.done"))[-1].response
        expect(done.status == "cancelled" and done.status_details.reason == "client_cancelled", done)


async def check_tools():
    async with client.realtime.connect(model=MODEL) as c:
        await c.session.update(session={"type": "realtime", "tools": TOOLS})
        events = await answer(c, "Use a tool to find the weather in Lisbon.")
        call = events[-1].response.output[0]
        expect(call.type == "function_call" and call.name == "get_weather" and "city" in json.loads(call.arguments), call)
        await c.conversation.item.create(item={"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        await c.response.create(response={"tool_choice": "none"})
        done = (await until(c, "response.done"))[-1].response
        expect(done.status == "completed" and done.output[0].type == "message", done)


async def check_refusals():
    async with client.realtime.connect(model=MODEL) as c:
        await c.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        error = (await until(c, "error"))[-1].error
        expect("Audio is not served" in error.message and error.code == "invalid_request", error)
        await c.input_audio_buffer.append(audio="AAAA")
        expect("Audio is not served" in (await until(c, "error"))[-1].error.message, "audio is taken")
        events = await answer(c, "Still there?")
        expect(events[-1].response.status == "completed", "the session is broken after an error")
    async with client.realtime.connect(model="nothing") as c:
        events = await answer(c, "Hello?")
        done = events[-1].response
        expect(done.status == "failed" and done.status_details.error.code == "model_not_found", done)


async def check_first_message():
    """A client that is not known for one of OpenAI's is told by its first message."""
    headers = {"authorization": "Bearer " + os.environ["API_KEY"]}
    async with websockets.connect(os.environ["REALTIME_URL"], additional_headers=headers) as ws:
        await ws.send(json.dumps({"type": "session.update", "session": {"type": "realtime", "model": MODEL}}))
        kinds = [json.loads(await ws.recv())["type"] for _ in range(2)]
        expect(kinds == ["session.created", "session.updated"], kinds)
    async with websockets.connect(os.environ["REALTIME_URL"] + "?model=" + MODEL, additional_headers=headers) as ws:
        expect(json.loads(await ws.recv())["type"] == "session.created", "a silent client is not greeted")


CHECKS = {
    "conversation": check_conversation,
    "cancel": check_cancel,
    "tools": check_tools,
    "refusals": check_refusals,
    "first message": check_first_message,
}


async def main():
    print("openai for Python", openai.__version__, flush=True)
    for name, check in CHECKS.items():
        try:
            await asyncio.wait_for(check(), 90)
        except Exception as e:
            sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
        print("ok", name, flush=True)


asyncio.run(main())
