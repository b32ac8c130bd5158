"""Calls Sluice's gRPC service llm.v1 with Python's grpcio, on stubs made from examples/grpc.

    GRPC_TARGET=127.0.0.1:8080 ENGINE_URL=http://127.0.0.1:9000 MODEL=m API_KEY=sk-… STUBS=/tmp/stubs llmv1.py

STUBS is the directory of the modules that grpc_tools.protoc has generated. MODEL must be served by one
simulated engine (`sluice sim`) at ENGINE_URL, with about 10 ms between tokens and with heartbeats far
below a second. The script prints "ok <check>" for every check. The first check that fails ends the
script with a line that says why.
"""
import json
import os
import sys
import time
import urllib.request

import grpc

sys.path.insert(0, os.environ["STUBS"])
from llm.v1 import inference_pb2 as pb  # noqa: E402
from llm.v1 import inference_pb2_grpc as pbgrpc  # noqa: E402

MODEL = os.environ["MODEL"]
KEY = (("authorization", "Bearer " + os.environ["API_KEY"]),)
PATIENCE = 90  # seconds, for a busy machine


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def read(call):
    """Returns the text, the final result and the heartbeats of a call."""
    text, final, beats = "", None, []
    for chunk in call:
        kind = chunk.WhichOneof("payload")
        text += chunk.delta.text
        if kind == "final":
            final = chunk.final
        if kind == "hb":
            beats.append(chunk.hb)
    return text, final, beats


def fails(code, call):
    try:
        read(call)
    except grpc.RpcError as e:
        expect(e.code() == code, f"{e.code()} instead of {code}: {e.details()}")
        return
    raise AssertionError(f"no error, want {code}")


def idle():
    """Waits until the engine runs no request."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with urllib.request.urlopen(os.environ["ENGINE_URL"] + "/sim/state", timeout=PATIENCE) as r:
            state = json.load(r)
        if state["running"] + state["waiting"] == 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"the engine still works: {state}")


def ask(**more):
    return pb.StartRequest(**({"model": MODEL, "messages": ["hello"], "max_tokens": 12} | more))


def check_stream(stub):
    call = stub.Stream(ask(request_id="grpc"), metadata=KEY, timeout=PATIENCE)
    text, final, _ = read(call)
    expect(text and final.finish_reason in ("stop", "length") and 0 < final.output_tokens <= 12 and final.input_tokens > 0, f"{text!r} {final}")
    trailers = {k: v for k, v in call.trailing_metadata()}
    expect(trailers.get("x-sluice-source") == "engine" and trailers.get("x-sluice-replica"), f"{trailers}")


def check_heartbeats(stub):
    want = read(stub.Stream(ask(), metadata=KEY, timeout=PATIENCE))[0]
    text, final, beats = read(stub.Stream(ask(), metadata=(*KEY, ("x-sim-fault", "stall=3:1s")), timeout=PATIENCE))
    # A busy machine has some before the first token, too.
    expect(text == want and final and any(b.phase == "decode" and b.waited_ms > 0 for b in beats), f"{text!r} {final} {beats}")


def check_errors(stub):
    fails(grpc.StatusCode.UNAUTHENTICATED, stub.Stream(ask(), timeout=PATIENCE))
    fails(grpc.StatusCode.UNAUTHENTICATED, stub.Stream(ask(), metadata=(("authorization", "Bearer wrong"),), timeout=PATIENCE))
    fails(grpc.StatusCode.NOT_FOUND, stub.Stream(ask(model="no-such-model"), metadata=KEY, timeout=PATIENCE))
    fails(grpc.StatusCode.INVALID_ARGUMENT, stub.Stream(ask(messages=[]), metadata=KEY, timeout=PATIENCE))
    fails(grpc.StatusCode.UNAVAILABLE, stub.Stream(ask(), metadata=(*KEY, ("x-sim-fault", "cut=4")), timeout=PATIENCE))


LONG = pb.StartRequest(request=json.dumps({
    "model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100000, "ignore_eos": True}).encode())


def check_deadline(stub):
    began = time.monotonic()
    text = ""
    deadline = 4  # seconds, in which the first token comes
    try:
        for chunk in stub.Stream(LONG, metadata=KEY, timeout=deadline):
            text += chunk.delta.text
    except grpc.RpcError as e:  # the client's own library may be the first to see that it is over
        # A client that gets no processor time at its deadline sees first that the server resets the
        # call.
        late = e.code() == grpc.StatusCode.INTERNAL and time.monotonic() - began >= deadline
        expect(late or e.code() == grpc.StatusCode.DEADLINE_EXCEEDED, f"{e.code()}: {e.details()}")
    expect(text and time.monotonic() - began < PATIENCE, f"{text!r} within {time.monotonic() - began:.1f} s")
    idle()
    long = pb.StartRequest(request=LONG.request, timeout_ms=4000)
    text, final, _ = read(stub.Stream(long, metadata=KEY, timeout=PATIENCE))
    expect(text and final.finish_reason == "length", f"{text!r} {final}")


def check_cancel(stub):
    call = stub.Stream(LONG, metadata=KEY, timeout=PATIENCE)
    for _ in range(3):
        next(call)
    call.cancel()
    idle()


def main():
    print("grpcio", grpc.__version__, flush=True)
    checks = {"stream": check_stream, "heartbeats": check_heartbeats, "errors": check_errors, "deadline": check_deadline, "cancel": check_cancel}
    with grpc.insecure_channel(os.environ["GRPC_TARGET"]) as channel:
        stub = pbgrpc.InferenceStub(channel)
        for name, check in checks.items():
            try:
                check(stub)
            except Exception as e:
                sys.exit(f"FAILED {name}: {type(e).__name__}: {e}")
            print("ok", name, flush=True)


main()
