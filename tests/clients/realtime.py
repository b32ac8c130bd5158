"""Holds conversations over Sluice's /v1/realtime with the Python library websockets.

    REALTIME_URL=ws://127.0.0.1:8080/v1/realtime ENGINE_URL=http://127.0.0.1:9000 MODEL=m API_KEY=sk-… realtime.py

MODEL must be served by one simulated engine (`sluice sim`) at ENGINE_URL, with about 10 ms between
tokens and with heartbeats far below a second. The script prints "ok <check>" for every check. The
first check that fails ends the script with a line that says why.
"""
import asyncio
import json
import os
import sys
import urllib.request

import websockets

URL, MODEL, ENGINE = os.environ["REALTIME_URL"], os.environ["MODEL"], os.environ["ENGINE_URL"]
KEY = {"Authorization": "Bearer " + os.environ["API_KEY"]}
PATIENCE = 90  # seconds, for a busy machine


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def start(tokens, **more):
    return {"type": "start", "model": MODEL, "messages": [{"role": "user", "content": "hello"}],
            "params": {"max_tokens": tokens, "ignore_eos": True}} | more


async def say(socket, message):
    await socket.send(json.dumps(message))


async def hear(socket, kind, number=1):
    """Returns all messages up to the number-th message of that type."""
    heard = []
    async with asyncio.timeout(PATIENCE):
        while sum(m["type"] == kind for m in heard) < number:
            heard.append(json.loads(await socket.recv()))
            expect(heard[-1]["type"] != "error", f"{heard[-1]}")
    return heard


def of(kind, heard):
    return [m for m in heard if m["type"] == kind]


async def idle():
    """Waits until the engine runs no request."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with urllib.request.urlopen(ENGINE + "/sim/state", timeout=PATIENCE) as r:
                state = json.load(r)
            if state["running"] + state["waiting"] == 0:
                return
            await asyncio.sleep(0.02)


async def check_turns(socket):
    await say(socket, start(12, request_id="one"))
    heard = await hear(socket, "final")
    final = heard[-1]
    expect(len(of("token", heard)) == 12 and final["finish_reason"] == "length" and final["request_id"] == "one", f"{heard}")
    expect(final["usage"]["completion_tokens"] == 12 and final["usage"]["prompt_tokens"] > 0, f"{final}")
    await say(socket, {"type": "update", "params": {"max_tokens": 3}})
    await say(socket, {"type": "start", "message": {"role": "user", "content": "go on"}})
    second = (await hear(socket, "final"))[-1]["usage"]
    expect(second["completion_tokens"] == 3 and second["prompt_tokens"] > final["usage"]["prompt_tokens"], f"{second}")


async def silent(socket):
    """Returns the messages up to the point where no token has come for many token intervals. Heartbeats may still come."""
    heard = []
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    while not of("final", heard):
        try:
            async with asyncio.timeout_at(until):
                heard.append(json.loads(await socket.recv()))
        except TimeoutError:
            return heard
        expect(heard[-1]["type"] != "error", f"{heard[-1]}")
        if heard[-1]["type"] == "token":
            until = loop.time() + 0.5
    raise AssertionError(f"the turn went on: {len(heard)} messages")


async def check_pause(socket):
    await say(socket, start(300))
    await hear(socket, "token", 3)
    await say(socket, {"type": "pause"})
    async with asyncio.timeout(PATIENCE):
        while (await hear(socket, "heartbeat"))[-1]["phase"] != "paused":
            pass  # tokens that were on their way
    expect([m.get("phase") for m in await hear(socket, "heartbeat")] == ["paused"], "tokens come in a pause")
    await say(socket, {"type": "resume"})
    heard = await hear(socket, "final")
    expect(of("token", heard) and heard[-1]["usage"]["completion_tokens"] == 300, f"{heard}")


async def check_credit(socket):
    await say(socket, start(20, credit=4))
    for credit in (4, 6):
        await hear(socket, "token", credit)
        expect(not of("token", await silent(socket)), f"more tokens than a credit of {credit}")
        await say(socket, {"type": "credit", "tokens": 6 if credit == 4 else 1000})
    heard = await hear(socket, "final")
    expect(len(of("token", heard)) == 10, f"{len(of('token', heard))} tokens of the last 10")


async def check_cancel(socket):
    await say(socket, start(100000, request_id="long"))
    await hear(socket, "token", 3)
    await say(socket, {"type": "cancel", "request_id": "long"})
    final = (await hear(socket, "final"))[-1]
    expect(final["finish_reason"] == "cancelled", f"{final}")
    await idle()
    await check_turns(socket)  # the socket goes on


async def check_left():
    async with websockets.connect(URL, additional_headers=KEY) as socket:
        await say(socket, start(100000))
        await hear(socket, "token", 3)
    await idle()


async def check_errors(socket):
    for message, code in (
        ({"type": "nonsense"}, "invalid_request"),
        (start(3, model="no-such-model"), "model_not_found"),
    ):
        await say(socket, message)
        async with asyncio.timeout(PATIENCE):
            error = json.loads(await socket.recv())
        expect(error["type"] == "error" and error["error"]["code"] == code, f"{error}")
    try:
        await websockets.connect(URL, additional_headers={"Authorization": "Bearer wrong"})
    except websockets.InvalidStatus as e:
        body = json.loads(e.response.body)
        expect(e.response.status_code == 401 and body["error"]["code"] == "invalid_api_key", f"{e.response}")
        return
    raise AssertionError("a wrong key was taken")


async def main():
    print("websockets", websockets.__version__, flush=True)
    async with websockets.connect(URL, additional_headers=KEY) as socket:
        for name, check in {"turns": check_turns, "pause": check_pause, "credit": check_credit, "cancel": check_cancel,
                            "errors": check_errors, "left": lambda _: check_left()}.items():
            try:
                await check(socket)
            except Exception as e:
                sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
            print("ok", name, flush=True)


asyncio.run(main())
