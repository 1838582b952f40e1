"""What is known of a host's burn-in, and whether it needs another one. Standard library only: runs on hosts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEVELS = ("quick", "standard", "extended")
WAVES = ("always", "granted", "never")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# The names gpu_burnin.node.store gives to runs: UTC time, then the sequence. The sequence orders them, not the clock.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-(\d{6,})")


@dataclass(frozen=True)
class Evidence:
    """The newest signed statement of a host and the report it is about.

    `problem` is one sentence when statement and report do not belong together; then nothing else may be believed.
    """

    run_id: str
    path: str
    sequence: int
    boot_id: str
    verdict: str
    level: str
    simulated: bool
    finished_at: str
    action: str
    reasons: tuple[Mapping[str, Any], ...]
    problem: str = ""
    warnings: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Decision:
    """Whether to run, and why, as one clause without a full stop."""

    run: bool
    why: str


def _newest_run(state_dir: Path) -> tuple[int, Path] | None:
    runs = state_dir / "runs"
    if not runs.is_dir():
        return None
    found = [
        (int(match[1]), entry)
        for entry in runs.iterdir()
        if (match := _RUN_ID.fullmatch(entry.name)) and (entry / "evidence.json").is_file()
    ]
    return max(found, default=None)


def _unreadable(sequence: int, path: Path, problem: str) -> Evidence:
    return Evidence(path.name, str(path), sequence, "", "", "", False, "", "", (), problem)


def newest_evidence(state_dir: Path) -> Evidence | None:
    """The evidence with the highest sequence under `state_dir`, or None when there is none yet.

    The signature is the gate's business (`gpu-burnin gate`); here the report is held against its SHA-256 in the
    statement, so that verdict and reasons shown are those that were signed. Raises OSError when unreadable.
    """
    newest = _newest_run(state_dir)
    if newest is None:
        return None
    sequence, path = newest
    try:
        statement = json.loads((path / "evidence.json").read_bytes())
        body = (path / "report.json").read_bytes()
        if hashlib.sha256(body).hexdigest() != statement["report_sha256"]:
            return _unreadable(sequence, path, f"{path}/report.json is not the report that was signed")
        report = json.loads(body)
        return Evidence(
            run_id=path.name,
            path=str(path),
            sequence=sequence,
            boot_id=str(statement["boot_id"]),
            verdict=str(statement["verdict"]),
            level=str(statement["level"]),
            simulated=bool(statement["simulated"]),
            finished_at=str(statement["finished_at"]),
            action=str(report["action"]),
            reasons=tuple(report["reasons"]),
            warnings=tuple(report.get("warnings", ())),  # version 0.1.0 had none
        )
    except FileNotFoundError as error:
        return _unreadable(sequence, path, f"{error.filename} is missing")
    except (ValueError, KeyError, TypeError) as error:
        return _unreadable(sequence, path, f"{path} cannot be read ({type(error).__name__}: {error})")


def decide(
    evidence: Evidence | None, *, boot_id: str, level: str, retest: bool, gate_open: bool, revoked: bool
) -> Decision:
    """Whether the host needs a burn-in now.

    A FAIL or INCONCLUSIVE of this boot stands until somebody asks for a retest, and so does a revocation. A PASS
    stands when it was at least of the wanted `level` and the host's own gate accepts it.
    """
    if retest:
        return Decision(True, "a retest was asked for")
    if evidence is None:
        return Decision(True, "no burn-in has been completed on this host")
    if evidence.problem:
        return Decision(True, evidence.problem)
    if evidence.boot_id != boot_id:
        return Decision(True, "the host was started again since its last burn-in")
    if evidence.verdict != "PASS":
        return Decision(False, f"the {evidence.verdict} of this boot stands until a retest is asked for")
    if level not in LEVELS or evidence.level not in LEVELS:
        raise ValueError(f"level {level!r} or {evidence.level!r} is none of {', '.join(LEVELS)}")
    if LEVELS.index(evidence.level) < LEVELS.index(level):
        return Decision(True, f"this boot passed at {evidence.level}; {level} is required")
    if revoked:
        return Decision(False, "the gate was closed by hand or by the cluster; it opens after a retest")
    if not gate_open:
        return Decision(True, "the gate does not accept the pass of this boot")
    return Decision(False, "a pass of this boot exists")


def parse_show(text: str) -> dict[str, str]:
    """The KEY=VALUE lines of `systemctl show`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def is_busy(properties: Mapping[str, str]) -> bool:
    """True while the unit of `parse_show` output is at work or on its way up or down."""
    return properties.get("ActiveState") in {"active", "activating", "deactivating", "reloading"}


