"""What role scaler writes, as Ansible renders it: the program takes its configuration, and runs with its rights.

Only here: the role's own values, with and without BMCs, against the program and a real API server.
"""

from __future__ import annotations

import configparser
import shutil
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.names import SCALER_USER
from gpu_burnin.power.program import Program
from gpu_burnin.power.redfish import Redfish
from gpu_burnin.scaler.settings import providers, read_settings
from tests.integration.kube import NO_BINARIES, Server, binaries, free_ports, until
from tests.integration.scaler_site import Scaler, machines_known, scaler_objects
from tests.support.role_values import role_values, template

SHOWN = {
    "config": "__scaler_config | combine(__scaler_redfish if scaler_bmc_user else {})",
    "files": "__scaler_bmc_files",
    "objects": f"{template('scaler', 'objects.yaml.j2')} | from_yaml_all",
    "unit": template("scaler", "muster-scaler.service.j2"),
    "kubeconfig": "__scaler_kubeconfig",
}
GIVEN = {
    "fleet_scale": True,
    "fleet_scale_idle_s": 600,
    "fleet_scale_spare": {"h100-sxm5-80gb": 2},
    "scaler_rules": {"on_per_feed": 2},
    "scaler_programs": {"cloud": {"command": ["/usr/local/bin/cloud-machines"]}},
}
BMC = {"scaler_bmc_user": "muster", "scaler_bmc_password": "a secret", "scaler_bmc_ca_file": "/tmp/bmc-ca.crt"}


def values(folder: Path, **more: Any) -> dict[str, Any]:
    given = {**GIVEN, **more, "fleet_state_dir": str(folder / "state")}
    return role_values(folder, ["scaler"], SHOWN, given, groups=("kube_apiserver", "gpu_nodes"))


def test_the_program_takes_what_the_role_writes(tmp_path: Path) -> None:
    found = values(tmp_path, **BMC, gpu_burnin_extended_for_new="2h")
    path = tmp_path / "scaler.yaml"
    path.write_text(yaml.safe_dump(found["config"]).replace("/etc/muster-scaler", str(tmp_path)))
    for file in found["files"]:
        if "content" in file:
            (tmp_path / Path(file["dest"]).name).write_text(file["content"])
            assert (file["mode"], file["owner"], file["sensitive"]) == ("0600", "muster-scaler", True)
    config = read_settings(path)
    assert (config.rules.idle_s, config.rules.spare, config.rules.on_per_feed) == (600, {"h100-sxm5-80gb": 2}, 2)
    assert config.rules.ready_within_s == 3600 + 8100, "boot, and the first burn-in of a new machine"
    assert config.identity == "api-1" and config.rules.in_share == 0.1
    made = providers(config)
    bmcs = made["redfish"]
    assert isinstance(made["cloud"], Program) and isinstance(bmcs, Redfish)
    assert (bmcs.password, bmcs.ca_file) == ("a secret", str(tmp_path / "bmc-ca.crt"))
    assert "a secret" not in yaml.safe_dump(found["config"])
    assert found["objects"] == scaler_objects()
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(found["unit"])
    assert unit["Service"]["User"] == "muster-scaler" and unit["Service"]["ProtectSystem"] == "strict"


def test_it_runs_with_the_roles_rights_and_is_healthy(ledger: Server, tmp_path: Path) -> None:
    found = values(tmp_path)
    assert found["files"] == [] and "redfish" not in found["config"]
    assert "ready_within_s" not in found["config"]["rules"]
    (port,) = free_ports(1)
    path = tmp_path / "scaler.yaml"
    own = {"kubeconfig": str(ledger.kubeconfig(SCALER_USER)), "listen": f"127.0.0.1:{port}"}
    path.write_text(yaml.safe_dump({**found["config"], **own}))
    with machines_known(ledger):
        process = Scaler("api-1", path, tmp_path / "log")
        process.start()
        try:
            until("its leadership", lambda: any("leads: " in line["message"] for line in process.lines()), 60)
            refused = [line["message"] for line in process.lines() if "forbidden" in line["message"].lower()]
            assert refused == []
        finally:
            process.kill()


def kueue(folder: Path, **more: Any) -> dict[str, Any]:
    """What role kueue makes of the mirror's manifests."""
    place = binaries()
    assert place is not None, NO_BINARIES
    manifests = folder / "state/manifests"
    manifests.mkdir(parents=True)
    shutil.copy(place / "kueue-manifests.json", manifests)
    shown = {
        "rights": "__kueue_rights",
        "kinds": "__kueue_definitions | map(attribute='metadata.name') | list",
        "unit": template("kueue", "kueue.service.j2"),
    }
    given = {"fleet_teams": {"vision": {"gpus": 8}}, "fleet_state_dir": str(folder / "state"), **more}
    return role_values(folder, ["kueue"], shown, given)


def may(rights: list[dict[str, Any]], resource: str) -> set[str]:
    return {verb for rule in rights if resource in rule["resources"] for verb in rule["verbs"]}


def test_kueue_makes_requests_where_machines_are_switched_and_knows_none_elsewhere(tmp_path: Path) -> None:
    for scale in (False, True):
        folder = tmp_path / str(scale)
        folder.mkdir()
        found = kueue(folder, fleet_scale=scale)
        assert ("provisioningrequests.autoscaling.x-k8s.io" in found["kinds"]) is scale
        # By its unit's time it is restarted: it looks for the kind once, when it starts.
        assert ("ProvisioningRequests" in found["unit"]) is scale
        # Where the kind is left behind, it has to read it.
        for resource in ("provisioningrequests", "podtemplates"):
            assert "create" in may(found["rights"], resource), resource
        assert "create" not in may(found["rights"], "pods")
