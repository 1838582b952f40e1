"""`muster baseline`: its answers, its exit codes, and whom it asks for a test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.admission.decide import CODES
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.fleet.baseline import comparison
from gpu_burnin.fleet.baseline.rates import RatesError
from tests.support.fake_api import FakeApi
from tests.support.fleet_samples import admission
from tests.support.rate_fleets import RATES, Fleet, name, state_of

ROOT = Path(__file__).resolve().parents[4]
FEW = tuple(RATES)[6:9]
SLOW = (3, 5, 8)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a fleet with three slow nodes, of different slowness, and one GPU that drifts. Nobody changes it."""
    fleet = Fleet(100, gpus=4, rates=FEW, spread=0.002)
    for more, host in enumerate(SLOW):
        fleet.own[host, 1, 0] = -0.05 - 0.01 * more
    fleet.own[60, 2, 2] = 0.03  # even at the end it is not slow

    def change(week: int) -> None:
        fleet.own[60, 2, 2] -= 0.004

    return state_of(tmp_path_factory.mktemp("state"), fleet, 10, change)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    for number in (*SLOW, 60):
        server.put("nodeadmissions", admission(name(number)))
    server.objects |= {"configmaps": {}, "events": {}}
    yield server
    server.close()


def run(state: Path, *arguments: str, api: FakeApi | None = None) -> Result:
    words = ["baseline", "--state", str(state), *arguments]
    if api is not None:
        words += ["--kubeconfig", str(api.kubeconfig(state.parent / "kubeconfig.yaml"))]
    return CliRunner().invoke(muster.cli, words, env={"COLUMNS": "80"})


def retest_reasons(api: FakeApi) -> dict[str, str]:
    """Why each node has been asked for a test."""
    found = {node: one["spec"].get("retest") for node, one in api.objects["nodeadmissions"].items()}
    return {node: ask["why"] for node, ask in found.items() if ask}


def test_who_is_slow_or_drifts_is_told_worst_first_in_80_columns(slow: Path) -> None:
    done = run(slow)
    assert done.exit_code == 1, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    assert re.findall(r"^gpu-\d+$", done.stdout, re.M) == [name(number) for number in (8, 5, 3, 60)]
    assert "100 hosts with a PASS on real hardware, 400 GPUs: 4 hosts lie outside" in done.stdout
    text = " ".join(done.stdout.split())
    assert re.search(r"0000:02:00.0 GPU-00000008: gemm_fp8_throughput 1,\d{3} TFLOP/s is [67]\.\d% under 1,4\d\d", text)
    assert re.search(r"the median of 100 peers, \d+\.\d MADs", text)
    assert re.search(
        r"GPU-0000003c: h2d loses 0\.\d\d% a week against its peers: 3\.\d% in 9 weeks \(10 runs; 400", text
    )
    assert "Of 100 healthy fleets one at the most has a healthy GPU or node named" in text


def test_exit_codes_say_outside_none_too_few_and_usage(slow: Path, tmp_path: Path) -> None:
    assert run(slow).exit_code == 1
    healthy = run(state_of(tmp_path / "healthy", Fleet(60, rates=FEW)))
    assert healthy.exit_code == 0 and "none lies outside" in healthy.stdout and "retest" not in healthy.stdout
    few = run(state_of(tmp_path / "few", Fleet(2, rates=FEW)))
    assert few.exit_code == 3 and "too few to say" in few.stdout and "of fewer than 30 peers" in few.stdout
    no_reports = run(tmp_path).exception
    assert isinstance(no_reports, RatesError) and no_reports.exit_code == 2
    for option in (["--yes"], ["--most", "3"]):
        refused = run(slow, *option)
        assert refused.exit_code == 2 and f"{option[0]} goes with --retest" in refused.stderr
    assert run(slow, "--peers", "5").exit_code == 2, "fewer cannot be compared"
    assert CliRunner().invoke(muster.cli, ["baseline"], env={"KUBECONFIG": str(tmp_path / "k")}).exit_code == 2


