#!/usr/bin/env bash
# usage: tools/setup.sh controller|dev|lab [--quiet]
# Install what this checkout needs: system packages (only missing ones), the Python environment from its lock file, the
# Ansible collections. A controller needs the least; dev adds what `make check` needs, lab what `make lab` and `make test`
# need. Safe to run at any time. With --quiet it says nothing when all is there, and not what to do next.
set -euo pipefail
cd "$(dirname "$0")/.."
level=$1 quiet=${2:-}

packages=(git openssh-client python3-venv)
lock=requirements/controller.txt
target=setup
next=("source .venv/bin/activate" "cp -r inventory/example inventory/prod    # then edit hosts.yml and group_vars/")
case $level in
  controller)
    # A second copy would land inside of the first.
    [[ ! -d inventory/prod ]] || next[1]="ansible-playbook -i inventory/prod site.yml"
    ;;
  dev) target=setup-dev next=("make check") ;;
  lab) target=setup-lab next=("make lab") ;;
  *)
    echo "setup: $level is not one of controller, dev, lab" >&2
    exit 2
    ;;
esac
if [[ $level != controller ]]; then
  lock=requirements/dev.txt
  packages+=(g++ gpg gpg-agent kmod libc6-dev make openssl shellcheck)
fi
if [[ $level == lab ]]; then
  packages+=(age bird2 containernetworking-plugins iproute2 iptables mmdebstrap podman rclone runc)
  (($(id -u) == 0)) || next=("sudo make lab")
fi
log=build/setup.log
did=0

say() { echo "setup: $*" >&2; }

# Read what apt-get or pip says: all of it into the log; what is done now in one line that changes, or, where nobody sees
# it change, in a line every 10 s.
follow() {
  local what=$1 total=$2 count=0 said=$SECONDS line words now
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    read -ra words <<<"$line"
    case ${words[0]:-} in
      Get:*) now="fetching ${words[4]:-}" ;;
      Unpacking) now="unpacking ${words[1]:-}" ;;
      Setting) now="setting up ${words[2]:-}" count=$((count + 1)) ;;
      Collecting) now="fetching ${words[1]%%[=<>~!\[]*}" count=$((count + 1)) ;;
      Requirement) now="${words[3]%%[=<>~!\[]*} is there" count=$((count + 1)) ;;
      Installing) now="installing them" ;;
      *) continue ;;
    esac
    if [[ -t 2 ]]; then
      printf '\r\033[K%s' "setup: $what: $count of $total, $now" >&2
    elif ((SECONDS >= said + 10)); then
      said=$SECONDS
      say "$what: $count of $total, $now"
    fi
  done
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
}

# Run a command whose output `follow` shows; with its last words when it fails.
step() {
  local what=$1 total=$2
  shift 2
  mkdir -p build
  : >"$log"
  if ! "$@" 2>&1 | follow "$what" "$total"; then
    say "$what: \`$*\` failed:"
    tail -n 5 "$log" >&2
    say "all of its output is in $log; run \`make $target\` again when its cause is mended"
    exit 2
  fi
}

if ! command -v dpkg-query >/dev/null; then
  say "this system has no dpkg-query: Muster's controller and lab run on Debian 12 or Ubuntu 24.04"
  exit 2
fi
# shellcheck disable=SC2016 # the fields are dpkg's, not the shell's
present=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package installed" <<<"$present" || missing+=("$package")
done
if ((${#missing[@]})); then
  did=1
  if (($(id -u) != 0)); then
    say "these system packages are missing: ${missing[*]}"
    say "install them, then run \`make $target\` again:"
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 2
  fi
  say "system packages: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  step "lists of packages" 1 apt-get update
  with_needed=$(apt-get install --simulate --no-install-recommends "${missing[@]}" | grep -c '^Inst ' || true)
  step "system packages" "$with_needed" apt-get install -y --no-install-recommends "${missing[@]}"
fi

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "$python is older than Python 3.11: set PYTHON to a newer one"
  exit 2
fi
# The stamp: the Python and the locks that the environment was made from, and which lock of them.
stamp=.venv/.stamp
made=$("$python" -c 'import sys; print(sys.version)' |
  cat - requirements/controller.txt requirements/dev.txt pyproject.toml | sha256sum | cut -d' ' -f1)
found=$(cat "$stamp" 2>/dev/null || true)
# What serves the development serves a controller too.
if [[ $found != "$made requirements/dev.txt" && $found != "$made $lock" ]]; then
  did=1
  count=$(grep -c '^[a-z]' "$lock")
  say "Python environment .venv: $count packages of $lock"
  if [[ $found == "$made "* ]]; then
    rm -f "$stamp"
  else
    "$python" -m venv --clear .venv
  fi
  export PYTHONUNBUFFERED=1
  step "Python packages" "$count" \
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --require-hashes -r "$lock"
  # setuptools warns of the folder that has the package's name, which is just what an editable install is to use.
  PYTHONWARNINGS=ignore::UserWarning step "gpu-burnin" 1 \
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
  echo "$made $lock" >"$stamp"
fi
.venv/bin/python tools/install_collections.py

if [[ $quiet == --quiet ]]; then
  exit
elif ((did)); then
  say "ready after $SECONDS s. Next:"
  printf '  %s\n' "${next[@]}" >&2
else
  say "nothing to do: ${#packages[@]} system packages, the Python environment and the Ansible collections are there"
  say "next: ${next[0]}${next[1]:+ && ${next[1]}}"
fi
