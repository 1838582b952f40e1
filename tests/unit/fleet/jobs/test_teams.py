"""`muster teams` against recorded objects: quotas, what waits and why, what is free, and what few rights show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.api.kueue import gpus
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.fleet.jobs.count import Facts, teams_of
from gpu_burnin.fleet.jobs.teams import Teams
from gpu_burnin.fleet.jobs.teams_page import render as page_of
from gpu_burnin.fleet.jobs.teams_text import render
from gpu_burnin.system.clock import NEVER
from tests.support.fake_api import FakeApi, Refused
from tests.support.fleet_samples import NAMES, admission
from tests.support.page_reader import Parsed, problems
from tests.support.recorded_jobs import recorded, served

PAGE = Path(__file__).parents[4] / "docs/operations/why-a-job.md"
MODEL = "h100-sxm5-80gb"


def facts(**more: Any) -> Facts:
    fleet = recorded("fleet")
    given = {
        "cluster_queues": fleet["clusterqueues"],
        "locals": fleet["localqueues"],
        "flavors": fleet["resourceflavors"],
        "workloads": fleet["workloads"],
        "nodes": fleet["nodes"],
        "admissions": [],
    }
    return Facts(**{**given, **more})


def counted(**more: Any) -> Teams:
    return teams_of(facts(**more), NAMES, NEVER.replace(year=2026))


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = served()
    for item in recorded("fleet")["workloads"]:
        server.put("workloads", item)
    server.objects["nodeadmissions"] = {}
    yield server
    server.close()


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return CliRunner().invoke(muster.cli, ["teams", *arguments, "--kubeconfig", str(kubeconfig)])


def test_quota_used_borrowed_and_lent_are_by_team_and_model() -> None:
    shares = {(team.name, share.dedicated): share for team in counted().teams for share in team.shares}
    vision, audio, own = shares["vision", False], shares["audio", False], shares["audio", True]
    speech = shares["speech", False]
    assert (vision.model, vision.quota, vision.used, vision.borrowed, vision.lent) == (MODEL, 32, 48, 16, 0)
    assert (own.quota, own.used, own.lent) == (16, 8, 0), "what is dedicated is lent to nobody"
    assert (audio.quota, audio.used, audio.lent) == (16, 0, 16), "its 16 unused are those that vision borrows"
    assert (speech.quota, speech.used, speech.reserved, speech.lent) == (8, 0, 8, 0), "held while a node is checked"


def test_what_is_borrowed_is_what_is_lent() -> None:
    found = counted()
    lent = sum(share.lent or 0 for team in found.teams for share in team.shares)
    assert lent == found.sums["borrowed"] == 16


def test_what_is_in_no_team_s_quota_is_lent_first() -> None:
    """As the provisioner writes it: the rest of the fleet is the cohort's own."""
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": []}
    group["flavors"] = [{"name": MODEL, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "12"}]}]
    found = counted(cohorts=[{"metadata": {"name": "fleet"}, "spec": {"resourceGroups": [group]}}])
    assert [(one.model, one.quota, one.lent) for one in found.rest] == [(MODEL, 12, 12)]
    lent = {(team.name, share.dedicated): share.lent for team in found.teams for share in team.shares}
    assert lent["audio", False] == 4
    assert "(no team) h100-sxm5-80gb 12 12" in " ".join(render(found).split())


def test_a_team_that_lends_nothing_has_lent_nothing() -> None:
    queues = recorded("fleet")["clusterqueues"]
    for item in queues:
        for flavor in item["spec"]["resourceGroups"][0]["flavors"]:
            flavor["resources"][0]["lendingLimit"] = "5" if item["metadata"]["name"] == "audio" else "0"
    lent = {share.lent for team in counted(cluster_queues=queues).teams for share in team.shares}
    assert lent == {0, 5}


@pytest.mark.parametrize(
    ("text", "number"), [("256", 256), (8, 8), ("1k", 1000), ("1500m", 1), (None, 0), ("2M", 2000000)]
)
def test_quantities_are_read_as_kubernetes_writes_them(text: Any, number: int) -> None:
    assert gpus(text) == number


