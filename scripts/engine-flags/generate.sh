#!/usr/bin/env bash
# Writes engines/variables anew: the variables of each engine that Sluice launches, by version. It
# reads what the engines say of themselves and copies facts only. See README.md for what it needs.
#
#   scripts/engine-flags/generate.sh DIRECTORY
#
# DIRECTORY holds what cannot be asked on this machine. That is sglang-VERSION/ (the wheel,
# unpacked), and text-embeddings-inference/, ollama/ and speaches/ (clones with their tags). For
# releases other than the one that scripts/vllm.sh installs it also holds vllm-VERSION/ (the wheel,
# unpacked).
set -euo pipefail
cd "$(dirname "$0")"
sources=$(realpath "$1")
tables=../../engines/variables
tools=../../.tools
mkdir -p "$tables"

# of NAME COMMAND...: writes the table NAME unless the command fails.
of() {
  local name=$1
  shift
  "$@" >"$tables/.$name" && mv "$tables/.$name" "$tables/$name.tsv" && echo "$name: $(($(wc -l <"$tables/$name.tsv") - 1)) variables"
}

# tagged REPOSITORY TAG FILE PROGRAM: runs the program on a file of a tag.
tagged() { git -C "$sources/$1" show "$2:$3" | python3 "$4"; }

if [ -e "$tools/vllm" ]; then
  python=$(dirname "$(readlink -f "$tools/vllm")")/venv/bin/python
  of vllm-0.32 "$python" vllm_serve.py
  # Another release needs the compiled parts of the installed one, and packages that it imports
  # anew.
  [ ! -d "$sources/vllm-0.33.0" ] || of vllm-0.33 env PYTHONPATH="$sources/vllm-0.33.0" "$python" vllm_serve.py
fi
[ ! -e "$tools/llama-server" ] || of llama-cpp-0.5 sh -c '"$1" --help 2>/dev/null | python3 llama_server.py' - "$tools/llama-server"
for release in 0.4.10 0.5.5 0.5.23; do
  [ ! -d "$sources/sglang-$release" ] || of "sglang-$release" python3 sglang_server.py "$sources/sglang-$release/sglang/srt"
done
for release in 1.7.4 1.8.3 1.9.3; do
  [ ! -d "$sources/text-embeddings-inference" ] || of "tei-${release%.*}" tagged text-embeddings-inference "v$release" router/src/main.rs tei_router.py
done
for release in 0.12.11 0.32.15; do
  [ ! -d "$sources/ollama" ] || of "ollama-${release%.*}" tagged ollama "v$release" envconfig/config.go ollama_env.py
done
for release in 0.7.0 0.8.3 0.9.0-rc.3; do
  short=${release%%-*}
  [ ! -d "$sources/speaches" ] || of "faster-whisper-${short%.*}" tagged speaches "v$release" src/speaches/config.py speaches_env.py
done
