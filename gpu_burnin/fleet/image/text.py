"""Enrolments as people read them, and the files that hand a machine its token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_burnin.api.enrolment import KERNEL_ARGUMENT, Claim, Enrolment, EnrolmentError, Handed, claim_of
from gpu_burnin.fleet.image.enrolments import Known, doubts
from gpu_burnin.system.known_hosts import DEFAULT_PORT

# Where the image's first boot looks: gpu_burnin/node/enrol/given.py.
_PLACE = "/etc/muster/enrol"


class Stands(StrEnum):
    """How far a machine has come."""

    TOKEN = "token"
    WAITS = "waits"
    APPROVED = "approved"
    REFUSED = "refused"


@dataclass(frozen=True)
class Row:
    """One node: `fingerprint` is of the key that its machine signed with, `note` what a person should know."""

    node: str
    stands: Stands
    fingerprint: str = ""
    machine_id: str = ""
    product_uuid: str = ""
    note: str = ""


def rows(known: Known, port: int = DEFAULT_PORT) -> tuple[Row, ...]:
    """All enrolments, those that wait for a person first. Pure but for the check of signatures."""
    found = (_row(enrolment, known, port) for enrolment in known.enrolments.values())
    order = (Stands.WAITS, Stands.TOKEN, Stands.REFUSED, Stands.APPROVED)
    return tuple(sorted(found, key=lambda row: (order.index(row.stands), row.node)))


def _row(enrolment: Enrolment, known: Known, port: int) -> Row:
    name, spec = enrolment.name, enrolment.spec
    decision = spec.decision
    stands = Stands.WAITS if spec.claim else Stands.TOKEN
    note = f"no machine has come; the token ends at {spec.ends}" if not spec.claim else ""
    if decision is not None:
        stands = Stands.APPROVED if decision.approved else Stands.REFUSED
        note = f"by {decision.who} at {decision.at}: {decision.why}"
    if not spec.claim:
        return Row(name, stands, note=note)
    try:
        claim: Claim = claim_of(enrolment)
    except EnrolmentError as error:
        return Row(name, stands, note=str(error))
    if decision is None:
        note = " | ".join(doubts(enrolment, claim, known, port)) or f"its token ends at {spec.ends}"
    return Row(name, stands, claim.fingerprint, claim.machine_id, claim.product_uuid, note)


def table(found: Sequence[Row]) -> str:
    """For a terminal: a line each, and its note below."""
    if not found:
        return "no machine was given a token (muster image token NODE)"
    widest = max(len(row.node) for row in found)
    lines = []
    for row in found:
        machine = f"  {row.fingerprint}  machine {row.machine_id}" if row.fingerprint else ""
        lines.append(f"{row.node:<{widest}}  {row.stands:<8}{machine}".rstrip())
        if row.note:
            lines.append(f"{'':<{widest}}  {row.note}")
    return "\n".join(lines)


def handed_files(handed: Handed) -> Mapping[str, str]:
    """What hands a machine its token, by file name: cloud-init's two (NoCloud, ConfigDrive and clouds), or one word for
    the kernel's command line."""
    return {
        "user-data": (
            "#cloud-config\n"
            # The image makes them itself, and enrols with them.
            "ssh_deletekeys: false\n"
            "write_files:\n"
            f"  - path: {_PLACE}\n"
            '    permissions: "0600"\n'
            f'    content: "{handed.text}\\n"\n'
        ),
        # Another instance for each token: cloud-init writes the file once for each.
        "meta-data": f"instance-id: enrol-{handed.token}\nlocal-hostname: {handed.node}\n",
        "kernel-argument": f"{KERNEL_ARGUMENT}={handed.text}\n",
    }
