#!/usr/bin/env bash
# Fuzzes every target of the module, one after the other: fuzz.sh TIME, such as 20s.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "$package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 20x "$package"
  done
done
