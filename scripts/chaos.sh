#!/usr/bin/env bash
# Installs what `make chaos` needs: Redis, libfaketime for the clock of Redis, and mkfs.ext4.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
debian redis-server redis-server
debian faketime faketime
debian mkfs.ext4 e2fsprogs
