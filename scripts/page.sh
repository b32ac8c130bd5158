#!/usr/bin/env bash
# Copies the files of others that the operator's page embeds from the packages of
# tests/clients/package-lock.json, which scripts/clients.sh installs, to internal/admin/page/lib.
# Run it after the version of such a package has changed. A test compares both.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

from=.tools/node/node_modules/uplot to=internal/admin/page/lib
[ -d "$from" ] || fail "$from is missing: run make tools"
mkdir -p "$to"
cp "$from/dist/uPlot.esm.js" "$to/uplot.js"
cp "$from/dist/uPlot.min.css" "$to/uplot.css"
cp "$from/LICENSE" "$to/uplot.LICENSE"
