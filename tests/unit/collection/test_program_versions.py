"""Versions as programs tell them, and which installed program is not the one of the inventory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.muster.fleet.plugins.module_utils.host import program_versions
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import (
    Version,
    ask,
    other_builds,
    parse,
)

from tests.support.site_plays import site_plays

ROOT = Path(__file__).resolve().parents[3]
SAYS = "#!/bin/sh\necho 'etcd Version: 3.6.16'\necho 'Go Version: go1.26.8'\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.36.3", Version(1, 36, 3)),
        ("etcd Version: 3.7.3\nGit SHA: Not provided\nGo Version: go1.26.8\n", Version(3, 7, 3)),
        ("v1.37.0-beta.1+abc", Version(1, 37, 0)),
        ("go1.26", None),
        ("", None),
    ],
)
def test_parse(text: str, version: Version | None) -> None:
    assert parse(text) == version


def test_versions_compare_as_numbers() -> None:
    assert Version(1, 9, 9) < Version(1, 36, 0) < Version(1, 36, 3)
    assert Version(1, 36, 3).minors_after(Version(1, 34, 9)) == 2
    assert Version(2, 0, 0).minors_after(Version(1, 99, 0)) > 99
    assert (str(Version(3, 6, 16)), Version(3, 6, 16).release) == ("3.6.16", "3.6")


def program(path: Path, text: str) -> str:
    """A program of this text; its SHA-256."""
    path.write_text(text)
    path.chmod(0o755)
    return hashlib.sha256(text.encode()).hexdigest()


def test_ask_gives_nothing_for_what_does_not_work(tmp_path: Path) -> None:
    program(tmp_path / "good", SAYS)
    program(tmp_path / "fails", SAYS + "exit 1\n")
    program(tmp_path / "noise", "\x7fELF broken")
    program(tmp_path / "hangs", "#!/bin/sh\nexec sleep 60\n")
    assert ask(tmp_path / "good") == Version(3, 6, 16)
    assert ask(tmp_path / "fails") is None
    assert ask(tmp_path / "noise") is None
    assert ask(tmp_path / "none") is None
    assert ask(tmp_path / "hangs", timeout_s=0.05) is None


def test_only_another_build_that_works_and_has_a_unit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = tmp_path / "units"
    units.mkdir()
    pinned = program(tmp_path / "etcd", SAYS)
    other = {"etcd": "0" * 64}
    # A first run that was killed after the download: nothing runs yet.
    assert other_builds(["etcd"], other, tmp_path, units) == []
    (units / "etcd.service").touch()
    (build,) = other_builds(["etcd"], other, tmp_path, units)
    assert (str(build), build.sha256) == ("etcd 3.6.16", pinned)
    assert other_builds(["etcd"], {}, tmp_path, units) == []
    monkeypatch.setattr(program_versions, "ask", lambda path: pytest.fail(f"{path} is the pinned one"))
    assert other_builds(["etcd"], {"etcd": pinned.upper()}, tmp_path, units) == []
    monkeypatch.undo()
    program(tmp_path / "etcd", "spoilt")
    assert other_builds(["etcd"], other, tmp_path, units) == []
    (tmp_path / "etcd").unlink()
    assert other_builds(["etcd"], other, tmp_path, units) == []


@pytest.mark.parametrize("kept", [{}, {"kubelet": "1" * 64}, {"kubelet": "1" * 64, "kube-proxy": "2" * 64}, None])
def test_site_yml_leaves_a_node_what_it_keeps(kept: dict[str, str] | None) -> None:
    """Neither its program nor the sum in its unit is of another build. None: a run without preflight (--skip-tags)."""
    pinned = {"kubelet": "a" * 64, "kube-proxy": "b" * 64}
    facts = {} if kept is None else {"preflight_kept": kept}
    plays = {play["name"]: play for play in site_plays()}
    asked = {**plays["Prepare the nodes"]["vars"], **plays["Start the kubelets that may start"]["vars"]}
    variables = {name: trust_as_template(text) if isinstance(text, str) else text for name, text in asked.items()}
    given = {"ansible_facts": facts, "kube_binaries_checksums": pinned, "fleet_node_dns": False}
    templar = Templar(DataLoader(), variables=variables | given)
    found = {name: templar.template(text) for name, text in variables.items() if not name.startswith("__")}
    sums = pinned | (kept or {})
    assert found == {
        "kube_binaries_names": list(pinned),
        "kube_binaries_kept": kept or {},
        "kubelet_binary_sha256": sums["kubelet"],
        "kube_proxy_binary_sha256": sums["kube-proxy"],
    }
