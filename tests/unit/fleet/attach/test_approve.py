"""When a machine may be a node of an attached cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.api.attached import ENROLLED_BY_AGENT
from gpu_burnin.api.enrolment import Claim, Decision, Enrolment, EnrolmentSpec
from gpu_burnin.api.record import Identity, NodeAdmission, Spec
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach.approve import (
    Claimed,
    current_cluster,
    decided_anew,
    doubts_of,
    due,
    with_known,
    with_token,
)
from gpu_burnin.fleet.attach.expected import COMPARED, FIRST_USE, Trust, of_file

KEY, MACHINE = "ssh-ed25519 AAAA", "a" * 32
CLAIM = Claim("gpu-1", ENROLLED_BY_AGENT, KEY, MACHINE, "b", "", "0" * 64)
ENROLMENT = Enrolment("gpu-1", EnrolmentSpec(ENROLLED_BY_AGENT, ""))
NODE = {"metadata": {"uid": "u-1"}, "status": {"nodeInfo": {"machineID": MACHINE}}}


def entry(name: str, **identity: Any) -> dict[str, NodeAdmission]:
    return {name: NodeAdmission(name, Spec(identity=Identity(**identity)))}


@pytest.mark.parametrize(
    ("node", "ledger", "again", "words"),
    [
        (NODE, {}, False, ""),
        (None, {}, False, "there is no Node"),
        ({**NODE, "status": {}}, {}, False, "its kubelet of none"),
        (NODE, entry("gpu-2", host_key=KEY), False, "its key is that of gpu-2"),
        (NODE, entry("gpu-2", machine_id=MACHINE), False, "its machine id is that of gpu-2"),
        (NODE, entry("gpu-1", host_key="ssh-ed25519 BBBB"), False, "approved with another key"),
        (NODE, entry("gpu-1", host_key="ssh-ed25519 BBBB"), True, ""),
        (NODE, entry("gpu-1", host_key=KEY, node_uid="u-0"), False, "made anew"),
        (NODE, entry("gpu-1", host_key=KEY, node_uid="u-1"), False, ""),
    ],
)
def test_what_is_in_doubt_is_named(node: object, ledger: dict[str, NodeAdmission], again: bool, words: str) -> None:
    found = doubts_of(ENROLMENT, CLAIM, node, ledger, again=again)  # type: ignore[arg-type]
    assert (words in " ".join(found)) if words else found == []


def test_what_is_known_of_a_key_stays_and_does_not_count_for_another_one() -> None:
    old = Identity(host_key=KEY, trust=COMPARED, carried_sequence=7, carried_report_sha256="c" * 64)
    again = with_known(Identity(host_key=KEY, trust=FIRST_USE), old)
    assert again == old
    other = Identity(host_key="ssh-ed25519 BBBB", trust=FIRST_USE)
    assert with_known(other, old) == other
    assert with_known(replace(old, trust=COMPARED), replace(old, trust=FIRST_USE)).trust == COMPARED


BY_HAND = Decision(True, "ops", "by hand: its key was compared with nothing", "t")


@pytest.mark.parametrize(
    ("before", "trust", "pinned", "anew"),
    [
        (None, Trust(), "", True),
        (replace(BY_HAND, approved=False), Trust(), "first-use", True),
        (BY_HAND, Trust(), "first-use", False),
        (BY_HAND, Trust(COMPARED, "its fingerprint was compared"), "first-use", True),
        (BY_HAND, Trust(why="its machine id is the one in f; its key was compared with nothing"), "first-use", True),
        (BY_HAND, Trust(why="its machine id is the one in f; its key was compared with nothing"), "compared", False),
        (
            replace(BY_HAND, why="x: its fingerprint was compared"),
            Trust(COMPARED, "its fingerprint was compared"),
            "compared",
            False,
        ),
    ],
)
def test_a_decision_says_what_was_compared_since(before: Any, trust: Trust, pinned: str, anew: bool) -> None:
    assert decided_anew(before, trust, Identity(host_key=KEY, trust=pinned)) is anew


def test_a_file_of_keys_is_for_those_that_wait_and_those_of_first_use(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"gpu-1 ssh-ed25519 {'A' * 68}\n")
    expected, known = of_file(file), Claimed("gpu-1", CLAIM, BY_HAND, trust=FIRST_USE)
    assert due(replace(known, decision=None), None) and due(known, expected)
    assert not due(known, None) and not due(replace(known, trust=COMPARED), expected)
    assert not due(replace(known, claim=replace(CLAIM, node="gpu-2")), expected)


def test_a_machine_of_an_image_is_not_approved_here() -> None:
    other = replace(ENROLMENT, spec=replace(ENROLMENT.spec, token="abcdef"))
    [why] = doubts_of(other, CLAIM, NODE, {}, again=False)
    assert "muster image approve" in why


def test_a_token_goes_to_the_cluster_of_the_current_context(tmp_path: Path) -> None:
    path = tmp_path / "config"
    of: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}]
    }
    of |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path.write_text(yaml.safe_dump(of))
    made = yaml.safe_load(with_token(path, "t"))
    assert made["users"] == [{"name": "u", "user": {"token": "t"}}]
    assert made["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "ca.crt")
    path.write_text("{}")
    with pytest.raises(GpuBurninError, match="names no current context"):
        current_cluster(path)
