"""What a message advises holds where it is read: an attached cluster has no inventory, no playbooks and no systemd.

Only here: every text of every module that speaks of a fleet.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpu_burnin
from gpu_burnin.api import remedies
from gpu_burnin.api.attached import Mode

ROOT = Path(gpu_burnin.__file__).parent
BUILT = ("site.yml", "playbooks/", "ansible-playbook", "give --state,", "/var/log/kubernetes", "systemctl status")
# Modules that no attached cluster reaches, and why not.
ONLY_BUILT = {
    "admission/gate_probe/ask.py": "the probe of an API server's own host",
    "admission/gate_probe/probe.py": "the same",
    "admission/jobs": "the AdmissionCheck of teams, which attaching brings none of",
    "admission/provision.py": "writes an inventory into the ledger",
    "admission/waiting.py": "playbooks wait by it",
    "admission/decide/outlook.py": "has other words where attached: see below",
    "api/remedies.py": "has both",
    "api/machine_power.py": "machines that the scaler switches",
    "cli/muster/gate_probe.py": "the default of the probe of an API server's own host",
    "cli/main.py": "names the command of a playbook",
    "cli/muster/fabric_run.py": "runs playbooks",
    "cli/muster/image.py": "machine images of a fleet",
    "cli/muster/inventory_option.py": "an inventory",
    "cli/muster/plan.py": "an inventory",
    "cli/muster/roll.py": "runs playbooks",
    "fleet/baseline": "reports in a state directory",
    "fleet/cluster/machines.py": "machines that the scaler switches",
    "fleet/cluster/rows.py": "of reports in a state directory",
    "fleet/cluster/status_text.py": "has other words where attached",
    "fleet/driver_upgrade": "a playbook's",
    "fleet/fabric": "runs playbooks",
    "fleet/jobs/audit_logs.py": "reads them on the hosts of a fleet's API servers",
    "fleet/image": "machine images of a fleet",
    "fleet/monitoring": "the fleet's own Prometheus",
    "fleet/plan": "an inventory",
    "fleet/repair": "a playbook's",
    "fleet/roll": "runs playbooks",
    "fleet/waves": "runs playbooks",
    "node/fabric": "there are no tests between nodes where attached",
    "node/enrol": "machine images of a fleet",
    "scaler": "a service of the fleet's",
}


def texts(path: Path) -> list[tuple[int, str]]:
    """Each text of a module that speaks of a fleet, f-strings as one; docstrings are for readers of the code."""
    source = path.read_text()
    if not any(word in source for word in BUILT):
        return []
    nodes = list(ast.walk(ast.parse(source)))
    skipped = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
    found = []
    for one in nodes:
        if isinstance(one, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(one)}
            found.append((one.lineno, ast.unparse(one)))
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in skipped:
            found.append((one.lineno, one.value))
    return [(line, text) for line, text in found if any(word in text for word in BUILT)]


def test_whoever_advises_what_a_fleet_has_says_what_an_attached_cluster_has() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if not any(place == known or place.startswith(f"{known}/") for known in ONLY_BUILT):
            found += [f"gpu_burnin/{place}:{line}: {text}" for line, text in texts(path) if "attach" not in text]
    assert found == []


def test_the_list_of_what_only_a_fleet_reaches_is_no_longer_than_it_must_be() -> None:
    for place in ONLY_BUILT:
        files = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("*.py"))
        assert any(texts(path) for path in files), place


@pytest.mark.parametrize("mode", [Mode.OBSERVING, Mode.ENFORCING])
def test_remedies_of_an_attached_cluster_name_nothing_of_a_fleet(mode: Mode) -> None:
    alone = (remedies.agent(mode), remedies.admitters(mode), remedies.admit("gpu-1", mode))
    for said in (*alone, remedies.reports(mode), remedies.audits(mode)):
        built = (*BUILT, "systemctl", "inventory", "gpu-burnin-watch", "--state", "/var/log")
        assert not [word for word in built if word in said]
    assert "site.yml" in remedies.admit("gpu-1", Mode.BUILT)
    assert "systemctl" in remedies.admitters(Mode.BUILT)
    assert "--state" in remedies.reports(Mode.BUILT) and "audit.log" in remedies.audits(Mode.BUILT)


@pytest.mark.parametrize(
    "said", [remedies.reports(None), remedies.audits(None), remedies.ADMITTERS, remedies.AGENT, remedies.KUEUE]
)
def test_where_nobody_knows_which_it_is_both_are_named(said: str) -> None:
    assert "where attached" in said
