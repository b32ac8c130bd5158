# The other scripts source this file. It changes to the root of the repository.
#
# Everything that a script downloads or builds is kept by version in one directory of the user ($store), which all clones of the
# repository share: only a new machine builds. `.tools` of a clone holds links into that directory. A rename puts each thing in
# place, so scripts may run at the same time, and an interrupted script leaves nothing half done.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=${SLUICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/tools}
mkdir -p .tools "$store"

fail() {
  echo "$*" >&2
  exit 1
}

# twice COMMAND...: runs it, and once more when it fails, because networks do.
twice() {
  "$@" || { echo "again: $1 ${2-} ${3-}" >&2; sleep 2; "$@"; }
}

# python_needed: Python is what gets packages out of the Python package index.
python_needed() {
  command -v python3 >/dev/null || fail "python3 is needed, with pip: on Debian apt-get install python3-pip python3-venv"
}

# debian COMMAND PACKAGE...: sees to it that COMMAND is there; installs the Debian packages where we may.
debian() {
  local command=$1
  shift
  command -v "$command" >/dev/null && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "$command is needed: on Debian, as root, apt-get install $*"
  fi
  echo "installing $*"
  twice apt-get update -qq
  DEBIAN_FRONTEND=noninteractive twice apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# one_at_a_time NAME: waits until no other script holds the lock NAME. The kernel releases the lock of a script that dies.
one_at_a_time() {
  exec 9>"$store/.$1.lock"
  flock 9
}

# workspace: creates an empty directory, $work, on the file system of $store. It is removed when the script ends.
workspace() {
  work=$(mktemp -d "$store/.work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
}

# keep BUILT NAME: moves a file or directory to $store/NAME. If NAME exists already, BUILT is dropped: both are the same version.
keep() {
  mv -T --no-clobber "$1" "$store/$2" 2>/dev/null || [ -e "$store/$2" ] || fail "cannot write $store/$2"
}

# link NAME KEPT: makes .tools/NAME a symbolic link to $store/KEPT, in one step.
link() {
  [ "$(readlink ".tools/$1" || true)" = "$store/$2" ] && return
  ln -s "$store/$2" ".tools/.link.$$.$1"
  mv -T ".tools/.link.$$.$1" ".tools/$1"
}
