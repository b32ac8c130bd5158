#!/usr/bin/env bash
# Builds Helm, which the tests of the chart run, and installs it at .tools/helm. It is built outside
# of Sluice's module, so that its dependencies stay out of the module. The first build takes some
# minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=3.22.0
one_at_a_time helm

# The linker sets the versions. Without them Helm takes the cluster of `helm template` for a v1.20.
flags="-s -w -X helm.sh/helm/v3/internal/version.version=v$version"
for package in pkg/lint/rules pkg/chartutil; do
  flags+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=36"
done

if [ ! -x "$store/helm-$version" ]; then
  go_needed
  workspace
  echo "building Helm $version once: some minutes on two cores"
  GOBIN=$work GOFLAGS= CGO_ENABLED=0 twice nice go install -trimpath -ldflags "$flags" "helm.sh/helm/v3/cmd/helm@v$version"
  keep "$work/helm" "helm-$version"
fi
link helm "helm-$version"
