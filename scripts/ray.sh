#!/usr/bin/env bash
# Installs Ray at .tools/ray, a Python environment of its own, for the tests of launcher ray. It
# takes about 400 MB on disk. Ray is kept by version.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=2.60.0
one_at_a_time ray

if [ ! -e "$store/ray-$version" ]; then
  workspace
  echo "installing Ray $version once: half a minute, 400 MB"
  python_environment "$work/ray"
  twice nice "$work/ray/bin/python" -m pip install --quiet --disable-pip-version-check "ray[default]==$version"
  # The programs of an environment begin with the path that they were installed under.
  sed -i "1s|^#!$work/ray/|#!$store/ray-$version/|" "$work"/ray/bin/*
  keep "$work/ray" "ray-$version"
fi
link ray "ray-$version"
