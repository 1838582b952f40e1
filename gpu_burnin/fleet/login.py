"""Logging in with a private key: the one named, or those of the agent and of the user."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.pkey import UnknownKeyType

from gpu_burnin.fleet.model import Problem, ProblemCode, SshError, Target
from gpu_burnin.system import known_hosts as kh
from gpu_burnin.system.files import read_text

_DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
_UNREADABLE = (OSError, ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm)


def log_in(transport: paramiko.Transport, target: Target, key: kh.HostKey) -> None:
    """Authenticate on a transport whose host key was accepted; raises SshError with `key` in it."""
    tried: list[str] = []
    with contextlib.closing(paramiko.Agent()) as agent:
        for label, private in _private_keys(target, agent, key):
            tried.append(label)
            try:
                # A list that is not empty asks for a second factor, which we do not have.
                if not transport.auth_publickey(target.user, private):
                    return
            except paramiko.BadAuthenticationType as error:
                raise SshError(
                    Problem(
                        ProblemCode.LOGIN_FAILED,
                        f"{_who(target)}: the host does not accept keys (only {', '.join(error.allowed_types)})",
                        "set PubkeyAuthentication yes in its sshd_config",
                        f"does not accept keys (only {', '.join(error.allowed_types)})",
                    ),
                    key,
                ) from error
            except paramiko.AuthenticationException:
                continue
            except (paramiko.SSHException, EOFError, OSError):
                # It hung up, as sshd does after MaxAuthTries keys.
                break
    raise SshError(_refused(target, tried), key)


def _who(target: Target) -> str:
    return f"{target.name}: login as {target.user} at {target.pattern}"


def _refused(target: Target, tried: list[str]) -> Problem:
    what = f"refused with {', '.join(tried)}" if tried else "no private key to try (no agent, no ~/.ssh/id_*)"
    return Problem(
        ProblemCode.LOGIN_FAILED,
        f"{_who(target)}: {what}",
        f"put the public key into {target.user}'s authorized_keys there, or name another key or user "
        "(ansible_ssh_private_key_file, ansible_user)",
        f"login as {target.user} {what}",
    )


def _private_keys(target: Target, agent: paramiko.Agent, key: kh.HostKey) -> Iterator[tuple[str, paramiko.PKey]]:
    """The keys to offer, one by one: the identity named, or the agent's and the user's default ones."""
    if target.identity is not None:
        yield _identity(target, target.identity, agent, key)
        return
    for agent_key in agent.get_keys():
        yield f"agent key {agent_key.fingerprint}", agent_key
    for name in _DEFAULT_IDENTITIES:
        loaded = _load_quietly(Path.home() / ".ssh" / name)
        if loaded is not None:
            yield f"key ~/.ssh/{name}", loaded


def _identity(target: Target, path: Path, agent: paramiko.Agent, key: kh.HostKey) -> tuple[str, paramiko.PKey]:
    try:
        return f"key {path}", paramiko.PKey.from_path(str(path))
    except (TypeError, paramiko.PasswordRequiredException):
        # Protected by a passphrase (cryptography says TypeError): the agent may hold it.
        public = _public_blob(path)
        held = [k for k in agent.get_keys() if public is not None and k.asbytes() == public]
        if held:
            return f"agent key of {path}", held[0]
        what = "is protected by a passphrase and the agent does not hold it"
    except _UNREADABLE as error:
        what = f"cannot be read ({error})"
    raise SshError(
        Problem(
            ProblemCode.IDENTITY_UNUSABLE,
            f"{target.name}: the private key {path} {what}",
            "name a readable key (ansible_ssh_private_key_file, --identity), or ssh-add it with its .pub beside it",
            f"the private key {path} {what}",
        ),
        key,
    )


def _load_quietly(path: Path) -> paramiko.PKey | None:
    """A default key when it is there and has no passphrase."""
    with contextlib.suppress(TypeError, *_UNREADABLE):
        return paramiko.PKey.from_path(str(path))
    return None


def _public_blob(identity: Path) -> bytes | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return base64.b64decode(read_text(Path(f"{identity}.pub")).split()[1])
    return None
