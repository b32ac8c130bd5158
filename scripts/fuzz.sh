#!/usr/bin/env bash
# Fuzzes every target of the module, one after the other: fuzz.sh TIME, such as 20s. The last one is
# the filter inside Envoy, which is C.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "$package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 20x "$package"
  done
done
case $time in
  *h) seconds=$((${time%h} * 3600)) ;;
  *m) seconds=$((${time%m} * 60)) ;;
  *) seconds=${time%s} ;;
esac
scripts/fuzz-filter.sh "$seconds"
