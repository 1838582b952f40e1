"""A Node that somebody deleted: a running kubelet does not register again, so it is restarted, ever more rarely."""

from __future__ import annotations

from collections.abc import Callable

from gpu_burnin.node.watch.system import System

# kubelet registers within seconds of its start.
_FIRST_S, _MOST_S = 60.0, 1800.0


class Registration:
    """Counts how long the Node is absent though kubelet runs."""

    def __init__(self, system: System, gate_is_open: Callable[[], bool]) -> None:
        self._system, self._gate_is_open = system, gate_is_open
        self._absent_since_s: float | None = None
        self._wait_s = _FIRST_S

    def present(self) -> None:
        """The Node is there, or nothing is known of it."""
        self._absent_since_s = None
        self._wait_s = _FIRST_S

    def unknown(self) -> None:
        """The API server says nothing: an absence that is not confirmed does not count."""
        self._absent_since_s = None

    def absent(self, now_s: float) -> None:
        """The API server says that there is no such Node."""
        if self._absent_since_s is None:
            self._absent_since_s = now_s

    def go_on(self, now_s: float) -> str:
        """Restart kubelet when it is time; a sentence for the journal, "" for nothing done."""
        if self._absent_since_s is None or now_s - self._absent_since_s < self._wait_s:
            return ""
        self._absent_since_s = now_s
        if not self._system.kubelet_runs():
            return ""
        if not self._gate_is_open():
            return "there is no Node of this name; kubelet is left alone: the gate is closed, it would not come back"
        waited_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _MOST_S)
        done = (
            "kubelet is restarted, so that it registers again"
            if self._system.restart_kubelet()
            else ("and systemd refuses to restart kubelet")
        )
        return f"there is no Node of this name for {waited_s:.0f} s though kubelet runs: {done}"
