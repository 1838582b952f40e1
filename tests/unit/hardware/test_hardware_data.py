"""The data files: complete, loaded strictly, and mistakes named by file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_burnin.checks.state.rules import JUDGED_FIELDS
from gpu_burnin.hardware import HardwareDataError, Preflight, Runtime, load_reasons, load_skus, load_xids, make_reason
from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.state import GpuState
from gpu_burnin.types import Action, Verdict

PACKAGE = Path(__file__).resolve().parents[3] / "gpu_burnin"
PROMISED_CODES = {
    "GEMM_MISMATCH", "HBM_BIT_ERROR", "XID_FATAL", "XID_UNKNOWN", "XID_SOURCE_MISSING", "GPU_LOST", "GPU_COUNT",
    "NVLINK_DOWN", "NVLINK_ERRORS", "PCIE_DEGRADED", "THROTTLED", "SLOW", "HUNG", "DIED_DURING_CHECK",
    "REMAP_PENDING", "REMAP_FAILED", "ECC_UNCORRECTED", "SELFTEST_BLIND", "COVERAGE_LOW", "SIMULATED",
}  # fmt: skip


def test_every_code_that_people_rely_on_is_described() -> None:
    assert set(load_reasons()) >= PROMISED_CODES


def test_every_code_in_the_source_is_described() -> None:
    pattern = re.compile(r"""(?:make_reason|_say|Reason)\(\s*(?:code=)?["']([A-Z][A-Z_0-9]+)["']""")
    used = {code for path in PACKAGE.rglob("*.py") for code in pattern.findall(path.read_text(encoding="utf-8"))}
    assert len(used) > 20
    assert used <= set(load_reasons())


def test_reason_takes_action_and_severity_from_the_table() -> None:
    reason = make_reason("GPU_LOST", "state", "gone", gpu="GPU-1")
    assert (reason.action, reason.severity) == (Action.POWER_CYCLE, Verdict.FAIL)
    assert make_reason("GPU_LOST", "state", "gone", action=Action.HOLD).action is Action.HOLD
    with pytest.raises(KeyError):
        make_reason("NO_SUCH_CODE", "state", "text")


def test_every_failing_code_says_what_to_do() -> None:
    for info in load_reasons().values():
        assert info.summary and info.what_to_do.endswith(".")
        assert info.severity is Verdict.INCONCLUSIVE or info.action is not Action.NONE


def test_xids_of_the_policy() -> None:
    table = load_xids()
    for code in (13, 31, 43, 45, 68, 109):
        assert table.xids[code].runtime is Runtime.WARN
    for code in (46, 48, 62, 64, 74, 79, 95, 119, 140, 158):
        assert (table.xids[code].preflight, table.xids[code].runtime) == (Preflight.FAIL, Runtime.REVOKE)
    # Everything that Azure fails a node for is known here.
    azure = {48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120}
    assert azure <= set(table.xids)
    assert table.sxids[23010].preflight is Preflight.FAIL
    assert table.policy(20034, sxid=False) is None
    for policy in (*table.xids.values(), *table.sxids.values()):
        assert policy.preflight is not Preflight.FAIL or policy.action is not Action.NONE


@pytest.mark.parametrize(
    ("device", "subsystem", "key"),
    [
        (0x2330, 0x16C1, "h100-sxm5-80gb"),
        (0x2335, 0x18BE, "h200-sxm"),
        (0x20B2, 0x1463, "a100-sxm4-80gb"),
        (0x20B0, 0xABCD, "a100-sxm4-40gb"),
        (0x2901, 0x1999, "b200-sxm"),
        (0x26B9, 0x1851, "l40s"),
        (0x2342, 0x1809, "gh200-480gb"),
        (0x1EB8, 0x12A2, "t4"),
        (0x1DB1, 0x1212, "v100-sxm2-16gb"),
        (0x1DB5, 0x1249, "v100-sxm2-32gb"),
        (0x2236, 0x1482, "a10"),
        (0x20B7, 0x1804, "a30"),
        (0x2235, 0x145A, "a40"),
        (0x2BB5, 0x204E, "rtx-pro-6000-server"),
        (0x2E12, 0x21EC, "gb10"),
        (0x31C2, 0x21F1, "gb300"),
    ],
)
def test_models_are_found_by_pci_id(device: int, subsystem: int, key: str) -> None:
    sku = load_skus().find(device << 16 | 0x10DE, subsystem << 16 | 0x10DE)
    assert sku and sku.key == key


def test_unknown_or_foreign_models_are_not_guessed() -> None:
    assert load_skus().find(0x999910DE, 0x000010DE) is None
    assert load_skus().find(0x23301022, 0x16C110DE) is None


def test_sku_data_make_sense() -> None:
    table = load_skus()
    fields = set(GpuState.__dataclass_fields__)
    for sku in table.skus.values():
        assert sku.unsupported <= fields
        assert sku.fabric <= (sku.nvlink_links > 0)
        assert all(floor.value > 0 and floor.source for floor in sku.floors.values())
        assert sku.peaks_source
        assert set(sku.precisions) >= {"fp64", "fp32"}
        assert ("fp8_e4m3" in sku.precisions) == ("fp8" in sku.peaks)
        assert sku.peaks["fp64_vector"] <= sku.peaks.get("fp64_tensor", sku.peaks["fp64_vector"])
        if sku.key == "gb10":  # of whose tensor cores no rates are published
            assert set(sku.precisions) == {"fp64", "fp32"}
            continue
        assert sku.peaks.get("fp64_tensor", 0) < sku.peaks["fp16"]
        if sku.architecture in ("volta", "turing"):
            assert not set(sku.precisions) & {"tf32", "bf16", "fp8_e4m3"}
            continue
        assert set(sku.precisions) >= {"tf32", "bf16", "fp16"}
        assert ("fp8" in sku.peaks) == (sku.architecture != "ampere")
        assert sku.peaks["fp32"] <= sku.peaks["tf32"] < sku.peaks["bf16"] == sku.peaks["fp16"]
        # No floor is above what the data path can do.
        for name in ("bf16", "fp16"):
            assert f"gemm_{name}" not in sku.floors or sku.floors[f"gemm_{name}"].value < sku.peaks[name]
    assert set(table.new_fields) <= fields | set(UNITS)
    assert set(JUDGED_FIELDS) <= fields


XID = """\
version: "1"
xids:
  - code: {code}
    meaning: text
    preflight: {preflight}
    runtime: revoke
    action: reboot
    source: somebody
{more}
sxids: []
nvlink5: []
"""


@pytest.mark.parametrize(
    ("code", "preflight", "more", "line", "complaint"),
    [
        ("79", "panic", "", 5, "must be one of fail, retry"),
        ("seventy", "fail", "", 3, "neither a code nor a range"),
        ("79", "fail", "    colour: red", 9, "unknown key 'colour'"),
        ("79", "fail", "    meaning: again", 9, "given twice"),
        ("79", "fail", "    text:\n      - {match: '(', preflight: fail, runtime: log, action: none}", 10, "regular"),
        ("[79, 79]", "fail", "", 3, "described twice"),
    ],
)
def test_malformed_xid_table(tmp_path: Path, code: str, preflight: str, more: str, line: int, complaint: str) -> None:
    path = tmp_path / "xid.yaml"
    path.write_text(XID.format(code=code, preflight=preflight, more=more))
    with pytest.raises(HardwareDataError, match=rf"{re.escape(str(path))}:{line}: .*{complaint}"):
        load_xids(path)


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("SLOW:\n  summary: a\n  what_to_do: b\n  action: hold\n  severity: PASS\n", 5, "FAIL or INCONCLUSIVE"),
        ("SLOW:\n  summary: a\n", 2, "missing"),
        ("slow:\n  summary: a\n  what_to_do: b\n  action: hold\n  severity: FAIL\n", 2, "upper case"),
        ("- a\n", 1, "must be a mapping"),
        ("a: [\n", 2, "is not YAML"),
        ("SLOW: {summary: a}\nFAST: {}\nSLOW: {summary: b}\n", 3, "'SLOW' is given twice"),
        ("SLOW:\n  summary: {of: [{a: 1, a: 2}]}\n", 2, "'a' is given twice"),
        ("", 1, "empty"),
    ],
)
def test_malformed_reasons(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    path = tmp_path / "reasons.yaml"
    path.write_text(text)
    with pytest.raises(HardwareDataError, match=rf"{re.escape(str(path))}:{line}: .*{complaint}"):
        load_reasons(path)


NVLINK = """\
version: "1"
xids: []
sxids: []
nvlink5:
  - code: {code}
    unit: RLW_CTRL
    status: {status}
    flags: {flags}
    severity: {severity}
    preflight: warn
    runtime: warn
    action: retest
{more}
"""


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        ({"code": "79"}, 5, "must be from 144 to 150"),
        ({"status": "[many]"}, 7, "whole number"),
        ({"status": "5"}, 7, "must be a list"),
        ({"flags": "maybe"}, 8, "true or false"),
        ({"severity": "awful"}, 9, "must be one of nonfatal, fatal, link_fatal"),
        ({"more": "    colour: red"}, 13, "unknown key 'colour'"),
        (
            {"more": "  - {code: 145, unit: RLW_CTRL, status: [1], flags: true, severity: fatal, preflight: fail, "
             "runtime: log, action: none}"}, 13, "described twice",
        ),
    ],
)  # fmt: skip
def test_malformed_nvlink_table(tmp_path: Path, change: dict[str, str], line: int, complaint: str) -> None:
    good = {"code": "145", "status": "[1]", "flags": "true", "severity": "nonfatal", "more": ""}
    path = tmp_path / "xid.yaml"
    path.write_text(NVLINK.format(**good))
    assert load_xids(path).nvlink5[0].statuses == {1}
    bad = tmp_path / "bad.yaml"
    bad.write_text(NVLINK.format(**(good | change)))
    with pytest.raises(HardwareDataError, match=rf"{re.escape(str(bad))}:{line}: .*{complaint}"):
        load_xids(bad)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("fp64_vector: 9.7", "fp63: 9.7", "unknown key 'fp63'"),
        ("fp64_vector: 9.7, ", "", "fp64_vector missing"),
        ("fp64_vector: 9.7", "fp64_vector: 0", "must be above 0"),
        ("gemm_bf16:", "gemm_bf61:", "unknown floor 'gemm_bf61'"),
        ("value: 160", "value: -1", "must be above 0"),
        ("value: 160", "value: inf", "must be above 0"),
        ("unit: TFLOP/s", "unit: furlongs", "must be one of B/s, GB/s"),
        ("confidence: derived", "confidence: rumour", "must be one of measured, vendor, derived"),
    ],
)
def test_malformed_peaks_and_floors(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = (PACKAGE / "hardware/skus.yaml").read_text()
    path = tmp_path / "skus.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(HardwareDataError, match=rf"{re.escape(str(path))}:\d+: .*{complaint}"):
        load_skus(path)


def test_malformed_skus(tmp_path: Path) -> None:
    text = (PACKAGE / "hardware/skus.yaml").read_text()
    path = tmp_path / "skus.yaml"
    path.write_text(text.replace("pcie_width: 16", "pcie_width: wide", 1))
    line = text[: text.index("pcie_width: 16")].count("\n") + 1
    with pytest.raises(HardwareDataError, match=rf":{line}: must be a whole number, not 'wide'"):
        load_skus(path)
    with pytest.raises(HardwareDataError, match="cannot be read"):
        load_skus(tmp_path / "none.yaml")


def test_a_limit_that_fails_a_node_is_never_derived(tmp_path: Path) -> None:
    path = tmp_path / "skus.yaml"
    text = (PACKAGE / "hardware/skus.yaml").read_text()
    path.write_text(text.replace("    confidence: vendor", "    confidence: derived", 1))
    with pytest.raises(HardwareDataError, match=r"skus.yaml:\d+: a derived figure may only warn"):
        load_skus(path)
