"""muster.fleet.ledger_restore: the words of the confirmation, and what is kept, once, before the old data goes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import ledger as etcd_ledger
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules import ledger_restore

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Ask, NodeAdmission, document, status_document
from tests.support.bolt import database
from tests.support.etcd_snapshot import lab_snapshot
from tests.support.restored_ledger import BEFORE, FAULT, KEY, THEN, node

BEGUN = "2026-11-21T11:59:00.123456+00:00"


def stored(record: NodeAdmission) -> dict[str, Any]:
    return document(record, Names()) | {"status": status_document(record.status)}


def member(*records: NodeAdmission) -> dict[str, Any]:
    return {"answered": True, "revision": 9, "ledger": etcd_ledger.packed([stored(one) for one in records])}


class Module:
    """What of AnsibleModule it uses."""

    def __init__(self, folder: Path, step: str, members: list[dict[str, Any]], *, check_mode: bool = False) -> None:
        entries = [
            (f"/registry/muster.dev/nodeadmissions/{n}", json.dumps(stored(r)).encode()) for n, r in THEN.items()
        ]
        source = lab_snapshot(folder, database=database(entries))
        (folder / "restore").mkdir(exist_ok=True)
        self.check_mode, self.tmpdir, self.warned = check_mode, str(folder), []
        self.params = {
            "step": step, "operation": {"begun_at": BEGUN}, "members": members, "source": str(source), "identity": None,
            "manifest": {"fleet": "lab", "cluster": "main", "taken_at": "2026-11-21T11:00:00Z"},
            "directory": str(folder / "restore"), "ledger_dir": str(folder / "admission"), "domain": "muster.dev",
        }  # fmt: skip

    def warn(self, message: str) -> None:
        self.warned.append(message)


def run(module: Module) -> dict[str, Any]:
    return ledger_restore.run(module)  # type: ignore[arg-type]


def test_the_confirmation_has_the_difference_and_leaves_nothing(tmp_path: Path) -> None:
    told = run(Module(tmp_path, "compare", [member(*BEFORE.values())]))
    assert (told["moved"], told["everyone"], told["changed"]) == (5, "", False)
    assert told["lines"][0].startswith("gpu-2: quarantined (XID_FATAL) would be ready (PASS); highest sequence 9 would")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab-main.tar", "restore"]
    assert not list((tmp_path / "restore").iterdir())
    same = run(Module(tmp_path, "compare", [member(*THEN.values())]))
    assert (same["moved"], same["lines"]) == (0, [])
    lost = run(Module(tmp_path, "compare", [{"answered": False}, {}]))
    assert lost["everyone"].startswith("no member of etcd answers")


def test_what_was_known_is_kept_once_before_it_goes(tmp_path: Path) -> None:
    assert run(Module(tmp_path, "keep", [member(*BEFORE.values())], check_mode=True))["changed"]
    assert not list((tmp_path / "restore").iterdir())
    assert run(Module(tmp_path, "keep", [member(*BEFORE.values())]))["changed"]
    kept = json.loads((tmp_path / "admission/gpu-2.json").read_text())
    assert (kept["host_key"], kept["highest_sequence"], kept["highest_report_sha256"]) == (KEY, 9, "9" * 64)
    # After the exchange the members have the snapshot's ledger: a run that goes on must not believe them.
    again = run(Module(tmp_path, "keep", [member(*THEN.values())]))
    assert (again["changed"], again["moved"]) == (False, 5)
    (tmp_path / "restore/ledger.json").write_text("{")
    with pytest.raises(FleetError, match=r"ledger\.json cannot be read .*what was known of the nodes"):
        run(Module(tmp_path, "keep", []))


def test_a_number_that_the_controller_knows_to_be_higher_stays(tmp_path: Path) -> None:
    run(Module(tmp_path, "keep", [member(node("gpu-2", FAULT))]))
    (tmp_path / "restore/ledger.json").unlink()
    run(Module(tmp_path, "keep", [member(node("gpu-2", hold=Ask("ann", "x", "2026-11-21T11:30:00Z")))]))
    assert json.loads((tmp_path / "admission/gpu-2.json").read_text())["highest_sequence"] == 9


def test_a_snapshot_without_a_readable_ledger_leaves_everyone_in_doubt(tmp_path: Path) -> None:
    module = Module(tmp_path, "compare", [member(*BEFORE.values())])
    module.params["source"] = str(lab_snapshot(tmp_path))
    told = run(module)
    assert told["everyone"] == "the snapshot's ledger cannot be read" and told["moved"] == len(BEFORE)
    assert "cannot be read as a database of etcd" in module.warned[0]


def test_nodes_that_the_admitter_leaves_open_stop_the_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Module(tmp_path, "keep", [member(*BEFORE.values())]))
    module = Module(tmp_path, "carry", [])
    module.params |= {"kubeconfig": "/nowhere", "wait_s": 3.0}
    monkeypatch.setattr(ledger_restore, "KubeApi", lambda path: SimpleNamespace())
    monkeypatch.setattr(ledger_restore, "carry", lambda api, names, plan: ("gpu-2",))
    left = [f"gpu-{number}" for number in range(10)]
    monkeypatch.setattr(ledger_restore, "wait_until_closed", lambda *_: ((), tuple(left)))
    with pytest.raises(FleetError, match=r"after 3 s .* gpu-7 and 2 more, .*schedulers stay stopped"):
        run(module)
    monkeypatch.setattr(ledger_restore, "wait_until_closed", lambda *_: (("gpu-2",), ()))
    assert run(module)["doubted"] == ["gpu-2"]
