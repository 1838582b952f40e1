"""Evidence: what is signed verifies, and each refusal is seen with its own code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import evidence
from gpu_burnin.node.evidence import EvidenceError, Expectation, Statement
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.hardware_identity import UNNAMED, difference, digest, identity
from gpu_burnin.types import JSON, Gpu, Verdict
from tests.support.report_helpers import BOOT, HARDWARE, HARDWARE_SHA256, MACHINE, NOW, make_key

EXPECT = Expectation(
    node="gpu-1", machine_id=MACHINE, boot_id=BOOT, hardware_sha256=HARDWARE_SHA256, highest_sequence=7
)


def annotation(statement: Statement, key: Path) -> str:
    data = statement.canonical()
    return evidence.encode_annotation(data, evidence.sign(data, key), HARDWARE)


def refused(text: str, line: str, expect: Expectation = EXPECT, now: datetime = NOW) -> EvidenceError:
    with pytest.raises(EvidenceError) as caught:
        evidence.verify(text, line, expect, now)
    assert "\n" not in str(caught.value)
    return caught.value


def test_signed_evidence_verifies(statement: Statement, host_key: Path, public_line: str) -> None:
    found = evidence.verify(annotation(statement, host_key), public_line, EXPECT, NOW)
    assert (found.statement, found.hardware) == (statement, HARDWARE)


def test_known_hosts_line_serves_as_key(statement: Statement, host_key: Path, public_line: str) -> None:
    line = f"[198.18.7.61]:22 {public_line}"
    assert evidence.verify(annotation(statement, host_key), line, EXPECT, NOW).statement == statement


@pytest.mark.parametrize(
    ("code", "expect", "change", "late"),
    [
        ("EVIDENCE_NODE", EXPECT, {"node": "gpu-2"}, 0),
        ("EVIDENCE_NODE", EXPECT, {"machine_id": "f" * 32}, 0),
        ("EVIDENCE_BOOT", EXPECT, {"boot_id": "99999999-2222-3333-4444-555555555555"}, 0),
        ("EVIDENCE_REPLAYED", EXPECT, {"sequence": 6}, 0),
        ("EVIDENCE_SKEW", EXPECT, {}, -61),
        ("EVIDENCE_EXPIRED", EXPECT, {}, 7 * 86400 + 1),
        ("EVIDENCE_HARDWARE", replace(EXPECT, hardware_sha256="d" * 64), {}, 0),
        ("EVIDENCE_REPORT", replace(EXPECT, report_sha256="e" * 64), {}, 0),
        ("EVIDENCE_SIMULATED", EXPECT, {"simulated": True}, 0),
        ("EVIDENCE_VERDICT", EXPECT, {"verdict": Verdict.FAIL}, 0),
        ("EVIDENCE_VERDICT", EXPECT, {"verdict": Verdict.INCONCLUSIVE}, 0),
    ],
)
def test_each_refusal_has_its_code(
    code: str,
    expect: Expectation,
    change: dict[str, object],
    late: int,
    statement: Statement,
    host_key: Path,
    public_line: str,
) -> None:
    wrong = Statement(**{**asdict(statement), **change})
    error = refused(annotation(wrong, host_key), public_line, expect, NOW + timedelta(seconds=late))
    assert error.code == code
    assert (error.statement, error.hardware) == (wrong, HARDWARE)


@pytest.mark.parametrize(
    ("expect", "change", "late"),
    [
        (EXPECT, {"sequence": 7}, 0),
        (EXPECT, {"sequence": 8}, 0),
        (EXPECT, {}, -60),
        (EXPECT, {}, 7 * 86400),
        (replace(EXPECT, ttl_s=None), {}, 10**8),
        (replace(EXPECT, allow_simulated=True), {"simulated": True}, 0),
        (replace(EXPECT, verdict=None), {"verdict": Verdict.FAIL}, 0),
    ],
)
def test_what_is_allowed_passes(
    expect: Expectation, change: dict[str, object], late: int, statement: Statement
) -> None:
    fine = Statement(**{**asdict(statement), **change})
    assert evidence.refusal(fine, expect, NOW + timedelta(seconds=late)) is None


def test_every_byte_counts(statement: Statement, host_key: Path, public_line: str) -> None:
    document = json.loads(annotation(statement, host_key))
    signed = document["statement"]
    for position in range(0, len(signed), 37):
        changed = signed[:position] + chr(ord(signed[position]) ^ 1) + signed[position + 1 :]
        forged = json.dumps({**document, "statement": changed})
        assert refused(forged, public_line).code == "EVIDENCE_SIGNATURE"
    fail = annotation(replace(statement, verdict=Verdict.FAIL), host_key)
    swapped = json.dumps({**document, "signature": json.loads(fail)["signature"]})
    assert refused(swapped, public_line).code == "EVIDENCE_SIGNATURE"


def test_key_that_is_not_the_hosts(statement: Statement, public_line: str, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    assert refused(annotation(statement, stranger), public_line).code == "EVIDENCE_SIGNATURE"


@pytest.mark.parametrize(
    ("action", "why"), [("", "not in canonical form"), ("pray", "action 'pray' is none that a report has")]
)
def test_the_action_of_a_fail_is_there_where_it_says_something(statement: Statement, action: str, why: str) -> None:
    """Statements of 0.2.0 have no such key."""
    assert b"action" not in statement.canonical() and evidence.parse_statement(statement.canonical()) == statement
    asks = replace(statement, verdict=Verdict.FAIL, action="power_cycle")
    assert b'"action":"power_cycle"' in asks.canonical() and evidence.parse_statement(asks.canonical()) == asks
    with pytest.raises(EvidenceError, match=why):
        evidence.parse_statement(canonical_json({**asdict(statement), "action": action}))


def test_signature_of_another_namespace(statement: Statement, host_key: Path, public_line: str) -> None:
    import subprocess

    data = statement.canonical()
    made = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", "file", "-f", host_key], input=data, capture_output=True, check=True
    )
    text = evidence.encode_annotation(data, made.stdout.decode(), HARDWARE)
    assert refused(text, public_line).code == "EVIDENCE_SIGNATURE"


def _annotation(statement: str = '"x"', signature: str = '"x"', hardware: str = "", more: str = "") -> str:
    told = hardware or '{"gpus":[],"driver":"1","kernel":"6"}'
    return f'{{"statement":{statement},"signature":{signature},"hardware":{told}{more}}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "not exactly a statement"),
        ("{", "Expecting property name"),
        ('{"statement":"x"}', "not exactly a statement"),
        ('{"statement":"x","signature":"x"}', "not exactly a statement"),
        (_annotation(more=',"note":"x"'), "not exactly a statement"),
        (_annotation(hardware="[]"), "hardware must hold exactly"),
        (_annotation(hardware='{"gpus":[],"driver":"1"}'), "hardware must hold exactly"),
        (_annotation(hardware='{"gpus":[["a","b"]],"driver":"1","kernel":"6"}'), "a GPU must be"),
        (_annotation(hardware='{"gpus":[["a","b",1]],"driver":"1","kernel":"6"}'), "in texts of at most"),
        (_annotation(hardware='{"gpus":[],"driver":"' + "9" * 129 + '","kernel":"6"}'), "in texts of at most"),
        (
            _annotation(hardware='{"gpus":[' + ",".join(['["","",""]'] * 129) + '],"driver":"1","kernel":"6"}'),
            "a list of 128 or fewer",
        ),
        (_annotation(statement="1"), "must be texts"),
        (_annotation(signature="1"), "must be texts"),
        (_annotation(more=',"statement":"y"'), "a key appears twice"),
        (_annotation(statement='"é"'), "can't encode"),
        (_annotation(statement='"' + "x" * 20000 + '"'), "longer than"),
        ("[" * 10000, "nested too deep"),
    ],
)
def test_malformed_annotation(text: str, why: str, public_line: str) -> None:
    error = refused(text, public_line)
    assert error.code == "EVIDENCE_MALFORMED" and why in str(error), str(error)


def test_nothing_else_is_wrong_with_those() -> None:
    assert evidence.decode_annotation(_annotation()).statement == b"x"


def _spaced(document: dict[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _with(**change: object) -> Callable[[dict[str, object]], bytes]:
    return lambda document: canonical_json({**document, **change})


@pytest.mark.parametrize(
    "form",
    [
        _spaced,
        _with(extra=1),
        _with(schema="muster-evidence/v2"),
        _with(sequence=True),
        _with(sequence=0),
        _with(sequence=-1),
        _with(sequence=2**53 + 1),
        _with(sequence=10**4000),
        _with(node="n" * 254),
        _with(machine_id="0" * 33),
        _with(boot_id="1" * 37),
        _with(level="l" * 33),
        _with(code="C" * 65),
        _with(code="xid fatal"),
        _with(message="m" * 301),
        _with(message="two\nlines"),
        _with(message="\x1b[31m"),
        _with(finished_at="2026-01-02T03:04:05." + "0" * 40 + "Z"),
        _with(simulated="no"),
        _with(verdict="GOOD"),
        _with(report_sha256="A" * 64),
        _with(finished_at="2026-01-02T03:04:05+00:00"),
        _with(finished_at="yesterdayZ"),
        _with(finished_at="2026-01-02Z"),
        _with(finished_at="20260102T030405Z"),
        _with(finished_at="2026-01-02T03:04+0530Z"),
        lambda document: canonical_json({k: v for k, v in document.items() if k != "node"}),
        lambda _: b"[]",
    ],
)
def test_signed_but_malformed_statement(
    form: Callable[[dict[str, object]], bytes], statement: Statement, host_key: Path, public_line: str
) -> None:
    data = form(json.loads(statement.canonical()))
    assert _with()(json.loads(statement.canonical())) == statement.canonical(), "nothing else is wrong with it"
    text = evidence.encode_annotation(data, evidence.sign(data, host_key), HARDWARE)
    assert refused(text, public_line).code == "EVIDENCE_MALFORMED"


@pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-ed25519 AAAA", "* cert-authority ssh-dss AAAA", "x y z"])
def test_bad_public_key_is_refused(line: str) -> None:
    with pytest.raises(GpuBurninError, match="not an SSH public key"):
        evidence.public_key(line)


def test_only_type_and_blob_reach_the_allowed_signers(public_line: str) -> None:
    kind, blob = public_line.split()[:2]
    assert evidence.public_key(f'cert-authority,namespaces="*" {kind} {blob} me@here') == f"{kind} {blob}"


def test_own_public_key_is_of_the_private_file(host_key: Path, public_line: str) -> None:
    assert evidence.own_public_key(host_key).split() == public_line.split()[:2]


def test_missing_host_key_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match="host_key") as caught:
        evidence.sign(b"x", tmp_path / "none")
    assert "\n" not in str(caught.value)


def sha256_of(gpus: list[Gpu], driver: str, kernel: str) -> str:
    return digest(identity(gpus, driver, kernel))


def test_hardware_hash_depends_on_identity_only() -> None:
    gpu = Gpu(0, "GPU-a", "1", "0000:01:00.0", "name", "h200", 1, "96.00")
    other = replace(gpu, index=1, uuid="GPU-b")
    both = sha256_of([gpu, other], "580.1", "6.1")
    assert both == sha256_of([other, replace(gpu, index=3)], "580.1", "6.1")
    changed = [replace(gpu, serial="2"), replace(gpu, vbios="97.00"), replace(gpu, uuid="GPU-c")]
    assert len({both, *(sha256_of([one, other], "580.1", "6.1") for one in changed)}) == 4
    assert both != sha256_of([gpu, other], "580.2", "6.1")
    assert both != sha256_of([gpu, other], "580.1", "6.2")


def test_files_carry_the_annotation(statement: Statement, host_key: Path, public_line: str, tmp_path: Path) -> None:
    evidence.write_evidence(tmp_path, statement, HARDWARE, host_key)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence.json", "evidence.json.sig", "hardware.json"]
    assert evidence.verify(evidence.annotation_of(tmp_path), public_line, EXPECT, NOW).statement == statement
    (tmp_path / "evidence.json.sig").unlink()
    with pytest.raises(EvidenceError) as caught:
        evidence.annotation_of(tmp_path)
    assert caught.value.code == "EVIDENCE_MALFORMED"


@pytest.mark.parametrize("changed", [b"[]", b"{", b"{}", b'{"driver":"1","gpus":[],"gpus":[],"kernel":"6"}'])
def test_hardware_file_that_cannot_be_read(
    changed: bytes, statement: Statement, host_key: Path, tmp_path: Path
) -> None:
    evidence.write_evidence(tmp_path, statement, HARDWARE, host_key)
    (tmp_path / "hardware.json").write_bytes(changed)
    with pytest.raises(EvidenceError) as caught:
        evidence.annotation_of(tmp_path)
    assert caught.value.code == "EVIDENCE_MALFORMED"


def test_other_hardware_than_was_signed_is_refused(statement: Statement, host_key: Path, public_line: str) -> None:
    document = json.loads(annotation(statement, host_key))
    document["hardware"]["driver"] = "580.105.08"
    error = refused(json.dumps(document), public_line)
    assert error.code == "EVIDENCE_MALFORMED"
    assert "not that of its hash" in str(error)


def test_a_signature_may_be_checked_in_another_way(statement: Statement, host_key: Path, public_line: str) -> None:
    text = annotation(statement, host_key)
    with pytest.raises(EvidenceError) as caught:
        evidence.verify(text, public_line, EXPECT, NOW, lambda data, signature, key: False)
    assert caught.value.code == "EVIDENCE_SIGNATURE"


def test_message_is_cut_to_what_a_statement_carries() -> None:
    assert evidence.one_line("XID 79:\n  gone") == "XID 79: gone"
    assert len(evidence.one_line("x" * 400)) == 300
    assert evidence.one_line("x" * 400).endswith("x...")


@pytest.mark.parametrize(
    ("gpus", "driver", "says"),
    [
        ([["GPU-a", "1", "96"]], "580", ""),
        ([["GPU-a", "1", "96"]], "590", "driver 580 -> 590"),
        ([["GPU-b", "1", "96"]], "580", "GPU-a is gone; GPU-b is new"),
        ([["GPU-a", "2", "97"]], "580", "serial of GPU-a 1 -> 2; VBIOS of GPU-a 96 -> 97"),
        ([["GPU-a", "1", "96"], ["GPU-a", "1", "96"]], "580", "several GPUs of one UUID"),
    ],
)
def test_difference_of_hardware_in_words(gpus: list[JSON], driver: str, says: str) -> None:
    old: dict[str, JSON] = {"gpus": [["GPU-a", "1", "96"]], "driver": "580", "kernel": "6"}
    assert difference(old, {"gpus": gpus, "driver": driver, "kernel": "6"}) == says


@pytest.mark.parametrize("hardware", [{}, {"gpus": "GPU-a", "driver": "580", "kernel": "6"}])
def test_a_difference_from_what_has_not_the_form_is_not_named(hardware: dict[str, JSON]) -> None:
    known: dict[str, JSON] = {"gpus": [["GPU-a", "1", "96"]], "driver": "580", "kernel": "6"}
    assert difference(known, hardware) == difference(hardware, known) == UNNAMED
