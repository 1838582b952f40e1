"""Other versions of Kueue and JobSet under work, and the way back, in the order in which the playbooks do it.

Only here: the definitions change first, under the programs of before; then the programs of one host after the other,
and the leadership with them; a job runs on, and one that waits is let run afterwards. Two hosts of one API server: it
calls the webhooks of the first one. The newer programs are the same with another version in them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.mirror.programs import JOBSET_VERSION, KUEUE_VERSION
from tests.integration.jobs_start import answers, in_etc
from tests.integration.kube import Part, binaries, ended, free_ports, until
from tests.integration.kueue_roles import JOBSET, KUEUE, Roles, create, define, job, queue_and_nodes, roles_stack

NAMES = ("jobset", "kueue")  # in the order of the roles
VERSIONS = {"jobset": f"v{JOBSET_VERSION}", "kueue": f"v{KUEUE_VERSION}"}
NEWER = {"jobset": "v0.12.9", "kueue": "v0.19.9"}
CHANGED = ("CustomResourceDefinition/jobsets.jobset.x-k8s.io", "CustomResourceDefinition/workloads.kueue.x-k8s.io")
TEAM = "vision"


@dataclass(frozen=True)
class Host:
    """Kueue and JobSet of one API server's host; `health` are the ports on which they say that they are ready."""

    folder: Path
    parts: dict[str, Part]
    health: dict[str, int]

    def run(self, name: str, program: Path) -> None:
        """Put the program in the place of the one that is there, and restart its unit."""
        shutil.copy2(program, self.folder / "new")
        (self.folder / "new").replace(self.folder / name)
        part = self.parts[name]
        if part.running is not None:
            part.running.terminate()
            part.running.wait(30)
        part.start()
        until(f"the readiness of {part.log.stem}", lambda: answers(self.health[name]), 60)

    def version(self, name: str) -> str:
        """What the program has said of itself last."""
        told = [line for line in self.parts[name].log.read_text().splitlines() if "gitVersion" in line]
        return next(one for one in (VERSIONS[name], NEWER[name]) if f'"{one}"' in told[-1])


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    with roles_stack(tmp_path_factory.mktemp("roles")) as found:
        define(found)
        yield found


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same programs, which say of themselves that they are others."""
    place, folder = binaries(), tmp_path_factory.mktemp("newer")
    assert place is not None
    for name in NAMES:
        data = (place / name).read_bytes()
        (folder / name).write_bytes(data.replace(VERSIONS[name].encode(), NEWER[name].encode()))
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def hosts(roles: Roles) -> Iterator[Sequence[Host]]:
    server, (ports, place) = roles.server, (free_ports(6), binaries())
    assert place is not None
    (server.directory / "etc/kueue/metrics/certs").mkdir(parents=True, exist_ok=True)
    certificates = str(server.directory / "etc/kueue/metrics/certs")
    found = []
    with ExitStack() as stack:
        for number, (webhook_k, health_k, metrics, webhook_j, health_j, _) in enumerate((roles.ports, ports), 1):
            folder = server.directory / f"host-{number}"
            folder.mkdir()
            parts = {}
            for name, webhook, health in (("kueue", webhook_k, health_k), ("jobset", webhook_j, health_j)):
                config = copy.deepcopy(roles.values[name])
                config["webhook"] |= {"port": int(webhook), "certDir": certificates}
                config["health"]["healthProbeBindAddress"] = f"127.0.0.1:{health}"
                if name == "kueue":
                    config["metrics"]["bindAddress"] = f"127.0.0.1:{metrics}"
                (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
                command = [str(folder / name), f"--config={folder / name}.yaml", "--zap-devel=false"]
                command += [f"--kubeconfig={server.kubeconfig(f'muster:{name}')}"]
                if name == "kueue":
                    gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in roles.values["gates"].items())
                    command = in_etc(server.directory / "etc", [*command, f"--feature-gates={gates}"])
                parts[name] = Part(command, folder / f"{name}.log")
            stack.enter_context(ended(*parts.values()))
            found.append(Host(folder, parts, {"kueue": health_k, "jobset": health_j}))
        for host in found:
            for name in NAMES:
                host.run(name, place / name)
        queue_and_nodes(roles)
        yield found


def with_more(objects: Sequence[Any]) -> list[Any]:
    """Definitions with a field more, as newer versions have them."""
    found = copy.deepcopy(list(objects))
    for item in found:
        if f"{item['kind']}/{item['metadata']['name']}" in CHANGED:
            schema = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            schema["properties"]["spec"]["properties"]["more"] = {"type": "string"}
    return found


@dataclass(frozen=True)
class Work:
    """A JobSet that runs on all nodes of the queue, and a Job that waits for two of them."""

    roles: Roles
    mark: str

    def start(self) -> None:
        """Make both, until the first runs and the second stands in line."""
        jobs = self.roles.jobs
        spec = {**job("")["spec"], "parallelism": 4, "completions": 4}
        about = {"name": f"runs-{self.mark}", "labels": {"kueue.x-k8s.io/queue-name": "default"}}
        workers = {"name": "w", "replicas": 1, "template": {"spec": spec}}
        item = {"apiVersion": JOBSET, "kind": "JobSet", "metadata": about, "spec": {"replicatedJobs": [workers]}}
        until("the JobSet", lambda: create(jobs.root, TEAM, item).status in (201, 409), 60)
        until("its pods", lambda: len(jobs.bound(TEAM)) == 4, 60)
        jobs.running(TEAM)
        waits = job(f"waits-{self.mark}")
        until("the Job", lambda: create(jobs.root, TEAM, waits).status in (201, 409), 60)
        until("its place in line", lambda: "QuotaReserved" in self.waiting(), 60)

    def waiting(self) -> dict[str, str]:
        """Conditions of the Job's workload by their status."""
        found = [one for one in self.roles.jobs.workloads(TEAM) if f"-waits-{self.mark}-" in one["metadata"]["name"]]
        return {one["type"]: one["status"] for item in found for one in item.get("status", {}).get("conditions", [])}

    def stands(self) -> tuple[set[str], str | None, int]:
        """The pods of the JobSet that do not end, whether the Job has nodes, and how often the JobSet was restarted."""
        jobs = self.roles.jobs
        pods = {one["metadata"]["uid"] for one in jobs.pods(TEAM) if "deletionTimestamp" not in one["metadata"]}
        job_set = jobs.get(f"/apis/{JOBSET}/namespaces/{TEAM}/jobsets/runs-{self.mark}")
        return pods, self.waiting().get("Admitted"), job_set["status"].get("restarts", 0)

    def end(self) -> None:
        """The JobSet is done: the Job gets its nodes, and is done too."""
        jobs = self.roles.jobs
        for name in jobs.bound(TEAM):
            jobs.ended(TEAM, name)
        path = f"/apis/{JOBSET}/namespaces/{TEAM}/jobsets/runs-{self.mark}"
        until("the JobSet's end", lambda: jobs.get(path)["status"].get("terminalState") == "Completed", 60)

        def mine() -> list[str]:
            return [name for name in jobs.bound(TEAM) if name.startswith(f"waits-{self.mark}-")]

        until("the pods of the Job that waited", lambda: len(mine()) == 2, 60)
        for name in mine():
            jobs.ended(TEAM, name)
        for plural, version in (("jobsets", JOBSET), ("jobs", "batch/v1")):
            path = f"/apis/{version}/namespaces/{TEAM}/{plural}?propagationPolicy=Background"
            until(f"the {plural}", lambda path=path: jobs.root.request("DELETE", path).status == 200, 60)  # type: ignore[misc]
        until("an empty queue", lambda: not jobs.workloads(TEAM) and not jobs.pods(TEAM), 60)


