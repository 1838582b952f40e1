"""The page of `muster status`: with the numbers of monitoring, without them, and with texts of people who mean harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.cli.muster import main as muster
from gpu_burnin.cli.muster.monitoring_options import monitoring_places
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cluster import admissions, status_figures, status_map, status_page
from gpu_burnin.fleet.cluster.rows import row as row_of
from gpu_burnin.fleet.monitoring import numbers, places
from gpu_burnin.fleet.monitoring.line import Monitoring
from gpu_burnin.fleet.monitoring.numbers import Host, Numbers
from tests.support.fake_api import FakeApi
from tests.support.fake_prometheus import FakePrometheus, as_alertmanager, firing, series
from tests.support.fleet_samples import admission, lease, node
from tests.support.page_reader import Parsed, problems

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    server = FakePrometheus()
    yield server
    server.close()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    for number in range(4):
        server.put("nodeadmissions", admission(f"gpu-{number}"))
        server.put("nodes", node(f"gpu-{number}"))
    server.put("nodeadmissions", admission("gpu-4", "quarantined", code="XID_FATAL", message="XID 79 on GPU 3"))
    server.put("leases", lease("api-1", "2026-11-22T11:59:58.000000Z"))
    server.objects["events"] = {}
    yield server
    server.close()


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return CliRunner().invoke(muster.cli, ["status", "--kubeconfig", str(kubeconfig), *arguments])


def fleet(fake: FakePrometheus, *items: dict[str, Any]) -> admissions.Snapshot:
    rows = tuple(row_of(one, fake.at) for one in items or [admission(f"gpu-{number}") for number in range(5)])
    return admissions.Snapshot(rows, admissions.Leader("api-1", 1.0, True), None, fake.at, "https://k8s:6443")


def read(fake: FakePrometheus) -> Numbers:
    return numbers.read([Monitoring(fake.address, fake.address)], fake.at)


def section(page: str, name: str) -> str:
    """The words of a section."""
    found = page.partition(f'<section id="{name}">')[2].partition("</section>")[0]
    assert found, name
    return Parsed(found).text


def test_page_and_json_have_the_numbers(api: FakeApi, fake: FakePrometheus, tmp_path: Path) -> None:
    alert = firing("MusterApiErrors", "page", "The API server on api-2 has errors.", instance="api-2")
    fake.alerts, fake.told = [alert], [as_alertmanager(alert)]
    fake.hosts["gpu-3"] = (False, {"rack": "r1"})
    fake.recorded.append(series(numbers.PLACE_DOWN, 0.5, place="rack", name="r1"))
    out = tmp_path / "page.html"
    where = ("--prometheus", fake.address, "--alertmanager", fake.address)
    done = run(api, tmp_path, *where, "--html", str(out))
    assert done.exit_code == 0, done.output
    assert "1 alert by" in done.stdout and "The API server on api-2 has errors." in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    page = out.read_text()
    assert problems(page) == []
    assert "The API server on api-2 has errors. since 2026-11-22T11:00:00Z" in section(page, "alerts")
    assert "docs/operations/alerts.md#musterapierrors" in section(page, "alerts")
    assert "api-2 yes 4.0 ms 5 %" in section(page, "control") and "12.5 /s 60.0 ms 2 %" in section(page, "control")
    assert "1 of 5 hosts do not answer their monitoring: gpu-3" in section(page, "map")
    assert "rack r1 50 %" in section(page, "map") and "quarantined: 1 now" in section(page, "trend")
    assert "Tests overdue 3" in section(page, "proofs") and "Missing" not in Parsed(page).text
    found = json.loads(run(api, tmp_path, *where, "--json").stdout)["monitoring"]
    assert found["problems"] == [] and found["alerts"][0]["name"] == "MusterApiErrors"
    assert found["hosts"]["gpu-3"] == {"up": False, "place": {"rack": "r1"}} and len(found["trends"]) == 2


def test_what_is_missing_is_neither_0_nor_green(fake: FakePrometheus) -> None:
    fake.spoil = lambda path, body: (503, b"starting")
    found = read(fake)
    page = status_page.render(fleet(fake), found)
    for name in ("alerts", "trend", "control"):
        assert "Missing" in section(page, name) and "HTTP 503" in section(page, name)
    assert "0 alerts" not in page and "is missing: nodes are in the order" in section(page, "map")
    assert "Tests overdue missing" in section(page, "proofs") and "Proven within" in section(page, "proofs")
    assert status_page.worst(fleet(fake), found) == "WARNING"
    fake.spoil = lambda path, body: (200, body)
    assert status_page.worst(fleet(fake), read(fake)) == "PASS"


def test_without_monitoring_the_page_says_how_to_have_it(api: FakeApi, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(api, tmp_path, "--html", str(out))
    assert done.exit_code == 0 and "alert" not in done.stdout
    assert "give --monitoring HOST" in section(out.read_text(), "alerts")


def test_an_alert_makes_a_ready_fleet_no_pass(fake: FakePrometheus) -> None:
    for severity, verdict in (("page", "FAIL"), ("ticket", "WARNING")):
        fake.alerts = [firing("X", severity, "x")]
        fake.told = [as_alertmanager(fake.alerts[0])]
        assert status_page.worst(fleet(fake), read(fake)) == verdict
    fake.told = [as_alertmanager(fake.alerts[0], silenced=("s",))]
    assert status_page.worst(fleet(fake), read(fake)) == "PASS"


def test_the_most_severe_comes_first_and_twenty_tickets_bury_no_gpu(fake: FakePrometheus) -> None:
    fake.alerts = [firing(f"MusterClockSkew{number}", "ticket", "x", instance=f"h{number}") for number in range(20)]
    fake.alerts += [
        firing("MusterXidFatal", "ticket", "XID 79", instance="gpu-1", gpu="3"),
        firing("SiteOdd", "odd", "x"),
        firing("SiteCritical", "critical", "x"),
        firing("MusterNodesOut", "page", "x"),
    ]
    names = [alert.name for alert in read(fake).active]
    assert names[:3] == ["MusterNodesOut", "SiteCritical", "MusterXidFatal"] and names[-1] == "SiteOdd"
    words = section(status_page.render(fleet(fake), read(fake)), "alerts")
    assert words.index("MusterNodesOut") < words.index("MusterXidFatal") < words.index("MusterClockSkew")


@pytest.mark.parametrize(
    ("docs", "base"),
    [("https://example.com/muster/", "https://example.com/muster"), ("/srv/muster", "file:///srv/muster")],
)
def test_a_runbook_is_a_link_to_where_the_pages_are(docs: str, base: str, fake: FakePrometheus) -> None:
    other = firing("Site", "page", "x")
    other["annotations"]["runbook"] = f"docs/../x.md#{HOSTILE}"
    fake.alerts = [firing("MusterApiErrors", "page", "x"), other]
    for given, links in ((docs, 1), ("", 0)):
        page = status_page.render(fleet(fake), read(fake), given)
        found = [its["href"] for tag, its in Parsed(page).elements if tag == "a" and not its["href"].startswith("#")]
        assert found == [f"{base}/docs/operations/alerts.md#musterapierrors"] * links
        assert "docs/operations/alerts.md#musterapierrors" in section(page, "alerts")


def test_a_monitoring_host_is_given_by_its_name_in_the_inventory(tmp_path: Path) -> None:
    """As role fleet_monitoring leaves it in the state directory; what is given beside the name counts."""
    listed = [
        {"name": "mon-1", "address": "198.18.7.71", "user": "ann", "identity": "/k"},
        {"name": "mon-2", "port": 2222},
    ]
    (tmp_path / "monitoring.json").write_text(json.dumps(listed))
    asked = ("mon-1", "bob@mon-2:23", "198.18.7.9")
    first, second, third = [
        place.host for place in monitoring_places(asked, None, None, None, None, tmp_path) if place.host
    ]
    assert (first.name, first.address, first.port, first.user) == ("mon-1", "198.18.7.71", 22, "ann")
    assert first.identity == Path("/k")
    assert (second.name, second.address, second.port, second.user) == ("mon-2", "mon-2", 23, "bob")
    assert (third.name, third.address, third.user) == ("198.18.7.9", "198.18.7.9", "root")
    [host] = [place.host for place in monitoring_places(("mon-1",), None, None, Path("/own"), None, None) if place.host]
    assert (host.address, host.identity) == ("mon-1", Path("/own"))


@pytest.mark.parametrize("text", ["{", "[{}]", "[1]", "{}x", '[{"name": "a", "port": "b"}]'])
def test_a_list_of_monitoring_hosts_that_is_none_says_who_writes_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "monitoring.json").write_text(text)
    with pytest.raises(GpuBurninError, match=r"monitoring\.json: is no list of hosts .*run site\.yml"):
        places.named(tmp_path)


def test_texts_from_elsewhere_stay_texts(fake: FakePrometheus) -> None:
    fake.alerts = [firing(HOSTILE, HOSTILE, HOSTILE, instance=HOSTILE)]
    fake.hosts = {"gpu-1": (False, {"rack": HOSTILE})}
    fake.recorded += [
        series(numbers.FSYNC, 1, instance=HOSTILE, group=HOSTILE),
        series(numbers.STATES, 1, state=HOSTILE),
    ]
    fake.recorded += [series(numbers.PLACE_DOWN, 1, place=HOSTILE, name=HOSTILE)]
    page = status_page.render(
        fleet(fake, admission("gpu-1", "held", code=HOSTILE, message=HOSTILE), admission(HOSTILE, "suspect")),
        read(fake),
    )
    assert problems(page) == [] and HOSTILE in Parsed(page).text
    assert "<script" not in page and "<img" not in page
    fake.spoil = lambda path, body: (500, HOSTILE.encode())
    page = status_page.render(fleet(fake), read(fake))
    assert problems(page) == [] and HOSTILE in Parsed(page).text


def test_each_node_is_in_its_place_once_and_colour_is_not_alone() -> None:
    rows = [row_of(admission(f"gpu-{n}", "quarantined" if n == 3 else "ready"), NOW) for n in range(120)]
    hosts = {row.name: Host(row.name != "gpu-5", {"rack": f"r{int(row.name[4:]) // 16}"}) for row in rows[:32]}
    found = status_map.places(rows, hosts)
    assert [(place.name, place.nodes) for place in found] == [
        ("r0", 16), ("r1", 16), ("gpu-32 to gpu-81", 50), ("gpu-82 to gpu-119", 38),
    ]  # fmt: skip
    assert found[0].words == "1 quarantined, 15 ready, 1 does not answer" and found[0].bad and not found[1].bad
    assert sum(place.svg.count("h10v10h-10z") for place in found) == 120
    assert 'href="#node-gpu-3"' in found[0].svg and 'class="what quarantined"' in found[0].svg
    assert 'class="silent"' in found[0].svg and 'class="silent"' not in found[1].svg


def test_a_dark_place_comes_first() -> None:
    rows = [row_of(admission(f"gpu-{n}", "quarantined" if n < 2 else "ready"), NOW) for n in range(6)]
    hosts = {f"gpu-{n}": Host(n not in (0, 4, 5), {"rack": f"r{n // 2}"}) for n in range(6)}
    assert [place.name for place in status_map.places(rows, hosts)] == ["r2", "r0", "r1"]


def test_ages_of_proofs_count_each_node_once(fake: FakePrometheus) -> None:
    items = [admission("a", proofs={"standard": fake.at.isoformat()}), admission("b", proofs={}), admission("c")]
    items += [admission("d", proofs={"standard": "2020-01-01T00:00:00Z"})]
    found = status_figures.proofs(fleet(fake, *items))
    assert sum(count for _, count in found) == 4
    assert dict(found)["within 1 day"] == 1 and dict(found)["never"] == 1 and dict(found)["older than 90 days"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prometheus", "mon-1:9090"), "is not http://HOST:PORT"),
        (("--prometheus", "http://mon-1:x"), "is not http://HOST:PORT"),
        (("--alertmanager", "http://mon-1:9093"), "needs --prometheus"),
        (("--monitoring", "a:b:c@"), "is not [USER@]ADDRESS[:PORT]"),
        (("--watch", "--prometheus", "http://mon-1:9090"), "follows the cluster alone"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], says: str, api: FakeApi, tmp_path: Path) -> None:
    done = run(api, tmp_path, *arguments)
    assert done.exit_code == 2 and says in " ".join(done.output.split())
