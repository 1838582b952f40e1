"""Hosts that do not answer SSH, in the words of `muster.fleet.silent_hosts`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.callback.silent_hosts import CallbackModule, problem

REFUSED = "Failed to connect to the host via ssh: ssh: connect to host 127.0.0.1 port 1: Connection refused"


def silent(host: str, said: str, may_miss: bool = False) -> Any:
    """What Ansible tells callbacks of a host that it cannot reach."""
    result = {"unreachable": True, "msg": said}
    place = SimpleNamespace(get_name=lambda: host)
    return SimpleNamespace(host=place, result=result, task=SimpleNamespace(ignore_unreachable=may_miss))


def error_lines(*results: Any, tasks: tuple[str, ...] = ("ansible.builtin.command",)) -> list[str]:
    callback, said = CallbackModule(), list[str]()
    callback._display = SimpleNamespace(error=said.append)
    for action in tasks:
        callback.v2_playbook_on_task_start(SimpleNamespace(action=action), False)
    for result in results:
        callback.v2_runner_on_unreachable(result)
    callback.v2_playbook_on_stats(None)
    return said


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (REFUSED, "gpu-1: the TCP connection was refused; start sshd on it, or correct ansible_port"),
        (
            "ssh: connect to host 198.51.100.1 port 22: Connection timed out",
            "gpu-1: no answer to SSH; look at power, BMC and network",
        ),
        (
            "ssh: Could not resolve hostname gpu-1: Name or service not known",
            "gpu-1: the name does not resolve; correct ansible_host or the name service",
        ),
        (
            "root@198.51.100.1: Permission denied (publickey).",
            "gpu-1: it refuses the login; correct ansible_user or the key; the host must know the key",
        ),
        (
            "No ED25519 host key is known for 198.51.100.1. Host key verification failed.",
            "gpu-1: its host key is not the pinned one; find out why before you pin another",
        ),
    ],
)
def test_what_ssh_says_in_our_words(said: str, line: str) -> None:
    assert problem("gpu-1", said).line() == line


def test_each_host_is_told_once_and_one_fault_of_many_is_one_line() -> None:
    (text,) = error_lines(silent("gpu-1", REFUSED), silent("gpu-1", "timed out"), silent("gpu-2", REFUSED))
    assert text == (
        "Hosts could not be used over SSH, and were left out: 1 problem.\n"
        "- gpu-1, gpu-2: the TCP connection was refused; start sshd on it, or correct ansible_port"
    )


def test_nothing_is_told_twice_or_of_hosts_that_may_be_missed() -> None:
    assert error_lines() == error_lines(silent("gpu-1", REFUSED, may_miss=True)) == []
    assert error_lines(silent("gpu-1", REFUSED), tasks=("muster.fleet.ssh_probe",)) == []
