"""Every kubectl command of the runbooks, as it stands there, by the everyday admin against a real API server.

Only here: the lines of the pages are run as they stand there, by a real kubectl.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.gate import held_node
from tests.integration.kube import Client, Server, binaries, until
from tests.support.runbooks import PAGES, Command, commands

KUBECTL = {one.line: one for page in PAGES for one in commands(page) if one.parts[0][0] == "kubectl"}
# What a command must say; those that say something else each time must end well alone.
SAYS = {
    "current_executing_seats": "apiserver_flowcontrol_current_executing_seats{",
    "dump_requests": "PriorityLevelName",
    "get lease": "kube-controller-manager",
    "config view": "certificate-authority-data",
    " drain ": "drained",
    " uncordon ": "uncordoned",
    " delete node ": "deleted",
    " get nodes": "NAME",
}


@pytest.fixture(scope="module")
def leases(root: Client) -> None:
    """Those of the two controllers, which do not run here."""
    for name in ("kube-scheduler", "kube-controller-manager"):
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
        made = root.request("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease)
        assert made.status in (201, 409), made.message


def run(command: Command, node: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    """The line in a shell, with a node's name and this kubeconfig in the place of the page's, also of a person's."""
    line = re.sub(r"STATE/kubeconfig/(admin|user-alice)\.kubeconfig", str(kubeconfig), command.line)
    line = re.sub(r"(?<= )(HOST|gpu-004|gpu-1)(?= |$)", node, line)
    found = binaries()
    assert found is not None
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{found}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize("line", KUBECTL)
def test_it_does_what_the_page_gives_it_for(line: str, ledger: Server) -> None:
    done = run(KUBECTL[line], held_node(ledger), ledger.kubeconfig("ann@example.com", ["muster:admins"]))
    assert done.returncode == 0, done.stdout + done.stderr
    for part, wanted in SAYS.items():
        if part in line:
            assert wanted in done.stdout


@pytest.mark.parametrize("path", ["/api/v1/nodes/HOST/proxy/pods", "/debug/pprof/heap"])
def test_a_command_that_the_admin_may_not_give_is_seen(path: str, ledger: Server) -> None:
    command = Command("", f"kubectl get --raw {path}")
    done = run(command, held_node(ledger), ledger.kubeconfig("ann@example.com", ["muster:admins"]))
    assert done.returncode != 0 and "forbidden" in done.stderr.lower()


def test_an_impersonation_is_found_in_the_audit_log(root: Client, server: Server) -> None:
    """By the line of the page, on the server's own log."""
    (line,) = (one.line for page in PAGES for one in commands(page) if "impersonatedUser" in one.line)
    line = line.replace("/var/log/kubernetes", str(server.directory))
    user = "somebody-else"
    root.request("GET", "/api/v1/nodes", headers={"Impersonate-User": user})

    def found() -> bool:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        return f'"impersonatedUser":{{"username":"{user}"' in done.stdout

    until("the line shows who was impersonated", found)
