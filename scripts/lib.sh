# Shared by the other scripts, which source it. It goes to the root of the repository; everything fetched or built is kept
# there under .tools, by version, and put in place by a rename, so that scripts may run at the same time or be cut short.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .tools

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

# one_at_a_time NAME: waits until no other script of that name runs. The kernel ends the wait when the other one dies.
one_at_a_time() {
  exec 9>".tools/.$1.lock"
  flock 9
}

# workspace: an empty directory in $work, on the same file system as .tools, that is removed at the end.
workspace() {
  work=$(mktemp -d .tools/.work.XXXXXX)
  trap 'rm -rf "$work"' EXIT
}

# keep BUILT NAME: moves a file or directory to .tools/NAME. Who came first wins; both have built the same.
keep() {
  mv -T --no-clobber "$1" ".tools/$2" 2>/dev/null || [ -e ".tools/$2" ] || fail "cannot keep .tools/$2"
}

# link NAME TARGET: makes .tools/NAME a link to .tools/TARGET, in one step.
link() {
  [ "$(readlink ".tools/$1" || true)" = "$2" ] && return
  ln -s "$2" ".tools/.link.$$.$1"
  mv -T ".tools/.link.$$.$1" ".tools/$1"
}
