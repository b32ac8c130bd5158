#!/usr/bin/env python3
"""Chats over /v1/realtime in the terminal. Ctrl-C stops a running answer; at the prompt it ends the program."""

import argparse
import asyncio
import json
import os
import signal

import websockets


async def print_answer(socket, start, stop):
    """Asks for one answer and prints it as it arrives. Returns False if there was an error."""
    await socket.send(json.dumps({"type": "start", **start}))
    while True:
        receive = asyncio.ensure_future(socket.recv())
        cancel = asyncio.ensure_future(stop.wait())
        await asyncio.wait({receive, cancel}, return_when=asyncio.FIRST_COMPLETED)
        cancel.cancel()
        if stop.is_set():
            stop.clear()
            await socket.send(json.dumps({"type": "cancel"}))
        message = json.loads(await receive)
        if message["type"] == "token" and "kind" not in message:
            print(message["delta"], end="", flush=True)
        elif message["type"] == "heartbeat":
            print(f"[{message['phase']}, {message['waited_ms'] / 1000:.0f} s]", flush=True)
        elif message["type"] == "error":
            print(f"\n{message['error']['code']}: {message['error']['message']}")
            return False
        elif message["type"] == "final":
            print(f"\n({message['finish_reason']}, {message['usage']['completion_tokens']} tokens)")
            return True


async def chat(options):
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with websockets.connect(options.url, additional_headers=headers, max_size=None) as socket:
        text = options.text
        started = False
        while text:
            message = {"role": "user", "content": text}
            loop.add_signal_handler(signal.SIGINT, stop.set)
            start = {"message": message} if started else {"model": options.model, "messages": [message]}
            started = await print_answer(socket, start, stop) or started
            loop.remove_signal_handler(signal.SIGINT)
            if options.once:
                return
            text = await asyncio.to_thread(input, "> ")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", help="the first message")
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", default="ws://127.0.0.1:8080/v1/realtime")
    parser.add_argument("--key", default=os.environ.get("SLUICE_API_KEY", ""), help="default: $SLUICE_API_KEY")
    parser.add_argument("--once", action="store_true", help="end after the first answer")
    try:
        asyncio.run(chat(parser.parse_args()))
    except (KeyboardInterrupt, EOFError):
        pass


if __name__ == "__main__":
    main()
