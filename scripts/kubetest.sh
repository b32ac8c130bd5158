#!/usr/bin/env bash
# Builds the Kubernetes control plane of the tests (tests/kubetest) from modules of the Go module
# proxy and installs it at .tools/kubetest. The first build takes some minutes. The result is kept
# by the version of Kubernetes and a digest of the sources.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
kubernetes=1.36.3
one_at_a_time kubetest
log=$store/kubetest.log
source=tests/kubetest
name=kubetest-$kubernetes-$(cat "$source"/{go.mod,go.sum,main.go} | sha256sum | cut -c 1-12)

# The linker sets the version of Kubernetes. Without it, kubectl and the API server report v0.0.0.
version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36"

build() {
  # A second try is cheap, because Go keeps what it has built and downloaded.
  CGO_ENABLED=0 twice nice go -C "$source" build -mod=readonly -trimpath -ldflags "$flags" -o "$work/kubetest" .
}

if [ ! -x "$store/$name" ]; then
  go_needed
  workspace
  echo "building the Kubernetes $kubernetes of the tests once: five to ten minutes on two cores (log: $log)"
  build >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "kubetest does not build: see $log"; }
  keep "$work/kubetest" "$name"
fi
link kubetest "$name"
