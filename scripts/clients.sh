#!/usr/bin/env bash
# Puts the clients that the tests use under .tools: a Python environment at .tools/venv, Node packages at .tools/node, grpcurl, and sees
# to a Chromium, curl, a redis-server, and the proxies nginx and HAProxy. Which versions: the requirements.txt of tests/clients and tests/models,
# tests/clients/package-lock.json, and below.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
one_at_a_time clients

# digest FILE...: short, and another one whenever the pins change.
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
  # Outside of our module, so that what grpcurl needs stays out of it.
  GOBIN="$work" GOFLAGS= CGO_ENABLED=0 twice nice go install -trimpath -ldflags "-s -w" "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$grpcurl"
  keep "$work/grpcurl" "grpcurl-$grpcurl"
fi
link grpcurl "grpcurl-$grpcurl"

debian /usr/bin/chromium chromium
debian curl curl

# served COMMAND PACKAGE: a package that starts a server as a service, where there are services. The tests start their own.
served() {
  # Not every account has /usr/sbin in its path.
  PATH=$PATH:/usr/sbin command -v "$1" >/dev/null && return
  debian "$1" "$2"
  service "$1" stop >/dev/null 2>&1 || true
  update-rc.d "$1" disable >/dev/null 2>&1 || true
}
served redis-server redis-server
served nginx nginx-light
served haproxy haproxy