def test_a_queue_is_told_with_the_reason_of_its_first() -> None:
    teams = {team.name: team for team in counted().teams}
    vision = teams["vision"]
    assert (vision.jobs, vision.gpus, vision.running, vision.checking) == (2, 40 + 72, 2, 0)
    assert vision.first is not None and vision.first.job == "vision/rack5" and vision.first.wait.never
    assert "40 GPUs in one rack, and the largest rack has 32" in vision.first.wait.sentence
    speech = teams["speech"]
    assert (speech.jobs, speech.checking) == (0, 1)
    assert speech.first is not None and "check verified has not let it go" in speech.first.wait.sentence
    assert teams["audio"].first is None


def test_the_first_of_a_queue_is_that_of_the_highest_priority() -> None:
    workloads = recorded("fleet")["workloads"]
    for item in workloads:
        if item["metadata"]["name"].startswith("job-nine-"):
            item["spec"]["priority"] = 1000
    first = {team.name: team.first for team in counted(workloads=workloads).teams}["vision"]
    assert first is not None and first.job == "vision/nine"
    assert "its team can have 56 of h100-sxm5-80gb at most" in first.wait.sentence


def test_nodes_that_are_free_are_verified_ones_without_a_job() -> None:
    (free,) = counted().free or ()
    assert (free.model, free.nodes, free.gpus) == (MODEL, 8, 64)
    assert (free.nodes_free, free.gpus_free) == (0, 0)
    workloads = [item for item in recorded("fleet")["workloads"] if "whisper" not in item["metadata"]["name"]]
    (free,) = counted(workloads=workloads).free or ()
    assert (free.nodes_free, free.gpus_free) == (1, 8)
    nodes = recorded("fleet")["nodes"]
    nodes[0]["metadata"]["labels"].pop("muster.node-restriction.kubernetes.io/ready")
    nodes[1]["spec"]["taints"] = [{"key": "muster.dev/quarantine", "value": "XID_FATAL", "effect": "NoSchedule"}]
    nodes[2]["spec"]["unschedulable"] = True
    nodes[3]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    (free,) = counted(nodes=nodes).free or ()
    assert free.nodes == 4, "not ready, in quarantine, cordoned or lost: none of them takes work"


def test_dedicated_nodes_are_those_that_the_ledger_has_given() -> None:
    given = [admission("gpu-8", team="audio"), admission("gpu-1")]
    teams = {team.name: team for team in counted(admissions=given).teams}
    (row,) = teams["audio"].dedicated
    assert (row.model, row.nodes, row.gpus, row.gpus_wanted) == (MODEL, 1, 8, 16)
    assert teams["vision"].dedicated == ()


def test_text_fits_a_terminal_and_names_what_waits(api: FakeApi, tmp_path: Path) -> None:
    done = run(api, tmp_path)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    told = " ".join(done.output.split())
    assert "3 teams: quotas of 72 GPUs, 56 used, 16 borrowed, 8 held for nodes that are checked; 2 jobs" in told
    assert "8 verified nodes with 64 GPUs take work; 0 of them and 0 GPUs are free" in told
    assert "vision/rack5: it asks for 40 GPUs in one rack" in told and "`muster why speech/checked`" in told


