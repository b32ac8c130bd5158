"""Checks with the official, unmodified Python client how streams of the Responses API end early, and its other calls.

    BASE_URL=http://127.0.0.1:8080/v1 MODEL=a FORBIDDEN=word API_KEY=sk-… responses.py

The model must be served by a simulated engine (`sluice sim`) as managed streams, and a moderation rule must
forbid the word. The script prints "ok <check>" for every check. The first check that fails ends the script
with a line that says why.
"""
import os
import sys

import openai

MODEL, FORBIDDEN = os.environ["MODEL"], os.environ["FORBIDDEN"]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0, timeout=90)


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def ended(fault="none", timeout=None, **more):
    """Returns the events of a stream, and the error that the client raises after them."""
    body = {"timeout_ms": timeout} if timeout else {}
    events = []
    with client.responses.stream(model=MODEL, extra_headers={"x-sim-fault": fault}, extra_body=body, **more) as stream:
        try:
            for event in stream:
                events.append(event)
        except openai.APIError as e:
            return check(events), e
    return check(events), None


def check(events):
    """Checks what holds for every stream, however it ends."""
    expect([e.sequence_number for e in events] == list(range(len(events))), f"numbers {[e.sequence_number for e in events]}")
    expect(len({e.response.id for e in events if hasattr(e, "response")}) == 1, "several ids")
    for of in ("output_item", "content_part"):
        opened, closed = (sum(e.type == f"response.{of}.{change}" for e in events) for change in ("added", "done"))
        expect(opened == closed, f"{opened} of {of} opened, {closed} closed")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    expect("".join(e.text for e in events if e.type == "response.output_text.done") == text, "a text whose deltas differ")
    expect(events[-1].response.output_text == text, f"{events[-1].response.output_text!r} after {text!r}")
    return events


def incomplete(events, reason):
    expect(events[-1].type == "response.incomplete", [e.type for e in events])
    final = events[-1].response
    expect(final.status == "incomplete" and final.incomplete_details.reason == reason, final)
    expect(final.usage.input_tokens > 0 and final.usage.output_tokens_details.reasoning_tokens == 0, final.usage)
    return final


def check_timeout_in_text():
    events, error = ended("stall=8:1m", 4000, input="Tell me of the sea.")
    final = incomplete(events, "max_output_tokens")
    expect(not error and final.output_text and final.output[0].status == "incomplete", final)


def check_timeout_in_tool_call():
    events, _ = ended("stall=5:1m", 4000, input="Use a tool to find the weather in Lisbon.", tools=TOOLS)
    call = incomplete(events, "max_output_tokens").output[0]
    written = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    expect(call.type == "function_call" and call.status == "incomplete" and call.arguments == written, call)


def check_timeout_before_the_first_token():
    events, _ = ended("hang", 700, input="Tell me of the sea.")
    expect(events[0].type == "response.created" and not incomplete(events, "max_output_tokens").output, events)


def check_moderation():
    events, _ = ended(input=f"Say hello and {FORBIDDEN} to the sea.")
    final = incomplete(events, "content_filter")
    expect(FORBIDDEN not in final.output_text, final)


def check_failure():
    events, error = ended("cut=8", input="Tell me of the sea.")
    final = events[-1].response
    expect(final.status == "failed" and final.error.code == "upstream_truncated" and final.output[0].status == "incomplete", final)
    expect(error and error.code == "upstream_truncated", f"the client raises {error}")


def check_input_tokens():
    counted = client.responses.input_tokens.count(model=MODEL, input="Tell me of the sea.", instructions="Be brief.")
    used = client.responses.create(model=MODEL, input="Tell me of the sea.", instructions="Be brief.").usage
    expect(counted.object == "response.input_tokens" and counted.input_tokens == used.input_tokens, (counted, used))


def check_compact():
    try:
        client.responses.compact(model=MODEL, input="Tell me of the sea.")
    except openai.NotFoundError as e:
        return expect(e.code == "model_not_capable" and "/v1/responses/compact" in e.message, e)
    expect(False, "an engine that cannot compact has done it")


CHECKS = {
    "time-out within a text": check_timeout_in_text,
    "time-out within a tool call": check_timeout_in_tool_call,
    "time-out before the first token": check_timeout_before_the_first_token,
    "moderation": check_moderation,
    "failure": check_failure,
    "tokens of an input": check_input_tokens,
    "a call that the engine lacks": check_compact,
}


def main():
    print("openai for Python", openai.__version__, flush=True)
    for name, run in CHECKS.items():
        try:
            run()
        except Exception as e:
            sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
        print("ok", name, flush=True)


main()
