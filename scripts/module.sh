#!/usr/bin/env bash
# Compiles the filter for Envoy (envoy/filter/src) into envoy/filter/built. Without arguments it
# uses the machine's cc for this machine, and zig if there is no cc. With architectures as arguments
# (amd64 arm64) it uses zig, whose output is the same on every machine. With the argument "auto" it
# compiles for Go's target (GOARCH): by cc for this machine, and by zig, if it is installed, for
# another architecture. That neither can is no error then. OUT is another directory for the result.
set -euo pipefail
if [ "${1-}" = auto ]; then # a build needs no directory for tools
  cd "$(dirname "$0")/.."
  mkdir -p .tools
else
  . "$(dirname "$0")/lib.sh"
fi
out=${OUT:-$PWD/envoy/filter/built}
flags=(-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -shared -s
  -Wl,-z,nodelete -Wl,--build-id=none)
export LC_ALL=C # the order of the sources

# compile ARCH COMMAND...: compiles with the command. A rename puts the file in place.
compile() {
  local arch=$1
  shift
  (cd envoy/filter/src && "$@" "${flags[@]}" -o "$out/.new.$$" *.c) || return
  chmod 644 "$out/.new.$$"
  mv "$out/.new.$$" "$out/sluice-filter-$arch.so"
  sources "$out/sluice-filter-$arch.so" >"$out/.sum-$arch"
}

# sources: a checksum of what the filter in place was compiled from, and of the filter. Times of
# files do not tell, because archives keep them.
sources() {
  cat envoy/filter/src/* scripts/module.sh "$1" 2>/dev/null | cksum
}

# without REASON: says that the program is built without the filter, and why.
without() {
  rm -f "$file" "$out/.new.$$"
  echo "building without the filter for Envoy, so ext_proc is used: $* (docs/filter.md)"
}

# by_zig ARCH: compiles with zig.
by_zig() {
  local target
  case $1 in
    amd64) target=x86_64-linux-gnu.2.17 ;;
    arm64) target=aarch64-linux-gnu.2.17 ;;
    *) echo "no such architecture: $1; there are amd64 and arm64" >&2; return 1 ;;
  esac
  compile "$1" "$PWD/.tools/zig/zig" cc -target "$target" -g0
}

mkdir -p "$out"
this=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
file=$out/sluice-filter-$this.so
if [ "${1-}" = auto ]; then
  wanted=${GOARCH:-$(go env GOARCH)}
  file=$out/sluice-filter-$wanted.so
  if [ -e "$file" ] && [ "$(cat "$out/.sum-$wanted" 2>/dev/null)" = "$(sources "$file")" ]; then
    exit
  elif [ "$wanted" != "$this" ] && [ ! -x .tools/zig/zig ]; then
    without "cc compiles for $this, not $wanted; 'make module ARCHS=$wanted' installs zig, which does"
  elif [ "$wanted" != "$this" ]; then
    by_zig "$wanted" 2>.tools/module.log || without "zig does not compile it for $wanted, see .tools/module.log"
  elif ! command -v cc >/dev/null; then
    without "there is no C compiler"
  elif ! compile "$this" cc 2>.tools/module.log; then
    without "cc does not compile it, see .tools/module.log"
  fi
  exit
fi
if [ $# = 0 ] && command -v cc >/dev/null; then
  compile "$this" cc
  echo "built $file"
  exit
fi
scripts/zig.sh
for arch in "${@:-$this}"; do
  by_zig "$arch"
  echo "built $out/sluice-filter-$arch.so"
done
