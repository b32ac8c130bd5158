#!/usr/bin/env bash
# Puts the clients that the tests use under .tools: a Python environment at .tools/venv, Node packages at .tools/node, and sees
# to a Chromium and a redis-server. Which versions: the requirements.txt of tests/clients and tests/models, and tests/clients/package-lock.json.
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

if [ ! -e ".tools/$python" ]; then
  python_needed
  echo "installing the Python clients"
  python3 -m venv "$work/venv" || fail "python3 cannot make environments: on Debian apt-get install python3-venv"
  twice "$work/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "${requirements[@]/#/--requirement=}"
  keep "$work/venv" "$python"
fi
link venv "$python"

if [ ! -e ".tools/$node" ]; then
  debian node nodejs
  debian npm npm
  echo "installing the Node clients"
  mkdir "$work/node"
  cp tests/clients/package.json tests/clients/package-lock.json "$work/node"
  twice npm ci --prefix "$work/node" --silent --no-audit --no-fund --ignore-scripts
  keep "$work/node" "$node"
fi
link node "$node"

debian /usr/bin/chromium chromium

if ! command -v redis-server >/dev/null; then
  debian redis-server redis-server
  # The package starts a server as a service, where there are services. The tests start their own.
  service redis-server stop >/dev/null 2>&1 || true
  update-rc.d redis-server disable >/dev/null 2>&1 || true
fi
