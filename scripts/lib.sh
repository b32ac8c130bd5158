# The other scripts source this file. It changes to the root of the repository.
#
# The scripts keep what they download or build in one directory of the user ($store), by version.
# All clones of the repository share that directory, so each tool is built once on a machine. The
# directory .tools of a clone holds links into it. A rename puts each tool in place: scripts may run
# at the same time, and an interrupted script leaves no partial tool.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=${SLUICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/tools}
mkdir -p .tools "$store"

fail() {
  echo "$*" >&2
  exit 1
}

# twice COMMAND...: runs the command, and runs it again if it fails, because networks may fail.
twice() {
  "$@" || { echo "again: $1 ${2-} ${3-}" >&2; sleep 2; "$@"; }
}

# python_needed: fails without Python, which downloads packages from the Python package index.
python_needed() {
  command -v python3 >/dev/null || fail "python3 is needed, with pip: on Debian apt-get install python3-pip python3-venv"
}

# python_environment DIRECTORY: makes an empty Python environment.
python_environment() {
  python_needed
  python3 -m venv "$1" || fail "python3 cannot make environments: on Debian apt-get install python3-venv"
}

# go_needed: fails without Go.
go_needed() {
  command -v go >/dev/null || fail "go is needed: see https://go.dev/doc/install"
}

# debian COMMAND PACKAGE...: installs the Debian packages if COMMAND is missing and apt-get may be
# run.
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

# one_at_a_time NAME: waits until no other script holds the lock NAME, and takes it. The kernel
# releases the lock when the script ends.
one_at_a_time() {
  exec 9>"$store/.$1.lock"
  flock 9
}

# workspace: creates an empty directory, $work, on the file system of $store. The directory is
# removed when the script ends.
workspace() {
  work=$(mktemp -d "$store/.work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
}

# keep BUILT NAME: moves a file or directory to $store/NAME. If NAME exists already, BUILT is
# dropped, because both are of the same version.
keep() {
  mv -T --no-clobber "$1" "$store/$2" 2>/dev/null || [ -e "$store/$2" ] || fail "cannot write $store/$2"
}

# link NAME KEPT: makes .tools/NAME a symbolic link to $store/KEPT, in one step.
link() {
  [ "$(readlink ".tools/$1" || true)" = "$store/$2" ] && return
  ln -s "$store/$2" ".tools/.link.$$.$1"
  mv -T ".tools/.link.$$.$1" ".tools/$1"
}
