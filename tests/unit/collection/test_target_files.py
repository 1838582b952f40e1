"""Role fleet_monitoring: each job of Prometheus has a file of targets, whatever the fleet asks for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.role_values import ROOT, role_values, template

SHOWN = {
    "configuration": template("fleet_monitoring", "prometheus.yml.j2"),
    "files": "__fleet_monitoring_target_files",
    "old": "__fleet_monitoring_old_target_files",
}


@pytest.mark.slow
@pytest.mark.parametrize("on", [True, False])
def test_each_job_has_its_file_and_no_other_file_stays(on: bool, tmp_path: Path) -> None:
    # The role's own file, where a play looks for it that does not run the role.
    (tmp_path / "files").mkdir()
    shutil.copy(ROOT / "roles/fleet_monitoring/files/series.yaml", tmp_path / "files")
    given = {"fleet_scale": on, "fleet_node_dns": on}
    found = role_values(tmp_path, ["fleet_monitoring"], SHOWN, given, ("kube_apiserver", "gpu_nodes", "monitoring"))
    jobs = yaml.safe_load(found["configuration"])["scrape_configs"]
    named = {path for job in jobs for files in job["file_sd_configs"] for path in files["files"]}
    written = {one["dest"] for one in found["files"]}
    assert written == named and len(named) == len(jobs)
    demand = {f"/etc/prometheus/targets/{job}.json" for job in ("scaler", "node_dns")}
    assert demand & written == (demand if on else set())
    assert {*found["old"]} & demand == (set() if on else demand)
    assert not {*found["old"]} & written
