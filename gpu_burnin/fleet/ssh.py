"""Reaching hosts over SSH: connect with a checked host key, and probe many hosts at once."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko

from gpu_burnin.fleet.login import log_in
from gpu_burnin.fleet.model import ProbeResult, Problem, ProblemCode, SshError, Target
from gpu_burnin.system import known_hosts as kh

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_THREADS = 64
# paramiko logs tracebacks of refused handshakes; here they become one sentence each.
_LOG_CHANNEL = "gpu_burnin.fleet.ssh.transport"
logging.getLogger(_LOG_CHANNEL).addHandler(logging.NullHandler())
logging.getLogger(_LOG_CHANNEL).propagate = False


@dataclass(frozen=True)
class Connection:
    """An SSH transport whose host key was checked; `new_key` says that known_hosts has not got it yet."""

    transport: paramiko.Transport
    key: kh.HostKey
    rtt_s: float
    new_key: bool


def judge_key(target: Target, key: kh.HostKey, known: kh.KnownHosts, *, trust_new: bool) -> Problem | None:
    """Decide whether `key` may be the target's; pure. A key unlike the pinned one never is."""
    seen = f"{target.name}: {target.pattern} showed the {key.key_type} host key {key.fingerprint}"
    pinned = known.keys(target.address, target.port)
    forget = f"ssh-keygen -R '{target.pattern}' -f {known.path}"
    if known.revoked(target.address, target.port, key):
        return Problem(
            ProblemCode.HOST_KEY_REVOKED,
            f"{seen}, which {known.path} marks @revoked",
            "make new host keys on it (rm /etc/ssh/ssh_host_*; ssh-keygen -A) before using it",
        )
    if pinned and key not in pinned:
        was = ", ".join(f"{k.key_type} {k.fingerprint}" for k in pinned)
        return Problem(
            ProblemCode.HOST_KEY_CHANGED,
            f"{seen}, but {known.path} has {was}",
            f"find out why; only if this machine was really reinstalled, forget the old key with {forget}",
        )
    if target.fingerprint is not None and key.fingerprint != target.fingerprint:
        return Problem(
            ProblemCode.HOST_KEY_MISMATCH,
            f"{seen}, but the inventory expects {target.fingerprint}",
            "read the fingerprint on the host's console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub) "
            "and correct fleet_host_key_fingerprint, or find out who answers at this address",
        )
    if pinned or target.fingerprint is not None or trust_new:
        return None
    return Problem(
        ProblemCode.HOST_KEY_UNKNOWN,
        f"{seen}, which is neither in {known.path} nor given as fingerprint",
        "give its fingerprint (fleet_host_key_fingerprint), or accept keys seen for the first time "
        "(fleet_trust_new_hosts: true, or --trust-new) on a network you trust",
    )


@contextlib.contextmanager
def connect(
    target: Target,
    known: kh.KnownHosts,
    *,
    trust_new: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Iterator[Connection]:
    """Open an authenticated connection; nothing is sent to a host whose key is not accepted.

    Raises SshError with the typed problem. Does not write known_hosts: see `probe` and `Connection.new_key`.
    """
    started = time.monotonic()
    try:
        sock = socket.create_connection((target.address, target.port), timeout=timeout_s)
    except OSError as error:
        raise SshError(_unreachable(target, error)) from error
    rtt_s = time.monotonic() - started
    # Small packets in turn: Nagle's algorithm would wait for a delayed ACK (40 ms) at each.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(sock)
    try:
        transport.set_log_channel(_LOG_CHANNEL)
        transport.banner_timeout = timeout_s
        transport.auth_timeout = timeout_s
        key = _exchange_keys(transport, target, known, timeout_s)
        problem = judge_key(target, key, known, trust_new=trust_new)
        if problem is not None:
            raise SshError(problem, key)
        log_in(transport, target, key)
        new_key = key not in known.keys(target.address, target.port)
        yield Connection(transport, key, rtt_s, new_key)
    finally:
        transport.close()


def probe(
    targets: Sequence[Target],
    known_hosts: Path,
    *,
    trust_new: bool = False,
    write: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    threads: int = DEFAULT_THREADS,
) -> list[ProbeResult]:
    """Probe all hosts in parallel; results are in the order of `targets`.

    Keys seen for the first time and accepted (by fingerprint, or by `trust_new`) are added to `known_hosts`
    unless `write` is false; `new_key` marks them in both cases. Raises GpuBurninError for an unusable
    known_hosts file.
    """
    known = kh.load(known_hosts)
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(targets)))) as pool:
        single = list(pool.map(lambda t: _probe_one(t, known, trust_new, timeout_s), targets))
    results = mark_duplicates(single)
    if write:
        # One line for each address, even when an inventory names it twice.
        new = {(r.target.address, r.target.port): r.key for r in results if r.new_key and r.key is not None}
        kh.record(known, [(address, port, key) for (address, port), key in new.items()])
    return results


def mark_duplicates(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    """Add a problem to every host whose key another host also showed: cloned images, or one machine twice."""
    owners: dict[str, list[Target]] = defaultdict(list)
    for result in results:
        if result.key is not None:
            owners[result.key.fingerprint].append(result.target)
    return [
        _with_duplicate(result, owners[result.key.fingerprint])
        if result.key is not None and len(owners[result.key.fingerprint]) > 1
        else result
        for result in results
    ]


def _probe_one(target: Target, known: kh.KnownHosts, trust_new: bool, timeout_s: float) -> ProbeResult:
    try:
        with connect(target, known, trust_new=trust_new, timeout_s=timeout_s) as connection:
            return ProbeResult(target, (), connection.key, connection.rtt_s, connection.new_key)
    except SshError as error:
        # The key was accepted if only the login failed: it is worth keeping.
        accepted = error.problem.code in (ProblemCode.LOGIN_FAILED, ProblemCode.IDENTITY_UNUSABLE)
        new_key = accepted and error.key not in known.keys(target.address, target.port)
        return ProbeResult(target, (error.problem,), error.key, None, new_key)


def _with_duplicate(result: ProbeResult, owners: Sequence[Target]) -> ProbeResult:
    others = ", ".join(f"{t.name} ({t.pattern})" for t in owners if t is not result.target)
    fingerprint = result.key.fingerprint if result.key else ""
    problem = Problem(
        ProblemCode.HOST_KEY_DUPLICATE,
        f"{result.target.name}: its host key {fingerprint} is also that of {others}",
        "give each host its own address, or make new host keys on the clones "
        "(rm /etc/ssh/ssh_host_*; ssh-keygen -A; systemctl restart ssh)",
    )
    return replace(result, problems=(*result.problems, problem), new_key=False)


def _unreachable(target: Target, error: OSError) -> Problem:
    if isinstance(error, socket.gaierror):
        what, fix = (
            f"the name does not resolve ({error.strerror})",
            "correct ansible_host or the name service",
        )
    elif isinstance(error, TimeoutError):
        what, fix = "no answer to a TCP connection", "check its power, its address and the firewalls"
    elif isinstance(error, ConnectionRefusedError):
        what, fix = "the TCP connection was refused", "start sshd on it, or correct the port (ansible_port, --port)"
    else:
        what, fix = f"the TCP connection failed ({error.strerror or error})", "correct its address or route"
    return Problem(ProblemCode.UNREACHABLE, f"{target.place}: {what}", fix)


def _exchange_keys(transport: paramiko.Transport, target: Target, known: kh.KnownHosts, timeout_s: float) -> kh.HostKey:
    pinned_types = {key.key_type for key in known.keys(target.address, target.port)}
    options = transport.get_security_options()
    if pinned_types and kh.EVIDENCE_KEY_TYPE not in pinned_types:
        # Like ssh: ask for a key that can be compared, else ed25519 comes first (paramiko's order).
        options.key_types = tuple(sorted(options.key_types, key=lambda t: _blob_type(t) not in pinned_types))
    try:
        transport.start_client(timeout=timeout_s)
        remote = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        if transport.remote_version:
            problem = Problem(
                ProblemCode.KEX_FAILED,
                f"{target.place}: the key exchange with {transport.remote_version} failed ({error or 'it hung up'})",
                "allow a current key exchange, cipher and an ed25519 host key in its sshd_config",
            )
        else:
            problem = Problem(
                ProblemCode.NO_SSH,
                f"{target.place}: something answers but no SSH banner came within {timeout_s:g} s",
                "check that the port is sshd's and that sshd does not refuse this address (MaxStartups)",
            )
        raise SshError(problem) from error
    return kh.HostKey(remote.get_name(), base64.b64encode(remote.asbytes()).decode("ascii"))


def _blob_type(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm
