"""Jobs of the lab's teams as researchers start them and look at them, and the store that keeps their work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .fleet import Fleet

IMAGE = "lab.muster.dev/python:1"
# What keeps the teams' work: a job's pods share nothing else between two lives.
STORE = """
apiVersion: v1
kind: Pod
metadata: {name: store, labels: {app: store}}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  terminationGracePeriodSeconds: 1
  containers:
    - name: store
      image: IMAGE
      imagePullPolicy: Never
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      command:
        - python3
        - -c
        - |
          import http.server
          kept = {}
          class Store(http.server.BaseHTTPRequestHandler):
              def do_GET(self):
                  self.send_response(200)
                  self.end_headers()
                  self.wfile.write(kept.get(self.path, b"0"))
              def do_PUT(self):
                  kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
                  self.send_response(200)
                  self.end_headers()
          http.server.ThreadingHTTPServer(("", 8080), Store).serve_forever()
---
apiVersion: v1
kind: Service
metadata: {name: store}
spec: {selector: {app: store}, ports: [{port: 8080}]}
""".replace("IMAGE", IMAGE)


def launch(fleet: Fleet, user: str, script: Path, name: str, nodes: int, *words: object) -> None:
    """Start a job of the user's team, with these words as its program's arguments."""
    team = {"user-alice": "vision", "user-bob": "audio"}[user]
    options = ("--team", team, "--name", name, "--nodes", str(nodes), "--image", IMAGE, "--no-follow")
    done = fleet.muster("run", str(script), *options, *(["--", *map(str, words)] if words else []), user=user)
    assert done.rc == 0, done.err + done.out


def where(fleet: Fleet, team: str, job: str) -> set[str]:
    """The nodes on which a job's pods run now."""
    pods = fleet.get("pods", "-n", team, "-l", f"jobset.sigs.k8s.io/jobset-name={job}")["items"]
    return {pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running"}


def jobset(fleet: Fleet, team: str, name: str) -> Mapping[str, Any]:
    """Its JobSet."""
    found: Mapping[str, Any] = fleet.get("jobset", "-n", team, name)
    return found


def ended(fleet: Fleet, team: str, name: str) -> bool:
    """Whether it has ended well."""
    return bool(jobset(fleet, team, name)["status"].get("terminalState") == "Completed")


def why(fleet: Fleet, user: str, job: str) -> str:
    """What `muster why` says of it, on one line."""
    done = fleet.muster("why", job, user=user)
    assert done.rc == 0, done.err
    return " ".join(done.out.split())