def test_json_and_page_have_the_same(api: FakeApi, tmp_path: Path) -> None:
    done = run(api, tmp_path, "--json", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["schema"] == "muster-teams/v1" and told["fleet"]["borrowed"] == 16
    waits = {team["name"]: team["waiting"] for team in told["teams"]}
    assert waits["vision"]["first"]["why"] == "too_large_for_place" and waits["audio"]["first"] is None
    page = (tmp_path / "page.html").read_text()
    assert problems(page) == []
    assert "vision/rack5" in Parsed(page).text and "2 jobs wait" in Parsed(page).text
    # Nothing of audio waits or is checked; it has no node of its own yet.
    (mark,) = re.findall(r"<b>audio</b> <span class=\"verdict \w+\">(.*?)</span>", page)
    assert mark.endswith("nodes of its own are missing"), mark


def test_texts_of_people_do_not_run_in_the_page() -> None:
    workloads = recorded("fleet")["workloads"]
    for item in workloads:
        item["spec"]["podSets"][0].pop("topologyRequest", None)
        for told in item["status"]["conditions"]:
            told["message"] = "<script>alert(1)</script>"
    page = page_of(counted(workloads=workloads))
    assert problems(page) == [] and "&lt;script&gt;" in page


def test_without_kueue_it_says_so(api: FakeApi, tmp_path: Path) -> None:
    def no_kueue(path: str) -> None:
        if "kueue.x-k8s.io" in path:
            raise Refused(404, "the server could not find the requested resource")

    api.before_read = no_kueue
    done = run(api, tmp_path, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0 and "no teams: fleet_teams is empty" in done.output
    assert "fleet_teams is empty" in (tmp_path / "page.html").read_text()
    assert not any(path.endswith("/nodes") for _, path, _ in api.requests), "nothing else is read"


def test_with_kueue_and_without_teams_it_says_so_too(api: FakeApi, tmp_path: Path) -> None:
    api.objects["clusterqueues"] = {}
    assert "no teams: fleet_teams is empty. Kueue runs" in " ".join(run(api, tmp_path).output.split())


def _member(path: str) -> None:
    """What a member of vision may not: nodes, the ledger, and the objects of other namespaces."""
    own = "/namespaces/vision/" in path
    whole = any(word in path for word in ("/clusterqueues", "/resourceflavors")) or path.endswith("v1beta2")
    if not (own or whole):
        raise Refused(403, "forbidden")


def test_a_member_sees_his_own_queue_and_the_figures_of_others(api: FakeApi, tmp_path: Path) -> None:
    api.before_read = _member
    done = run(api, tmp_path, "--team", "vision", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    teams = {team["name"]: team for team in told["teams"]}
    assert teams["vision"]["waiting"]["gpus"] == 112 and teams["vision"]["waiting"]["first"]["job"] == "vision/rack5"
    assert teams["audio"]["waiting"] == {"jobs": 0, "gpus": None, "oldest_since": None, "first": None}
    assert told["verified"] is None and told["fleet"]["free_gpus"] is None
    unread = " ".join(told["not_readable"])
    assert "Nodes" in unread and "NodeAdmissions" in unread and "Workloads of other namespaces than vision" in unread
    text = " ".join(run(api, tmp_path, "--team", "vision").output.split())
    assert "Not readable with your rights:" in text and "Dedicated nodes" not in text


def test_a_member_who_sees_no_cluster_queue_is_told_of_his_local_one(api: FakeApi, tmp_path: Path) -> None:
    def few(path: str) -> None:
        if path.endswith("v1beta2"):
            return
        if "/namespaces/vision/" not in path:
            raise Refused(403, "forbidden")

    api.before_read = few
    told = json.loads(run(api, tmp_path, "--team", "vision", "--json").stdout)
    (team,) = told["teams"]
    assert team["name"] == "vision" and team["shares"][0]["used"] == 48 and team["shares"][0]["quota"] is None
    assert told["fleet"]["quota"] is None
    assert " ? " in run(api, tmp_path, "--team", "vision").output


def test_who_sees_no_queue_at_all_gets_an_error_that_says_what_to_give(api: FakeApi, tmp_path: Path) -> None:
    def none(path: str) -> None:
        if not path.endswith("v1beta2"):
            raise Refused(403, "forbidden")

    api.before_read = none
    done = run(api, tmp_path)
    said = f"{done.exception} {done.output}"
    assert done.exit_code != 0 and "you may see no queue" in said and "--team TEAM" in said


def test_a_queue_that_takes_no_jobs_is_told(api: FakeApi) -> None:
    queues = recorded("fleet")["clusterqueues"]
    for item in queues:
        if item["metadata"]["name"] == "audio":
            item["status"]["conditions"] = [
                {"type": "Active", "status": "False", "reason": "CheckNotFoundOrInactive",
                 "message": "Can't admit new workloads: references inactive AdmissionCheck(s): verified."}
            ]  # fmt: skip
    shown = " ".join(render(counted(cluster_queues=queues)).split())
    assert "Queues that take no jobs: team why audio Can't admit new workloads" in shown


def test_the_page_of_the_docs_shows_what_is_said() -> None:
    blocks = PAGE.read_text().split("```")[1::2]
    shown = next(block[4:].strip("\n") for block in blocks if block.startswith("text\n3 teams: "))
    assert shown == render(counted(admissions=[admission("gpu-8", team="audio")]), 80).strip("\n")
