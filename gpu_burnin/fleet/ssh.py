"""Reaching hosts over SSH: connect with a checked host key, and probe many hosts at once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import resource
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko

from gpu_burnin.fleet.dial import Dialled, dial
from gpu_burnin.fleet.login import log_in
from gpu_burnin.fleet.model import ProbeResult, Problem, ProblemCode, SshError, Target
from gpu_burnin.system import known_hosts as kh

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_THREADS = 64
# Below the 1,024 neighbours that Linux keeps (net.ipv4.neigh.default.gc_thresh3), which dead hosts of one network fill.
# A login costs some 10 ms of processor time: those that wait for a thread keep to sshd's LoginGraceTime (120 s).
MOST_LINES = 1000
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
            f"showed a host key that {known.path} marks @revoked",
        )
    if pinned and key not in pinned:
        was = ", ".join(f"{k.key_type} {k.fingerprint}" for k in pinned)
        return Problem(
            ProblemCode.HOST_KEY_CHANGED,
            f"{seen}, but {known.path} has {was}",
            f"find out why; only if this machine was really reinstalled, forget the old key with {forget}",
            f"showed another host key than {known.path} has",
        )
    if target.fingerprint is not None and key.fingerprint != target.fingerprint:
        return Problem(
            ProblemCode.HOST_KEY_MISMATCH,
            f"{seen}, but the inventory expects {target.fingerprint}",
            "read the fingerprint on the host's console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub) "
            "and correct fleet_host_key_fingerprint, or find out who answers at this address",
            "showed another host key than the inventory expects",
        )
    if pinned or target.fingerprint is not None or trust_new:
        return None
    return Problem(
        ProblemCode.HOST_KEY_UNKNOWN,
        f"{seen}, which is neither in {known.path} nor given as fingerprint",
        "give its fingerprint (fleet_host_key_fingerprint), or accept keys seen for the first time "
        "(fleet_trust_new_hosts: true, or --trust-new) on a network you trust",
        f"showed a host key that is neither in {known.path} nor given as fingerprint",
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
    with _handshake(asyncio.run(dial(target, timeout_s)), target, known, trust_new, timeout_s) as connection:
        yield connection


@contextlib.contextmanager
def _handshake(
    dialled: Dialled, target: Target, known: kh.KnownHosts, trust_new: bool, timeout_s: float
) -> Iterator[Connection]:
    """Key exchange, host key and login on a line; it is closed at the end."""
    transport = paramiko.Transport(dialled.line)  # type: ignore[arg-type]
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
        yield Connection(transport, key, dialled.rtt_s, new_key)
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
    on_done: Callable[[int], None] = lambda hosts: None,
    others: Sequence[Target] = (),
) -> list[ProbeResult]:
    """Probe all hosts in parallel; results are in the order of `targets`.

    `others` are hosts of the fleet that are not dialled: none of the targets may have a key that is pinned for them.

    Hosts are dialled by the hundreds, and logged into by `threads` at a time. `on_done` is told how many hosts more are
    done. Keys seen for the first time and accepted (by fingerprint, or by `trust_new`) are added to `known_hosts`
    unless `write` is false; `new_key` marks them in both cases. Raises GpuBurninError for an unusable
    known_hosts file.
    """
    known = kh.load(known_hosts)
    pinned = [(other, key) for other in others for key in known.keys(other.address, other.port)]
    results = mark_duplicates(asyncio.run(_probe_all(targets, known, trust_new, timeout_s, threads, on_done)), pinned)
    if write:
        # One line for each address, even when an inventory names it twice.
        new = {(r.target.address, r.target.port): r.key for r in results if r.new_key and r.key is not None}
        kh.record(known, [(address, port, key) for (address, port), key in new.items()])
    return results


async def _probe_all(
    targets: Sequence[Target],
    known: kh.KnownHosts,
    trust_new: bool,
    timeout_s: float,
    threads: int,
    on_done: Callable[[int], None],
) -> list[ProbeResult]:
    loop = asyncio.get_running_loop()
    lines = asyncio.Semaphore(_lines(threads))

    async def probe_one(target: Target) -> ProbeResult:
        async with lines:
            try:
                dialled = await dial(target, timeout_s)
            except SshError as error:
                result = ProbeResult(target, (error.problem,))
            else:
                result = await loop.run_in_executor(pool, _log_in, dialled, target, known, trust_new, timeout_s)
        on_done(1)
        return result

    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(targets)))) as pool:
        # Names are resolved there too, each within the resolver's own time.
        loop.set_default_executor(pool)
        return await asyncio.gather(*(probe_one(target) for target in targets))


def _lines(threads: int) -> int:
    """How many connections may be open at once within the limit of open files; each thread also asks the agent."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MOST_LINES, soft - sum(1 for _ in Path("/proc/self/fd").iterdir()) - 2 * threads))


def mark_duplicates(
    results: Sequence[ProbeResult], pinned: Iterable[tuple[Target, kh.HostKey]] = ()
) -> list[ProbeResult]:
    """Add a problem to every host whose key another host also showed: cloned images, or one machine twice.

    `pinned` are keys of hosts that nobody has dialled.
    """
    owners: dict[str, list[Target]] = defaultdict(list)
    for result in results:
        if result.key is not None:
            owners[result.key.fingerprint].append(result.target)
    for target, key in pinned:
        if key.fingerprint in owners:
            owners[key.fingerprint].append(target)
    return [
        _with_duplicate(result, owners[result.key.fingerprint])
        if result.key is not None and len(owners[result.key.fingerprint]) > 1
        else result
        for result in results
    ]


def _log_in(dialled: Dialled, target: Target, known: kh.KnownHosts, trust_new: bool, timeout_s: float) -> ProbeResult:
    try:
        with _handshake(dialled, target, known, trust_new, timeout_s) as connection:
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
        f"have the same host key {fingerprint}",
    )
    return replace(result, problems=(*result.problems, problem), new_key=False)


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
        kind = f"the key exchange with {transport.remote_version or 'the server'} failed"
        problem = Problem(
            ProblemCode.KEX_FAILED,
            f"{target.place}: {kind} ({error or 'it hung up'})",
            "allow a current key exchange, cipher and an ed25519 host key in its sshd_config",
            kind,
        )
        raise SshError(problem) from error
    return kh.HostKey(remote.get_name(), base64.b64encode(remote.asbytes()).decode("ascii"))


def _blob_type(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm
