"""Faults that the tests cause in the lab, each with the alert that it must raise.

Most others would take hours, or would go on in the tests after them; test_alert_replay.py has all, in a faster time.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .fleet import Fleet

_DISK = "/var/lib/etcd"
_KERNEL_LOG = "/run/lab/kmsg"
_GPUS = "/etc/fake-nvml/scenario"
_TEXTFILES = "/var/lib/prometheus/node-exporter"
_WATCH = f"{_TEXTFILES}/gpu_burnin_watch.prom"
_LAST_LOOK = "gpu_burnin_watch_last_look_timestamp_seconds"
_LB_CA = "/etc/haproxy/kubernetes-ca.crt"
_POLICY_HASH = "/etc/kubernetes/admission/policy.hash"
_FAILING = "/run/systemd/system/chrony.service.d/test.conf"


@dataclass(frozen=True)
class Fault:
    """A fault: the shell command on `host` that causes it, the one that ends it, and whom the alert is about."""

    alert: str
    host: str
    cause: str
    cure: str
    instance: str | None = None

    @property
    def about(self) -> tuple[str, str]:
        """The alert, and its label `instance`."""
        return self.alert, self.host if self.instance is None else self.instance


def stopped(alert: str, host: str, unit: str, instance: str | None = None) -> Fault:
    """A unit of a host that does not run."""
    return Fault(alert, host, f"systemctl stop {unit}", f"systemctl start {unit}", instance)


def _expired() -> str:
    """A certificate (PEM, in base64) that has ended."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2021, 1, 1, tzinfo=UTC)
    )
    return base64.b64encode(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)).decode()


# All at once: none of them hides another one, and the fleet works on. Those with a `for` of a minute come first: it
# passes while the others are caused.
FAULTS: Sequence[Fault] = (
    stopped("MusterEtcdMemberDown", "etcd-3", "etcd.service"),
    # Of the member that is stopped.
    Fault("MusterDiskReadOnly", "etcd-3", f"mount -o remount,ro {_DISK}", f"mount -o remount,rw {_DISK}"),
    Fault(
        "MusterUnitFailed",
        "system-1",
        f"mkdir -p {_FAILING.rpartition('/')[0]} && printf '[Service]\\nExecStartPre=false\\nRestart=no\\n' >{_FAILING}"
        " && systemctl daemon-reload && ! systemctl restart chrony.service",
        f"rm -r {_FAILING.rpartition('/')[0]} && systemctl daemon-reload && systemctl restart chrony.service",
    ),
    stopped("MusterApiServerDown", "api-2", "kube-apiserver.service"),
    Fault("MusterApiServerOut", "lb-1", "true", "true"),  # by the one before
    stopped("MusterAdmitterDown", "api-2", "muster-admitter.service"),
    stopped("MusterAdmitterNoLeader", "api-1", "muster-admitter.service", ""),
    stopped("MusterExporterDown", "gpu-1", "nvidia-dcgm-exporter.service"),
    Fault(
        "MusterDiskFull",
        "etcd-events-1",
        f"fallocate -l $(($(stat -f -c '%a*%S' {_DISK}) - 10000000)) {_DISK}/test-full",
        f"rm {_DISK}/test-full",
    ),
    Fault(
        "MusterTextfileBroken",
        "gpu-1",
        f"echo 'no number' >{_TEXTFILES}/test.prom",
        f"rm {_TEXTFILES}/test.prom",
    ),
    # Of the node that is held: a blind agent would have an admitted one tested again.
    Fault(
        "MusterAgentBlind",
        "gpu-3",
        f"mv {_KERNEL_LOG} {_KERNEL_LOG}.test"
        f" && timeout 60 sh -c 'until grep -q kernel_log.*0$ {_WATCH}; do sleep 1; done'",
        f"mv {_KERNEL_LOG}.test {_KERNEL_LOG}",
    ),
    # Its last look is set back, in place of two minutes of waiting.
    Fault(
        "MusterAgentSilent",
        "gpu-3",
        f"systemctl stop gpu-burnin-watch.service && grep -q {_LAST_LOOK} {_WATCH}"
        f" && sed -i 's/^{_LAST_LOOK} .*/{_LAST_LOOK} 1/' {_WATCH}",
        "systemctl start gpu-burnin-watch.service",
    ),
    Fault(
        "MusterRemapFailed",
        "gpu-3",
        f"echo 'gpu0.remap_failure = yes' >>{_GPUS}",
        f"sed -i '/^gpu0.remap_failure/d' {_GPUS}",
    ),
    # Another one than the service's own, which goes on.
    Fault(
        "MusterCertificateEnds",
        "lb-1",
        f"cp -p {_LB_CA} {_LB_CA}.test && echo {_expired()} | base64 --decode >{_LB_CA}"
        " && systemctl start muster-certificates.service",
        f"mv {_LB_CA}.test {_LB_CA} && systemctl start muster-certificates.service",
    ),
    Fault(
        "MusterGatePolicyChanged",
        "api-1",
        f"cp -p {_POLICY_HASH} {_POLICY_HASH}.test && printf 'sha256:%064d\n' 0 >{_POLICY_HASH}"
        " && ! systemctl start muster-gate-probe.service",
        f"mv {_POLICY_HASH}.test {_POLICY_HASH} && systemctl start muster-gate-probe.service",
    ),
)
# What the lab's sick node has. Its XID is of the boot, and the burn-in has judged it: the agent does not count it.
SICK = frozenset({"MusterBurninFailed", "MusterEccUncorrected", "MusterRemapPending"})
# What is due on a lab where nobody does anything: its sick node, which is a third of its GPU nodes.
DUE = frozenset({*((name, "gpu-3") for name in SICK), ("MusterNodesOut", "")})
# Alerts that look back, and what the tests before did within that time: nothing of it is the lab's own.
LEFT = {
    "MusterBreakGlass": "site.yml and the tests of the gate use that certificate; an hour",
    "MusterImpersonation": "the tests of the gate try it; 15 minutes",
    "MusterForeignChange": "the tests of the gate change taints; 15 minutes",
    "MusterBrake": "the test of the brake; 10 minutes",
    "MusterEtcdLeaderChanges": "members of etcd are stopped; 15 minutes",
    "MusterXidWarned": "XIDs are raised; an hour",
    "MusterXidFatal": "likewise; until the node boots",
}
# Raised by tests of their own.
ELSEWHERE = SICK | {"MusterPlaceDown", "MusterHostDown", "MusterEtcdNoLeader", "MusterNodesOut"}


@contextmanager
def caused(fleet: Fleet, faults: Sequence[Fault]) -> Iterator[None]:
    """All these faults; ended in the reverse order, those that were caused before one that could not be too."""
    with ExitStack() as cures:
        for fault in faults:
            cures.callback(fleet.must, fault.host, fault.cure)
            fleet.must(fault.host, fault.cause)
        yield
