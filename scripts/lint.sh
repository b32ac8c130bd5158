#!/usr/bin/env bash
# Runs golangci-lint on the packages of the arguments (default: all). It is built once at a pinned
# version, outside of Sluice's module.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=2.15.0
one_at_a_time golangci-lint

if [ ! -x "$store/golangci-lint-$version" ]; then
  workspace
  echo "building golangci-lint $version once: some minutes"
  GOBIN=$work twice go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"
  keep "$work/golangci-lint" "golangci-lint-$version"
  rm -rf "$work"
fi
exec 9>&-
exec "$store/golangci-lint-$version" run "${@:-./...}"
