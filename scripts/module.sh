#!/usr/bin/env bash
# Compiles the filter for Envoy (envoy/filter/src) into envoy/filter/built. Without arguments it uses the
# machine's cc for this machine, and zig if there is no cc. With architectures as arguments (amd64 arm64)
# it uses zig, whose output is the same on every machine. zig comes from the Python package index. OUT is
# another directory for the result.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=0.14.1
out=${OUT:-$PWD/envoy/filter/built}
flags=(-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -shared -s
  -Wl,-z,nodelete -Wl,--build-id=none)

# install_zig: puts zig into $store and sets $zig.
install_zig() {
  zig=$store/zig-$version/ziglang/zig
  [ -x "$zig" ] && return
  one_at_a_time zig
  [ -x "$zig" ] && return
  python_needed
  workspace
  echo "downloading zig $version"
  twice python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "ziglang==$version" ||
    fail "cannot download zig: check that the package index can be reached, or install a C compiler"
  python3 -m zipfile -e "$work"/ziglang-*.whl "$work/zig"
  chmod 755 "$work/zig/ziglang/zig"
  keep "$work/zig" "zig-$version"
}

# compile ARCH COMMAND...: compiles with the command. A rename puts the file in place.
compile() {
  local arch=$1
  shift
  (cd envoy/filter/src && "$@" "${flags[@]}" -o "$out/.new.$$" *.c)
  mv "$out/.new.$$" "$out/sluice-filter-$arch.so"
  echo "built $out/sluice-filter-$arch.so"
}

mkdir -p "$out"
this=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
if [ $# = 0 ] && command -v cc >/dev/null; then
  compile "$this" cc
  exit
fi
install_zig
for arch in "${@:-$this}"; do
  case $arch in
    amd64) target=x86_64-linux-gnu.2.17 ;;
    arm64) target=aarch64-linux-gnu.2.17 ;;
    *) fail "no such architecture: $arch; there are amd64 and arm64" ;;
  esac
  compile "$arch" "$zig" cc -target "$target" -g0
done
