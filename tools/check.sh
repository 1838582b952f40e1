#!/usr/bin/env bash
# The fast loop: lint, types, unit tests. Each tool but ansible-lint runs on the whole tree, without skip lists.
# With --all, as in `make test`, unit tests that are marked slow run too, and ansible-lint on the whole tree. Without
# it ansible-lint runs on what changed since this branch left main. With BASE=COMMIT in the environment that is what
# changed since this commit, and the slow tests of these areas run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export PATH="$PWD/.venv/bin:$PATH"
# Tests start Python a thousand times, and each worker rewrites the same assertions: what is compiled is kept, also where
# the environment says otherwise, as images of containers do.
unset PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
failed=()
# What is slow and not marked is named.
selection=(-m "not slow and not soak" --durations=10 --durations-min=0.5)
lint_since=(${BASE:+"$BASE"})
if [[ "${1:-}" == --all ]]; then
  selection=(-m "not soak")
  lint_since=(--all)
fi
changed=$([[ -z "${BASE:-}" ]] || python tools/changed_areas.py "$BASE") || exit 2

step() {
  local name=$1 started=$SECONDS
  shift
  if "$@"; then
    echo "check: $name passed in $((SECONDS - started)) s"
  else
    echo "check: $name FAILED (command: $*)" >&2
    failed+=("$name")
  fi
}

# Of the whole tree it keeps one core busy: everything else runs beside it.
mkdir -p build
python -m tools.ansible_lint "${lint_since[@]}" >build/ansible-lint.log 2>&1 &
ansible_lint=$!
finish_ansible_lint() {
  local status=0
  wait "$ansible_lint" || status=$?
  cat build/ansible-lint.log
  return "$status"
}

# pytest ends with 5 when these areas have no slow test.
slow_tests() {
  local folders status=0
  mapfile -t folders <<<"$changed"
  pytest -q -n 2 -m "slow and not soak" "${folders[@]}" || status=$?
  ((status == 0 || status == 5))
}

mapfile -t shell_scripts < <(git ls-files -co --exclude-standard -- '*.sh' .ci/run)
step ruff ruff check .
step format ruff format --check .
step mypy mypy gpu_burnin tests/bench tests/campaign tests/gpu tests/integration tests/lab tools
step yamllint yamllint --strict .
step shellcheck shellcheck "${shell_scripts[@]}"
step generated python -m tools.docs --check
step dashboards python -m tools.dashboards --check
step unit pytest -q -n 2 "${selection[@]}" tests/unit --junitxml=build/unit.xml
[[ -z "$changed" ]] || step slow slow_tests
step ansible-lint finish_ansible_lint

if ((${#failed[@]})); then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
