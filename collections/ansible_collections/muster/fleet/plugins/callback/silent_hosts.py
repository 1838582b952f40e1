"""Callback: tells at the end, in a line each, which hosts a run could not use over SSH, and what to do."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.muster.fleet.plugins.module_utils.problems import Problem, report

DOCUMENTATION = r"""
name: silent_hosts
type: aggregate
short_description: Tell hosts that do not answer SSH in one line each
version_added: "0.3.0"
description:
  - Ansible says of a host that it cannot reach what C(ssh) said, in the middle of the run. This callback says at the
    end what is wrong with each such host and what to do; many hosts with the same fault are one line.
  - Hosts that the run has met by M(muster.fleet.ssh_probe) are told by that, and those that a task may miss
    (C(ignore_unreachable)) by nobody.
requirements:
  - C(muster.fleet.silent_hosts) in C(callbacks_enabled) in C(ansible.cfg).
author:
  - Muster (@muster)
"""
FIRST_CONTACT = "muster.fleet.ssh_probe"
# Words of ssh(1), what they mean, and what to do.
MEANINGS = (
    ("Connection refused", "the TCP connection was refused", "start sshd on it, or correct ansible_port"),
    ("Could not resolve", "the name does not resolve", "correct ansible_host or the name service"),
    ("Permission denied", "it refuses the login", "correct ansible_user or the key; the host must know the key"),
    ("Host key verification failed", "its host key is not the pinned one", "find out why before you pin another"),
)


def problem(host: str, said: str) -> Problem:
    """What is wrong with a host of which Ansible said this."""
    for words, meaning, fix in MEANINGS:
        if words in said:
            return Problem(meaning, fix, hosts=(host,))
    return Problem("no answer to SSH", "look at power, BMC and network", hosts=(host,))


class CallbackModule(CallbackBase):
    """Collects, and tells once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.silent_hosts"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Problem] = {}
        self._told = False

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """See whether the run meets its hosts itself."""
        self._told |= task.action == FIRST_CONTACT

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep the first that Ansible says of a host."""
        if result.task.ignore_unreachable:
            return
        host = result.host.get_name()
        self._found.setdefault(host, problem(host, str(result.result.get("msg", ""))))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Say it."""
        if self._found and not self._told:
            self._display.error(report("Hosts could not be used over SSH, and were left out", self._found.values()))
