#!/usr/bin/env bash
# Installs zig at .tools/zig. Its C compiler makes the filter for Envoy for each architecture, with
# the same bytes on every machine. zig comes from the Python package index.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=0.14.1
one_at_a_time zig

if [ ! -x "$store/zig-$version/zig" ]; then
  python_needed
  workspace
  echo "downloading zig $version"
  twice python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "ziglang==$version" ||
    fail "cannot download zig $version: check that the package index can be reached, or install a C compiler"
  python3 -m zipfile -e "$work"/ziglang-*.whl "$work/wheel"
  chmod 755 "$work/wheel/ziglang/zig"
  keep "$work/wheel/ziglang" "zig-$version"
fi
link zig "zig-$version"