def test_the_json_has_the_fields_of_the_page_and_no_others(slow: Path) -> None:
    done = run(slow, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    page = (ROOT / "docs/operations/baselines.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", page, re.M))
    fields = {*document} | {f"outside[].{key}" for one in document["outside"] for key in one}
    fields |= {f"peers[].{key}" for one in document["peers"] for key in one}
    assert documented == fields
    assert document["schema"] == "muster-baseline/v1" and document["rates_compared"] > 1200
    assert {one["code"] for one in document["outside"]} == {comparison.SLOWER, comparison.DRIFTS} <= {*CODES}
    (cell, *_) = document["peers"]
    assert cell["peers"] >= 30 and 0 < cell["mad"] < cell["median"] and cell["named_from_share"] >= 0.01


def test_a_retest_is_dry_until_yes_and_braked(slow: Path, api: FakeApi) -> None:
    dry = run(slow, "--retest", "--most", "2", api=api)
    assert (
        dry.exit_code == 1
        and not retest_reasons(api)
        and "Nothing was asked. With --yes 2 nodes would be." in dry.stdout
    )
    assert f"{name(8)}: would be asked for a test: SLOWER_THAN_PEERS: 0000:02:00.0 GPU-00000008:" in dry.stdout
    assert f"{name(3)}: not asked: 2 such tests at a time (--most)" in dry.stdout
    done = run(slow, "--retest", "--most", "2", "--yes", api=api)
    assert done.exit_code == 1 and {*retest_reasons(api)} == {name(8), name(5)}, "the slowest first"
    assert all(why.startswith("SLOWER_THAN_PEERS: ") and len(why) <= 300 for why in retest_reasons(api).values())
    again = run(slow, "--retest", "--most", "2", "--yes", api=api)
    assert {*retest_reasons(api)} == {
        name(8),
        name(5),
    } and f"{name(8)}: not asked: a test is asked for already" in again.stdout
    assert {*retest_reasons(api)} == {name(8), name(5)}
    run(slow, "--retest", "--yes", api=api)
    assert {*retest_reasons(api)} == {name(number) for number in (*SLOW, 60)}
    assert retest_reasons(api)[name(60)].startswith("DRIFTS_FROM_PEERS: ")


def test_a_node_that_was_tested_for_it_is_not_asked_again(slow: Path, api: FakeApi) -> None:
    run(slow, "--retest", "--yes", api=api)
    for node, since in ((name(8), "2099-01-01T00:00:00Z"), (name(5), "2020-01-01T00:00:00Z")):
        found = api.objects["nodeadmissions"][node]
        found["spec"]["retest"]["since"] = found["status"]["retested"] = since
    told_ = json.loads(run(slow, "--retest", "--yes", "--json", api=api).stdout)["retest"]
    words = {one["node"]: one["not_asked"] for one in told_}
    assert "bring that report with playbooks/burnin.yml" in words[name(8)]
    assert "is the same: a person has to look" in words[name(5)]


@pytest.mark.parametrize(
    ("state", "asks", "words"),
    [
        ("quarantined", {}, "it is quarantined"),
        ("ready", {"hold": {"who": "ann", "why": "spare", "since": "2026-01-01T00:00:00Z"}}, "it is held"),
    ],
)
def test_nodes_that_are_out_already_are_not_asked(
    state: str, asks: dict[str, Any], words: str, slow: Path, api: FakeApi
) -> None:
    found = admission(name(8), state)
    found["spec"] |= asks
    api.put("nodeadmissions", found)
    del api.objects["nodeadmissions"][name(5)]
    done = run(slow, "--retest", "--yes", api=api)
    assert f"{name(8)}: not asked: {words}" in done.stdout
    assert f"{name(5)}: not asked: it has no NodeAdmission" in done.stdout


@pytest.mark.parametrize("ask", ["hold", "quarantine", "retest"])
def test_an_ask_that_has_ended_hinders_nothing(ask: str, slow: Path, api: FakeApi) -> None:
    """One test that ended without coming does not count among those that may wait, either."""
    found = admission(name(8), "ready")
    why = "SLOWER_THAN_PEERS: before"
    found["spec"][ask] = {"who": "ann", "why": why, "since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    api.put("nodeadmissions", found)
    done = run(slow, "--retest", "--most", "1", "--yes", api=api)
    assert f"{name(8)}: not asked" not in done.stdout
    assert {node for node, text in retest_reasons(api).items() if text != why} == {name(8)}
