#!/usr/bin/env bash
# Installs the clients of the tests under .tools: a Python environment at .tools/venv, Node packages at
# .tools/node, and grpcurl. It also installs Chromium, curl, redis-server, nginx and HAProxy if they are
# missing. The versions are in the requirements.txt of tests/clients and tests/models, in
# tests/clients/package-lock.json, and below.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
one_at_a_time clients

# digest FILE...: prints a short digest of the files, which changes with the pinned versions.
digest() {
  cat "$@" | sha256sum | cut -c1-12
}

requirements=(tests/clients/requirements.txt tests/models/requirements.txt)
python=venv-$(digest "${requirements[@]}")
node=node-$(digest tests/clients/package.json tests/clients/package-lock.json)
workspace

if [ ! -e "$store/$python" ]; then
  python_needed
  echo "installing the Python clients"
  python3 -m venv "$work/venv" || fail "python3 cannot make environments: on Debian apt-get install python3-venv"
  twice "$work/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "${requirements[@]/#/--requirement=}"
  keep "$work/venv" "$python"
fi
link venv "$python"

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
  command -v go >/dev/null || fail "go is needed: see https://go.dev/doc/install"
  echo "building grpcurl $grpcurl once: a minute or two on two cores"
  # grpcurl is built outside of Sluice's module, so that its dependencies stay out of the module.
  GOBIN="$work" GOFLAGS= CGO_ENABLED=0 twice nice go install -trimpath -ldflags "-s -w" "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$grpcurl"
  keep "$work/grpcurl" "grpcurl-$grpcurl"
fi
link grpcurl "grpcurl-$grpcurl"

debian /usr/bin/chromium chromium
debian curl curl

# server COMMAND PACKAGE: installs a package and stops the service that the package starts, because
# the tests start their own servers.
server() {
  # Not every account has /usr/sbin in its path.
  PATH=$PATH:/usr/sbin command -v "$1" >/dev/null && return
  debian "$1" "$2"
  service "$1" stop >/dev/null 2>&1 || true
  update-rc.d "$1" disable >/dev/null 2>&1 || true
}
server redis-server redis-server
server nginx nginx-light
server haproxy haproxy
