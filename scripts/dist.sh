#!/usr/bin/env bash
# Makes a release in $DIST (default dist). For each of $ARCHS (default: amd64 arm64) it has a static
# program in an archive, a Debian package and a software bill of materials. It also has the Helm
# chart and the checksums of all. Archive and package have the licences of what the program contains
# of others. Each program contains the filter for Envoy of its architecture, which zig compiles. The
# same commit gives the same bytes, with the same release of Go and dpkg. $COMPRESSION is the level
# of gzip for the archives, where 0 means 1, and of xz for the packages (default 6). Tests use 0,
# which is quick.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-$(git describe --tags --always --dirty)}
dist=${DIST:-dist}
compression=${COMPRESSION:-6}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is needed: on Debian apt-get install dpkg" >&2; exit 1; }

others=LICENSES-OF-OTHERS.txt # the licences of what the program contains
debian_version=$(scripts/debian-version.sh "$version")

mkdir -p "$dist"
rm -f "$dist"/sluice* "$dist"/SHA256SUMS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# archive NAME FOLDER: writes a .tar.gz of the folder with nothing of this machine or of this
# moment.
archive() {
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$work" -c "$2" | gzip -n "-$((compression > 0 ? compression : 1))" >"$dist/$1"
}

# package ARCH FOLDER: writes the Debian package of what the folder of the archive has.
package() {
  local root=$work/deb-$1
  install -D -m 755 "$2/sluice" "$root/usr/bin/sluice"
  install -D -m 644 packaging/sluice.service "$root/usr/lib/systemd/system/sluice.service"
  install -D -m 644 packaging/sysusers.conf "$root/usr/lib/sysusers.d/sluice.conf"
  install -D -m 644 examples/quickstart/sluice.yaml "$root/etc/sluice/sluice.yaml"
  # Commands of an operator find the gateway by this directory, without the environment of the unit.
  printf '\nstate_dir: /var/lib/sluice\n' >>"$root/etc/sluice/sluice.yaml"
  install -D -m 644 LICENSE "$root/usr/share/doc/sluice/copyright"
  install -m 644 "$2/$others" "$root/usr/share/doc/sluice/$others"
  install -D -m 755 -t "$root/DEBIAN" packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
  echo /etc/sluice/sluice.yaml >"$root/DEBIAN/conffiles"
  cat >"$root/DEBIAN/control" <<END
Package: sluice
Version: $debian_version
Architecture: $1
Maintainer: The Sluice authors <sluice@localhost>
Section: net
Priority: optional
Depends: ca-certificates
Recommends: systemd
Description: LLM inference gateway around Envoy
 Sluice admits, queues and routes requests to inference engines, which it may
 also start. It fetches the Envoy that it runs, unless there is one.
END
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --build --root-owner-group -Zxz -z"$compression" "$root" "$dist/sluice_${debian_version}_$1.deb" >/dev/null
}

# chart: writes the Helm chart. Its files are those that the links of packaging/helm lead to.
chart() {
  local chart_version
  chart_version=$(scripts/chart-version.sh "$version")
  mkdir "$work/chart"
  cp -RL packaging/helm/sluice "$work/chart/sluice"
  sed -i -e "s/^version: .*/version: $chart_version/" -e "s/^appVersion: .*/appVersion: \"$version\"/" "$work/chart/sluice/Chart.yaml"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$work/chart" -c sluice | gzip -n >"$dist/sluice-$chart_version.tgz"
}
chart

# document FILE: writes a document of the archive. Its relative links lead to the repository,
# because the archive has no other documents.
document() {
  local repository=sluice-gateway/sluice commit
  commit=$(git rev-parse HEAD)
  sed -E -e "s|(!\[[^]]*\]\()([^):]+)\)|\1https://raw.githubusercontent.com/$repository/$commit/\2)|g" \
    -e "s|\]\(([^):#]+)([)#])|](https://github.com/$repository/blob/$commit/\1\2|g" "$1"
}

# overlay ARCH: has go build find the compiled filter of this release where `make module` puts it,
# and no filter of another architecture.
overlay() {
  local built=$PWD/envoy/filter/built other
  for other in amd64 arm64; do
    [ "$other" = "$1" ] || printf '"%s": "", ' "$built/sluice-filter-$other.so"
  done >"$work/others"
  printf '{"Replace": {%s"%s": "%s"}}\n' "$(cat "$work/others")" "$built/sluice-filter-$1.so" "$work/filter/sluice-filter-$1.so" >"$work/overlay.json"
}

# ARCHS is a list without quotes.
# shellcheck disable=SC2086
OUT=$work/filter scripts/module.sh ${ARCHS:-amd64 arm64}

for arch in ${ARCHS:-amd64 arm64}; do
  overlay "$arch"
  folder=sluice-$version-linux-$arch
  echo "building $folder"
  CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -overlay "$work/overlay.json" -tags grpcnotrace \
    -ldflags "-s -w -buildid= -X main.release=$version" -o "$work/$folder/sluice" ./cmd/sluice
  cp LICENSE "$work/$folder/"
  document README.md >"$work/$folder/README.md"
  document CHANGELOG.md >"$work/$folder/CHANGELOG.md"
  go run ./scripts/licences -arch "$arch" internal/admin/page/lib/uplot.LICENSE >"$work/$folder/$others"
  archive "$folder.tar.gz" "$folder"
  package "$arch" "$work/$folder"
  go run ./scripts/sbom -version "$version" -filter "$work/filter/sluice-filter-$arch.so" "$work/$folder/sluice" >"$dist/$folder.cdx.json"
done
(cd "$dist" && sha256sum sluice* >SHA256SUMS)
ls -l "$dist"
