"""What asks the processes to leave, in one file. Standard library alone."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from gpu_burnin.launch.pod.output import say
from gpu_burnin.launch.pod.setup import Setup


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Leave:
    """The file that the processes see: what the node asks (a downward API file, empty while it asks nothing), or that
    the pod has to end, whichever came first."""

    def __init__(self, setup: Setup) -> None:
        self._file, self._node_file = setup.leave, setup.node_leave
        self._own: str | None = None
        self._shown = ""

    @property
    def is_shown(self) -> bool:
        """Whether somebody asks now."""
        return bool(self._shown)

    def pod_ends(self, grace_s: float) -> None:
        """The pod was told to end."""
        now = datetime.now(timezone.utc)  # noqa: UP017 Python 3.8 has no datetime.UTC
        document = {
            "since": _rfc3339(now),
            "deadline": _rfc3339(now + timedelta(seconds=grace_s)),
            "why": "the pod was told to end (SIGTERM): the job gives its nodes back, or this node is drained",
        }
        self._own = json.dumps(document)
        self.look()

    def look(self) -> None:
        """Show what is asked now."""
        asked = self._own or self._of_node()
        if asked == self._shown:
            return
        if asked:
            beside = self._file.with_name(self._file.name + ".new")
            beside.write_text(asked, encoding="utf-8")
            beside.replace(self._file)
            say(f"asked to leave: {asked}")
        elif self._file.exists():
            self._file.unlink()
            say("the node no longer asks to leave")
        self._shown = asked

    def _of_node(self) -> str:
        try:
            return self._node_file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""
