#!/usr/bin/env bash
# Run the molecule scenario of each role named; one line a role, the whole output in build/molecule/ROLE.log.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export PATH="$PWD/.venv/bin:$PATH" MUSTER_REPOSITORY="$PWD"
mkdir -p build/molecule
failed=()
passed=0
for role in "$@"; do
  started=$SECONDS
  log="$PWD/build/molecule/$role.log"
  # What a killed run has left, of this role or another, is neither used nor in the way.
  export MOLECULE_EPHEMERAL_DIRECTORY="$PWD/build/molecule/$role.state"
  rm -rf "$MOLECULE_EPHEMERAL_DIRECTORY"
  if [[ -n $(podman ps --all --quiet --filter label=muster.lab=molecule) ]]; then
    python -m tests.lab --inventory tests/molecule/inventory.yml \
      --inventory "roles/$role/molecule/default/inventory.yml" down
  fi
  if (cd "roles/$role" && molecule test >"$log" 2>&1 </dev/null); then
    passed=$((passed + 1))
    echo "molecule: $role passed in $((SECONDS - started)) s"
  else
    failed+=("$role")
    echo "molecule: $role FAILED after $((SECONDS - started)) s; the end of $log:" >&2
    tail -n 40 "$log" >&2
  fi
done
echo "molecule: $passed passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}"
((${#failed[@]} == 0))
