"""The admitter's check of SSH signatures and ssh-keygen's agree on what holds and what does not."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.admission import sshsig
from gpu_burnin.api import evidence
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import signing
from tests.support.admission_helpers import new_host_key

DATA = b'{"node":"gpu-1"}'
BEGIN, END = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path, str]:
    directory = tmp_path_factory.mktemp("keys")
    own, other = directory / "own", directory / "other"
    return own, new_host_key(own), other, new_host_key(other)


def blob(signature: str) -> bytes:
    return base64.b64decode(signature.removeprefix(BEGIN).removesuffix(END).replace("\n", ""))


def armored(data: bytes) -> str:
    text = base64.b64encode(data).decode()
    return BEGIN + "".join(f"{text[at : at + 70]}\n" for at in range(0, len(text), 70)) + END


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_signature_of_the_host_holds(keys: tuple[Path, str, Path, str]) -> None:
    own, line, _, _ = keys
    signature = signing.sign(DATA, own)
    assert armored(blob(signature)) == signature  # the helpers change nothing by themselves
    assert sshsig.signature_holds(DATA, signature, line)
    assert evidence.signature_holds(DATA, signature, line)


def test_both_checks_refuse_every_other_byte(keys: tuple[Path, str, Path, str]) -> None:
    own, line, _, other_line = keys
    whole = signing.sign(DATA, own)
    raw = blob(whole)
    # Each field once, and both ends of the signature itself: ssh-keygen takes milliseconds for each. The version (6 to
    # 9) is not signed; ssh-keygen takes 0 too, we do not.
    for at in (0, 13, 20, 31, 45, 70, 80, 92, 100, 110, 120, len(raw) - 64, len(raw) - 1):
        forged = armored(flipped(raw, at))
        assert not evidence.signature_holds(DATA, forged, line), at
        assert not sshsig.signature_holds(DATA, forged, line), at
    assert not any(sshsig.signature_holds(DATA, armored(flipped(raw, at)), line) for at in range(len(raw)))
    assert not any(sshsig.signature_holds(DATA, armored(raw[:cut]), line) for cut in range(len(raw)))
    assert not sshsig.signature_holds(DATA, whole, other_line)
    assert not sshsig.signature_holds(DATA + b" ", whole, line)


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: armored(blob(whole) + b"\0"),
        lambda whole: whole.replace("BEGIN", "BEGINS"),
        lambda whole: "x" + whole,
        lambda whole: whole + "x",
        lambda whole: whole.replace("\n", " "),
        lambda whole: whole[:80] + "~" + whole[81:],
        lambda _: "",
        lambda _: BEGIN + END,
        lambda _: "é" * 100,
    ],
)
def test_what_is_no_signature_does_not_hold(keys: tuple[Path, str, Path, str], change: Callable[[str], str]) -> None:
    own, line, _, _ = keys
    assert not sshsig.signature_holds(DATA, change(signing.sign(DATA, own)), line)


def test_a_signature_for_another_purpose_does_not_hold(keys: tuple[Path, str, Path, str]) -> None:
    own, line, _, _ = keys
    for namespace, holds in (("git", False), (evidence.NAMESPACE, True)):
        command = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(own)]
        done = subprocess.run(command, input=DATA, capture_output=True, check=True)
        signature = done.stdout.decode()
        assert sshsig.signature_holds(DATA, signature, line) is holds
        assert evidence.signature_holds(DATA, signature, line) is holds
        assert sshsig.signature_holds(DATA, signature, line, namespace)
        assert evidence.signature_holds(DATA, signature, line, namespace)


def test_only_ed25519_keys_check_evidence() -> None:
    blob_of_rsa = base64.b64encode(b"\0\0\0\x07ssh-rsa\0\0\0\x01\x01").decode()
    with pytest.raises(GpuBurninError, match="ssh-ed25519 keys, not ssh-rsa"):
        sshsig.signature_holds(DATA, "", f"ssh-rsa {blob_of_rsa}")
