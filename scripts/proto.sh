#!/usr/bin/env bash
# Generates the Go code of api/llm/v1/inference.proto in api/llm/v1. It also writes the digests of
# the proto file and of the code, which a test compares. The compiler is the protoc of grpcio-tools
# (PyPI), and the Go plugins are tools of Sluice's module.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=1.85.1
one_at_a_time proto

name=proto-$version
workspace
if [ ! -e "$store/$name" ]; then
  echo "installing grpcio-tools $version"
  python_environment "$work/venv"
  twice "$work/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "grpcio-tools==$version"
  keep "$work/venv" "$name"
fi

# plugin NAME: writes a program that runs a Go tool of the module, because protoc runs only
# programs.
plugin() {
  printf '#!/bin/sh\nexec go tool %s\n' "$1" >"$work/$1"
  chmod +x "$work/$1"
}
plugin protoc-gen-go
plugin protoc-gen-go-grpc

to=api/llm/v1
"$store/$name/bin/python" -m grpc_tools.protoc --proto_path=api \
  --plugin="$work/protoc-gen-go" --go_out=. --go_opt=module=github.com/sluice-gateway/sluice \
  --plugin="$work/protoc-gen-go-grpc" --go-grpc_out=. --go-grpc_opt=module=github.com/sluice-gateway/sluice \
  llm/v1/inference.proto
cd "$to"
sha256sum ./inference.proto ./*.pb.go >inference.sha256
