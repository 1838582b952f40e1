#!/usr/bin/env bash
# Install what this checkout needs: system packages (only missing ones), the Python environment from its lock file,
# the Ansible collections. Safe to run at any time; does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(podman runc containernetworking-plugins iptables mmdebstrap openssh-client gcc libc6-dev git make
  python3-venv python3-dev shellcheck iproute2)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    echo "setup: these packages are missing: ${missing[*]}; run: sudo apt-get install ${missing[*]}" >&2
    exit 2
  fi
  echo "setup: installing ${missing[*]}" >&2
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: $python is older than Python 3.11: set PYTHON to a newer one" >&2
  exit 2
fi
lock=requirements/controller.txt
stamp=.venv/.stamp
want=$("$python" -c 'import sys; print(sys.version)' | cat - "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ ! -f $stamp || $(<"$stamp") != "$want" ]]; then
  echo "setup: making the Python environment from $lock" >&2
  "$python" -m venv --clear .venv
  .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r "$lock"
  # setuptools warns of the folder that has the package's name, which is just what an editable install is to use.
  PYTHONWARNINGS=ignore::UserWarning .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps \
    --no-build-isolation -e .
  echo "$want" >"$stamp"
fi
.venv/bin/python tools/install_collections.py
