"""Which machine a person expects, and how its key came to be believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach.expected import COMPARED, FIRST_USE, first_use, of_file, of_fingerprint
from tests.support.enrolments import CLAIM, KEY, MACHINE

OTHER = "ssh-ed25519 BBBB"


@pytest.mark.parametrize(
    ("lines", "how", "words"),
    [
        (f"gpu-1 {KEY}", COMPARED, "its key is the one in"),
        (f"gpu-1 {OTHER}\ngpu-1 {KEY} of a comment", COMPARED, "its key is the one in"),
        (f"gpu-1 {KEY}\ngpu-1 machine-id {MACHINE}", COMPARED, "its key is the one in"),
        # What everybody knows proves nothing of a key.
        (f"gpu-1 machine-id {MACHINE}", FIRST_USE, "its machine id is the one in"),
        (f"gpu-1 {OTHER}", "", "its key is SHA256:"),
        (f"gpu-1 machine-id {'b' * 32}", "", f"its machine id is {MACHINE}"),
        (f"gpu-1 {KEY}\ngpu-1 machine-id {'b' * 32}", "", f"its machine id is {MACHINE}"),
        (f"gpu-1 {KEY}\n@revoked * {KEY}", "", "@revoked"),
        (f"gpu-2 {KEY}", "", "has neither a key"),
        ("gpu-1 ssh-rsa AAAA", "", "has neither a key"),
        ("", "", "has neither a key"),
    ],
)
def test_a_machine_is_the_one_of_the_file_or_not(tmp_path: Path, lines: str, how: str, words: str) -> None:
    path = tmp_path / "expected"
    path.write_text(f"# of the console\n{lines}\n")
    trust = of_file(path)(CLAIM)
    assert words in (trust.why if how else trust.doubt)
    assert bool(trust.doubt) is not bool(how)
    assert not how or trust.how == how


def test_a_machine_id_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "expected"
    path.write_text("gpu-1 machine-id abcd\n")
    with pytest.raises(GpuBurninError, match=r"expected: 'abcd' of gpu-1 is no machine id"):
        of_file(path)


def test_a_file_that_is_not_there_approves_nobody(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match="no such file"):
        of_file(tmp_path / "expected")


def test_a_fingerprint_is_compared_with_the_key() -> None:
    assert of_fingerprint(CLAIM.fingerprint)(CLAIM).how == COMPARED
    assert "and not SHA256:x" in of_fingerprint("SHA256:x")(CLAIM).doubt
    assert of_fingerprint(CLAIM.fingerprint)(replace(CLAIM, host_key=OTHER)).doubt


def test_with_neither_the_first_who_comes_is_believed() -> None:
    assert (first_use(CLAIM).how, first_use(CLAIM).doubt) == (FIRST_USE, "")
