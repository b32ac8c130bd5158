#!/usr/bin/env bash
# Prints the version of the Helm chart for a version as git describe prints it: a semantic version.
# Versions sort as the releases follow each other. v1.2.0-5-g0abc, five commits after v1.2.0, is on
# the way to 1.2.1: by the rules of semantic versions 1.2.0-5-g0abc would be before 1.2.0.
set -euo pipefail
version=${1#v}
if [[ $version =~ ^([0-9]+\.[0-9]+)\.([0-9]+)-([0-9]+)-(g[0-9a-f]+)(-dirty)?$ ]]; then
  version=${BASH_REMATCH[1]}.$((BASH_REMATCH[2] + 1))-${BASH_REMATCH[3]}.${BASH_REMATCH[4]}${BASH_REMATCH[5]/-/.}
elif [[ $version =~ ^([0-9]+\.[0-9]+\.[0-9]+-.+)-([0-9]+)-(g[0-9a-f]+)(-dirty)?$ ]]; then # after a pre-release
  version=${BASH_REMATCH[1]}.${BASH_REMATCH[2]}.${BASH_REMATCH[3]}${BASH_REMATCH[4]/-/.}
elif [[ ! $version =~ ^[0-9]+\.[0-9]+\.[0-9]+([-+].*)?$ ]]; then
  version=0.0.0-g$version
fi
echo "$version"
