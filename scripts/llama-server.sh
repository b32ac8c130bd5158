#!/usr/bin/env bash
# Builds llama.cpp's server from the source package of llama-cpp-python and installs it at
# .tools/llama-server, for the tests. The first build takes some minutes. The result is kept by
# version.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=0.3.36
one_at_a_time llama-server
log=$store/llama-server.log

# The options leave out what no test uses (GPU, TLS, OpenMP, the web page, fast kernels), which is
# most of the build.
options=(
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-O1 -DBUILD_SHARED_LIBS=OFF
  -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CPU_REPACK=OFF -DGGML_LLAMAFILE=OFF
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
)

name=llama-server-$version-$(printf '%s ' "${options[@]}" | sha256sum | cut -c 1-12)

build() {
  twice python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$work" \
    "llama-cpp-python==$version" &&
    tar -C "$work" -xzf "$work/llama_cpp_python-$version.tar.gz" &&
    cmake -S "$work/llama_cpp_python-$version/vendor/llama.cpp" -B "$work/build" "${options[@]}" &&
    nice cmake --build "$work/build" --target llama-server --parallel "$(nproc)"
}

if [ ! -x "$store/$name" ]; then
  python_needed
  debian cmake cmake
  debian c++ g++
  debian make make
  workspace
  echo "building llama-server $version once: about five minutes on two cores (log: $log)"
  build >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "llama-server does not build: see $log"; }
  keep "$work/build/bin/llama-server" "$name"
fi
link llama-server "$name"
