#!/usr/bin/env bash
# Prints the version of the Debian package for a version as git describe prints it. Versions sort as
# the releases follow each other: v1.2.0-rc.1 is before v1.2.0, and v1.2.0-5-g0abc, five commits
# later, after it. A version that has no number gets the time of its commit, $SOURCE_DATE_EPOCH.
set -euo pipefail
version=${1#v}
if [[ ! $version =~ ^[0-9]+\.[0-9] ]]; then
  version=0.0.0+git.$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$version
fi
# ~ sorts before the end of a version. A version that dpkg accepts without a revision has no hyphen.
sed -E 's/-([0-9]+)-(g[0-9a-f]+)/.\1.\2/; s/-dirty$/.dirty/; s/-/~/; s/-/./g' <<<"$version"