@dataclass(frozen=True)
class WaveRequest:
    """What the host's burn-in says of its power waves (`gpu_burnin.checks.power.grant_request` writes it).

    `state` is waiting, running, over or given_up; none when no burn-in that lives has asked. `waves_s` is how long
    the waves take, in seconds; times are RFC 3339 UTC, None before they come.
    """

    state: str = "none"
    asked_at: str = ""
    waves_s: float = 0.0
    granted_at: str | None = None
    over_at: str | None = None

    @property
    def open(self) -> bool:
        """Whether the waves are yet to come or under way."""
        return self.state in ("waiting", "running")


def wave_request(state_dir: Path, boot_id: str, proc: Path = Path("/proc")) -> WaveRequest:
    """The request of this host; one that a burn-in left which has ended in between is none.

    Raises ValueError for a file that is no request, OSError for one that cannot be read.
    """
    path = state_dir / "waves" / "request.json"
    try:
        found = json.loads(path.read_bytes())
        request = WaveRequest(
            str(found["state"]),
            str(found["asked_at"]),
            float(found["waves_s"]),
            found.get("granted_at"),
            found.get("over_at"),
        )
        gone = found["boot_id"] != boot_id or not (proc / str(int(found["pid"]))).exists()
    except FileNotFoundError:
        return WaveRequest()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no request for power waves ({type(error).__name__}: {error})") from error
    return WaveRequest() if gone and request.open else request


def grant_waves(state_dir: Path, request: WaveRequest) -> None:
    """Grant exactly this request. A reader sees the whole grant or none."""
    path = state_dir / "waves" / "grant"
    temporary = path.with_name(f".grant.{os.getpid()}")
    temporary.write_text(f"{request.asked_at}\n")
    temporary.chmod(0o600)
    temporary.replace(path)


def duration_s(text: str) -> int:
    """Seconds of a time like 90s, 30m, 2h or 1d; 0 for an empty one. Raises ValueError."""
    if not text:
        return 0
    match = re.fullmatch(r"(\d+)\s*([smhd])", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 30m, 2h or 1d")
    return int(match[1]) * _UNIT_S[match[2]]


def wave_options(waves: str, wait_s: int | None) -> list[str]:
    """Options of `gpu-burnin run` on power waves; what is empty or None is left to the host's configuration."""
    wait = ["--wave-wait", f"{wait_s}s"] if wait_s is not None else []
    return [*(["--waves", waves] if waves else []), *wait]


def run_command(
    program: str, level: str | None, extended_s: int, unit: str, publish_unit: str, waves: Sequence[str] = ()
) -> list[str]:
    """The systemd-run command line of one burn-in, independent of the SSH session that starts it.

    `level` None leaves it to the host's configuration; `waves` are options on power waves. FAIL and INCONCLUSIVE (exit
    codes 1 and 3) are results: the unit counts as failed only on a usage or configuration error. At its end, however
    it ends, the evidence is published when the node is in the cluster.
    """
    return [
        "systemd-run",
        f"--unit={unit}",
        "--description=GPU burn-in",
        "--quiet",
        # Comes back when the program runs: until then a unit whose start is only queued looks like one that has ended.
        "--service-type=exec",
        "--property=SuccessExitStatus=1 3",
        # SIGTERM to the run alone: it ends its workers itself and still leaves a report.
        "--property=KillMode=mixed",
        # When memory runs out the kernel takes a worker, of which the run tells: systemd shall not end the run for it.
        "--property=OOMPolicy=continue",
        f"--property=ExecStopPost=-/usr/bin/systemctl --no-block try-restart {publish_unit}",
        program,
        "run",
        *(["--level", level] if level else []),
        # Only the level extended has a length of its own.
        *(["--for", f"{extended_s}s"] if level == "extended" else []),
        *waves,
    ]


def sequence_of(evidence: Evidence | None) -> int:
    """The number of a result, 0 for none."""
    return evidence.sequence if evidence is not None else 0


def asked_for_waves(why: str, before: int) -> dict[str, Any]:
    """What the module returns of a run that stops at its power waves; `before` numbers the newest result then."""
    return {"changed": True, "ran": False, "why": why, "waves": "waiting", "sequence_before": before}


def summary(evidence: Evidence, *, gate_open: bool, gate_message: str) -> dict[str, Any]:
    """What the module returns about the newest evidence; `page` only when the run left one (version 0.1.0 did not)."""
    page = Path(evidence.path) / "report.html"
    return {
        "verdict": evidence.verdict,
        "reasons": [dict(reason) for reason in evidence.reasons],
        "burnin_warnings": [dict(warning) for warning in evidence.warnings],
        "action": evidence.action,
        "run_id": evidence.run_id,
        "level": evidence.level,
        "sequence": evidence.sequence,
        "simulated": evidence.simulated,
        "boot_id": evidence.boot_id,
        "finished_at": evidence.finished_at,
        "report": f"{evidence.path}/report.json",
        **({"page": str(page)} if page.is_file() else {}),
        "gate_open": gate_open,
        "gate_message": gate_message,
    }