@pytest.mark.parametrize("way", ["up", "back"])
@pytest.mark.soak
def test_work_goes_on_while_one_host_after_the_other_gets_other_programs(
    roles: Roles, hosts: Sequence[Host], newer: Path, way: str
) -> None:
    work, place = Work(roles, way), binaries()
    assert place is not None
    work.start()
    before = work.stands()
    assert before[1:] == (None, 0) and len(before[0]) == 4
    objects, programs, versions = with_more(roles.objects()), newer, NEWER
    if way == "back":
        objects, programs, versions = roles.objects(), place, VERSIONS
    assert sorted(roles.write(objects)) == list(CHANGED)
    # For a second or two after its definition has changed, a kind is not served (429, storage is initializing).
    for path in (f"/apis/{KUEUE}/workloads", f"/apis/{JOBSET}/jobsets"):
        until(path, lambda path=path: roles.jobs.root.request("GET", path).status == 200)  # type: ignore[misc]
    assert work.stands() == before
    for host in hosts:
        for name in NAMES:
            assert host.version(name) != versions[name]
            host.run(name, programs / name)
            assert (host.version(name), work.stands()) == (versions[name], before)
    work.end()
    for host in hosts:
        for name in NAMES:
            log = host.parts[name].log.read_text().splitlines()
            assert [line for line in log if "is forbidden" in line or "panic" in line.lower()] == []
