#!/usr/bin/env bash
# Fuzzes what the filter inside Envoy understands of responses, and then of a gateway, with
# libFuzzer: fuzz-filter.sh SECONDS, which each of the two takes. The second one begins with the
# inputs of envoy/filter/harness/corpus.txt, which the tests replay. With UPDATE=1 it writes the
# least inputs that reach the same code into that file.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
seconds=${1:-20}
corpus=envoy/filter/harness/corpus.txt
clang=$(compgen -c clang | grep -xE 'clang(-[0-9]+)?' | sort -V | tail -1 || true)
if [ -z "$clang" ]; then
  debian clang clang libclang-rt-dev
  clang=clang
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/before" "$work/found" "$work/least"
python3 - "$corpus" "$work/before" <<'PYTHON'
import sys
for i, line in enumerate(open(sys.argv[1])):
    open(f"{sys.argv[2]}/{i}", "wb").write(bytes.fromhex(line))
PYTHON
sources=()
for f in envoy/filter/src/*.c; do
  [ "$f" = envoy/filter/src/thread.c ] || sources+=("$f") # the target includes it
done
flags=(-std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror -pthread -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
"$clang" "${flags[@]}" -o "$work/read" envoy/filter/harness/fuzz_read.c envoy/filter/harness/envoy.c envoy/filter/src/*.c
cat >"$work/words" <<'WORDS'
"data:"
"\x0a\x0a"
"\"usage\":{"
"\"prompt_tokens\":7"
"\"choices\":[{"
"\"content\":\"a\""
"\"finish_reason\":\"stop\""
"\"type\":\"response.completed\""
"[DONE]"
"\x5c\x22"
WORDS
"$work/read" -max_total_time="$seconds" -max_len=600 -dict="$work/words" -artifact_prefix="$work/" -verbosity=0 -print_final_stats=1 || {
  for f in "$work"/crash-*; do
    [ -e "$f" ] && echo "found: $(python3 -c 'import sys; print(open(sys.argv[1], "rb").read().hex())' "$f")"
  done
  exit 1
}
"$clang" "${flags[@]}" -o "$work/fuzz" envoy/filter/harness/fuzz.c envoy/filter/harness/envoy.c "${sources[@]}"
"$work/fuzz" -max_total_time="$seconds" -max_len=700 -artifact_prefix="$work/" -verbosity=0 -print_final_stats=1 \
  "$work/found" "$work/before" || {
  for f in "$work"/crash-* "$work"/leak-* "$work"/timeout-* "$work"/oom-*; do
    [ -e "$f" ] && echo "a line for $corpus that repeats it: $(python3 -c 'import sys; print(open(sys.argv[1], "rb").read().hex())' "$f")"
  done
  exit 1
}
[ "${UPDATE:-}" = 1 ] || exit 0
"$work/fuzz" -merge=1 "$work/least" "$work/before" "$work/found" >/dev/null 2>&1
python3 - "$corpus" "$work/least" <<'PYTHON'
import os, sys
lines = sorted(open(f"{sys.argv[2]}/{f}", "rb").read().hex() for f in os.listdir(sys.argv[2]))
open(sys.argv[1], "w").write("".join(line + "\n" for line in lines))
PYTHON
