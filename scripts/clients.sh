#!/usr/bin/env bash
# Installs the clients of the tests under .tools: Python environments at .tools/venv and
# .tools/frameworks, Node packages at .tools/node, and grpcurl. It also installs Chromium, curl,
# redis-server, nginx, HAProxy and promtool (of Debian's package prometheus) if they are missing.
# The versions are in the requirements.txt of tests/clients and tests/models, in
# tests/clients/frameworks.txt, in tests/clients/package-lock.json, and below.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
one_at_a_time clients

# digest FILE...: prints a short digest of the files, which changes with the pinned versions.
digest() {
  cat "$@" | sha256sum | cut -c1-12
}

node=node-$(digest tests/clients/package.json tests/clients/package-lock.json)
workspace

# environment NAME FILE...: installs what the files pin as a Python environment at .tools/NAME. The
# files name everything, so pip has nothing to resolve.
environment() {
  local name=$1 pinned
  shift
  pinned=$name-$(digest "$@")
  if [ ! -e "$store/$pinned" ]; then
    echo "installing the Python clients of $*"
    python_environment "$work/$name"
    twice "$work/$name/bin/python" -m pip install --quiet --no-deps --no-compile --disable-pip-version-check "${@/#/--requirement=}"
    keep "$work/$name" "$pinned"
  fi
  link "$name" "$pinned"
}
environment venv tests/clients/requirements.txt tests/models/requirements.txt
environment frameworks tests/clients/frameworks.txt

if [ ! -e "$store/$node" ]; then
  debian node nodejs
  debian npm npm
  echo "installing the Node clients"
  mkdir "$work/node"
  cp tests/clients/package.json tests/clients/package-lock.json "$work/node"
  twice npm ci --prefix "$work/node" --silent --no-audit --no-fund --ignore-scripts
  keep "$work/node" "$node"
fi
link node "$node"

grpcurl=1.9.4
if [ ! -x "$store/grpcurl-$grpcurl" ]; then
  go_needed
  echo "building grpcurl $grpcurl once: a minute or two on two cores"
  # grpcurl is built outside of Sluice's module, so that its dependencies stay out of the module.
  GOBIN="$work" GOFLAGS= CGO_ENABLED=0 twice nice go install -trimpath -ldflags "-s -w" "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$grpcurl"
  keep "$work/grpcurl" "grpcurl-$grpcurl"
fi
link grpcurl "grpcurl-$grpcurl"

debian /usr/bin/chromium chromium
debian curl curl

# server COMMAND PACKAGE [SERVICE]: installs a package and stops the service that the package
# starts, because the tests start their own servers. The service is named COMMAND by default.
server() {
  # Not every account has /usr/sbin in its path.
  PATH=$PATH:/usr/sbin command -v "$1" >/dev/null && return
  debian "$1" "$2"
  service "${3:-$1}" stop >/dev/null 2>&1 || true
  update-rc.d "${3:-$1}" disable >/dev/null 2>&1 || true
}
server redis-server redis-server
server nginx nginx-light
server haproxy haproxy
server promtool prometheus prometheus
