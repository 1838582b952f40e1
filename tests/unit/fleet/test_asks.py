"""`muster node`, `muster pause` and `muster resume`: what is written, what is said, and that twice is once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.cli.muster import main as muster
from tests.support.fake_api import FakeApi, refusing
from tests.support.fleet_samples import admission, lease, pause


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.put("nodeadmissions", admission("gpu-1"))
    server.put("nodeadmissions", admission("gpu-2", "quarantined", code="XID_FATAL"))
    server.objects |= {"configmaps": {}, "events": {}, "leases": {}}
    yield server
    server.close()


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return CliRunner().invoke(muster.cli, [*arguments, "--kubeconfig", str(kubeconfig)])


def leads(api: FakeApi) -> None:
    """An admitter leads, which does nothing."""
    api.put("leases", lease("api-1", "2099-01-01T00:00:00Z"))


def spec(api: FakeApi, node: str) -> dict[str, dict[str, str]]:
    return dict(api.objects["nodeadmissions"][node]["spec"])


def writes(api: FakeApi) -> list[str]:
    return [path for path in api.writes() if "selfsubjectreviews" not in path]


def test_a_hold_names_the_user_of_the_api_and_its_end(api: FakeApi, tmp_path: Path) -> None:
    api.user = "ann@example.com"
    done = run(
        api, tmp_path, "node", "hold", "gpu-1", "--reason", "spare for ops", "--until", "2031-01-01T01:00:00+01:00"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        "gpu-1: hold asked for; no admitter leads: nothing follows until one does (`systemctl status muster-admitter` "
        "on the API servers' hosts, or where attached `kubectl get pods --namespace muster-system`)\n"
    )
    written = spec(api, "gpu-1")["hold"]
    assert written["who"] == "ann@example.com" and written["why"] == "spare for ops"
    assert written["until"] == "2031-01-01T00:00:00Z" and written["since"].endswith("Z")
    # One patch, which names the version it was decided on.
    [(_, patch)] = [(path, body) for path, body in api.bodies if path.endswith("/gpu-1")]
    assert patch[0]["op"] == "test" and patch[0]["path"] == "/metadata/resourceVersion"


@pytest.mark.parametrize("verb", ["hold", "quarantine", "retest"])
def test_twice_is_once(verb: str, api: FakeApi, tmp_path: Path) -> None:
    arguments = ("node", verb, "gpu-1", "--reason", "looks odd")
    assert run(api, tmp_path, *arguments).exit_code == 0
    before = len(writes(api))
    done = run(api, tmp_path, *arguments)
    assert done.exit_code == 0 and "stands already, asked for by muster:admin" in done.stdout
    assert len(writes(api)) == before
    other = run(api, tmp_path, "node", verb, "gpu-1", "--reason", "another")
    assert "in place of that of muster:admin (looks odd)" in other.stdout
    assert len(writes(api)) == before + 1


def test_a_retest_that_was_done_can_be_asked_again(api: FakeApi, tmp_path: Path) -> None:
    arguments = ("node", "retest", "gpu-1", "--level", "extended", "--reason", "new fan")
    run(api, tmp_path, *arguments)
    assert spec(api, "gpu-1")["retest"]["level"] == "extended"
    api.objects["nodeadmissions"]["gpu-1"]["status"]["retested"] = spec(api, "gpu-1")["retest"]["since"]
    leads(api)
    done = run(api, tmp_path, *arguments, "--wait", "0s")
    assert "retest asked for; it is tested when no pod with GPUs runs on it" in done.stdout


def test_release_takes_both_back_and_keeps_the_reason(api: FakeApi, tmp_path: Path) -> None:
    run(api, tmp_path, "node", "hold", "gpu-1", "--reason", "one")
    run(api, tmp_path, "node", "quarantine", "gpu-1", "--reason", "two")
    done = run(api, tmp_path, "node", "release", "gpu-1", "--reason", "fixed")
    assert done.exit_code == 0
    assert "released: the hold of muster:admin (one), the quarantine of muster:admin (two)" in done.stdout
    assert set(spec(api, "gpu-1")) == {"identity"}
    [event] = api.objects["events"].values()
    assert event["involvedObject"]["name"] == "gpu-1" and event["message"].startswith("muster:admin: fixed;")
    again = run(api, tmp_path, "node", "release", "gpu-1", "--reason", "fixed")
    assert again.exit_code == 0 and "there is nothing to release" in again.stdout


def test_one_node_that_cannot_be_asked_keeps_no_other_from_it(api: FakeApi, tmp_path: Path) -> None:
    done = run(api, tmp_path, "node", "hold", "gpu-9", "gpu-1", "gpu-1", "--reason", "x")
    assert done.exit_code == 2
    assert (
        done.stderr
        == "muster: gpu-9: has no NodeAdmission; give the name in `muster status`, or add it: site.yml, or where "
        "attached `muster attach approve`\n"
    )
    assert done.stdout.count("gpu-1: hold asked for") == 1 and "hold" in spec(api, "gpu-1")


def test_what_the_policy_refuses_is_told_in_its_words(api: FakeApi, tmp_path: Path) -> None:
    api.before_write = refusing(403, "who must be the user", of="nodeadmissions")
    done = run(api, tmp_path, "node", "hold", "gpu-1", "--reason", "x")
    assert done.exit_code == 2 and "gpu-1" in done.stderr and "who must be the user" in done.stderr


def test_a_write_of_the_admitter_in_between_is_decided_again(api: FakeApi, tmp_path: Path) -> None:
    left = [3]

    def meanwhile(path: str) -> None:
        if "nodeadmissions" in path and left[0]:
            left[0] -= 1
            api.put("nodeadmissions", dict(api.objects["nodeadmissions"]["gpu-1"]))

    api.before_write = meanwhile
    assert run(api, tmp_path, "node", "hold", "gpu-1", "--reason", "x").exit_code == 0
    assert left == [0] and "hold" in spec(api, "gpu-1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--until", "yesterday", "--reason", "x"], "neither a time"),
        (["--until", "2020-01-01T00:00:00Z", "--reason", "x"], "is over"),
        (["--until", "0s", "--reason", "x"], "is over"),
        (["--until", "99999999999999d", "--reason", "x"], "neither a time"),
        (["--reason", "  "], "it is empty"),
        ([], "Missing option '--reason'"),
    ],
)
def test_mistakes_touch_nothing(options: list[str], says: str, api: FakeApi, tmp_path: Path) -> None:
    done = run(api, tmp_path, "node", "hold", "gpu-1", *options)
    assert done.exit_code == 2 and says in done.stderr
    assert not api.requests


def test_what_follows_depends_on_the_node_and_on_the_pause(api: FakeApi, tmp_path: Path) -> None:
    leads(api)

    def ask(*words: str) -> str:
        return run(api, tmp_path, "node", *words, "--wait", "0s").stdout

    assert "it is quarantined and is not let in" in ask("hold", "gpu-2", "--reason", "x")
    told = ask("hold", "gpu-1", "--until", "2031-01-01T00:00:00Z", "--reason", "x")
    assert "within seconds no new pod is placed on it, until 2031-01-01T00:00:00Z; work that is on it goes on" in told
    ask("quarantine", "gpu-1", "--reason", "two")
    assert "it stays in the quarantine that muster:admin" in ask("retest", "gpu-1", "--reason", "x")
    api.put("configmaps", pause(who="ann", why="works"))

    def follows(verb: str) -> str:
        told = json.loads(run(api, tmp_path, "node", verb, "gpu-1", "--reason", "y", "--wait", "0s", "--json").stdout)
        assert told[0]["changed"]
        return str(told[0]["follows"])

    # A pause keeps nothing at work that a person wants out.
    verbs = ("hold", "quarantine", "retest", "release")
    assert [follows(verb).startswith("the fleet is paused") for verb in verbs] == [False, False, True, True]


def test_a_hold_that_is_over_is_not_told_as_the_present_one(api: FakeApi, tmp_path: Path) -> None:
    over = {"who": "bob", "why": "old", "since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    api.objects["nodeadmissions"]["gpu-1"]["spec"]["hold"] = over
    released = run(api, tmp_path, "node", "release", "gpu-1", "--reason", "x").stdout
    assert "there is nothing to release; the hold of bob ended at 2026-01-02T00:00:00Z" in released
    assert "in place of" not in run(api, tmp_path, "node", "hold", "gpu-1", "--reason", "x").stdout


@pytest.mark.slow
def test_what_does_not_follow_in_the_time_is_said_and_the_exit_code_tells(api: FakeApi, tmp_path: Path) -> None:
    leads(api)
    api.objects["nodes"] = {}
    done = run(api, tmp_path, "node", "quarantine", "gpu-1", "--reason", "x", "--wait", "1s")
    assert done.exit_code == 3
    assert "gpu-1: not done after 1 s; it is ready; look at `muster why gpu-1`" in done.stdout
    assert json.loads(run(api, tmp_path, "node", "hold", "gpu-1", "--reason", "x", "--wait", "1s", "--json").stdout)


def test_pause_and_resume_are_safe_to_run_twice(api: FakeApi, tmp_path: Path) -> None:
    assert run(api, tmp_path, "resume").stdout == "the fleet is not paused\n"
    first = run(api, tmp_path, "pause", "--reason", "power works")
    assert first.exit_code == 0 and first.stdout.startswith("paused: the admitter lets no node in")
    assert api.objects["configmaps"]["muster-system/muster-pause"]["data"] == {
        "who": "muster:admin", "why": "power works", "until": "",
    }  # fmt: skip
    before = len(writes(api))
    assert (
        "paused already by muster:admin (power works)" in run(api, tmp_path, "pause", "--reason", "power works").stdout
    )
    assert len(writes(api)) == before
    assert "in place of the pause of" in run(api, tmp_path, "pause", "--reason", "cooling").stdout
    assert "the pause of muster:admin (cooling) is over" in run(api, tmp_path, "resume").stdout
    assert api.objects["configmaps"] == {}


def test_a_pause_that_is_thrown_while_another_one_ends_stays(api: FakeApi, tmp_path: Path) -> None:
    run(api, tmp_path, "pause", "--reason", "cooling")

    def meanwhile(path: str) -> None:
        api.before_write = lambda _: None
        api.merge("configmaps", "muster-system/muster-pause", {"data": {"who": "ann", "why": "smoke"}})

    api.before_write = meanwhile
    done = run(api, tmp_path, "resume")
    assert "somebody else changed it just now" in str(done.exception)
    assert api.objects["configmaps"]["muster-system/muster-pause"]["data"]["why"] == "smoke"
