#!/usr/bin/env bash
# Installs what `make chaos` needs: Redis, mkfs.ext4, and a C compiler that makes .tools/clock.so,
# the library by which the clock of Redis jumps.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
debian redis-server redis-server
debian mkfs.ext4 e2fsprogs
debian cc gcc libc6-dev
source=internal/chaos/clock/clock.c
kept=clock-$(sha256sum $source | cut -c1-12).so
if [ ! -e "$store/$kept" ]; then
  workspace
  cc -O2 -Wall -Wextra -shared -fPIC -o "$work/clock.so" $source
  keep "$work/clock.so" "$kept"
fi
link clock.so "$kept"
