"""A machine's power through its BMC: sushy-tools' emulator behind TLS, well and sick."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.power import redfish
from gpu_burnin.power.port import Clock, Target
from gpu_burnin.power.redfish import Access, BmcError, Machine, Redfish
from tests.support.bmc import PASSWORD, USER, UUID, FakeBmc, fake_bmc
from tests.support.tls_pairs import make_pair

SAME = {"product_uuid": UUID, "product_serial": ""}


class Time:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.at_s, self.sleep)


@pytest.fixture
def well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBmc]:
    # What the client waits between its attempts.
    monkeypatch.setattr("sushy.connector.time.sleep", lambda seconds: None)
    # Each look at the power costs the emulator a password check.
    monkeypatch.setattr(redfish, "SHUTDOWN_S", 4.0)
    monkeypatch.setattr(redfish, "SWITCH_S", 5.0)
    with fake_bmc(tmp_path, monkeypatch) as found:
        yield found


def access(found: FakeBmc, **changes: object) -> Access:
    given = {"node": "gpu-1", "address": found.address, "user": USER, "password": PASSWORD}
    return Access(**{**given, "ca_file": str(found.ca_file), **changes})  # type: ignore[arg-type]


def test_a_power_cycle_shuts_down_waits_and_puts_on(well: FakeBmc) -> None:
    time = Time()
    machine = Machine(access(well), time.clock)
    machine.refuse_other(SAME)
    seen = [machine.on]
    # The state in the emulator itself, while the capacitors get empty.
    time.sleep = lambda seconds: seen.append(well.state() == "On")  # type: ignore[method-assign]
    machine._clock = time.clock
    machine.power_cycle()
    assert seen == [True, False]
    assert machine.on
    assert well.state() == "On"
    assert well.orders == ["GracefulShutdown", "On"]


def test_a_machine_that_is_off_is_put_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_bmc(tmp_path, monkeypatch, power="Off") as found:
        Machine(access(found), Time().clock).power_cycle()
        assert (found.orders, found.state()) == (["On"], "On")


def test_one_that_does_not_shut_down_loses_its_power(well: FakeBmc) -> None:
    def deaf(order: str, machine: str) -> None:
        well.obeys = order != "GracefulShutdown"

    well.before = deaf
    Machine(access(well), Time().clock).power_cycle()
    assert well.orders == ["GracefulShutdown", "ForceOff", "On"]


def test_a_bmc_that_says_done_and_does_nothing_is_not_believed(well: FakeBmc) -> None:
    well.obeys = False
    with pytest.raises(BmcError) as told:
        Machine(access(well), Time().clock).power_cycle()
    assert str(told.value) == (
        f"gpu-1: its BMC {well.address} took the order ForceOff, and 5 s later the power is still on; look at the "
        "BMC's own log, and restart the BMC"
    )
    assert well.orders == ["GracefulShutdown", "ForceOff"]


def test_wrong_credentials_are_one_sentence_without_the_password(well: FakeBmc) -> None:
    wrong = access(well, password="not-the-password")
    with pytest.raises(BmcError) as told:
        Machine(wrong)
    assert str(told.value) == (
        f"gpu-1: its BMC {well.address} refuses user muster to find its machine; correct repair_bmc_user and the "
        "password"
    )
    assert "not-the-password" not in repr(wrong)


def test_a_certificate_of_somebody_else_is_refused(well: FakeBmc, tmp_path: Path) -> None:
    other = make_pair(tmp_path, "other")
    for ca_file in (str(other), ""):
        with pytest.raises(BmcError, match=r"has a certificate that cannot be trusted \(.+\); give its authority as"):
            Machine(access(well, ca_file=ca_file))
    assert Machine(access(well, ca_file="", verify=False)).on


def test_a_silent_bmc_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sushy.connector.time.sleep", lambda seconds: None)
    monkeypatch.setattr(redfish, "CONNECT_S", 0.05)
    monkeypatch.setattr(redfish, "READ_S", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        silent = FakeBmc(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path)
        with pytest.raises(
            BmcError, match=r"^gpu-1: its BMC 127\.0\.0\.1:\d+ does not answer \(.+\); check repair_bmc_address"
        ):
            Machine(access(silent, ca_file=""))
    # Nobody listens there any more.
    with pytest.raises(BmcError, match="does not answer"):
        Machine(access(silent, ca_file=""))


@pytest.mark.parametrize(
    ("method", "ending", "what"),
    [("GET", "/Systems", "find its machine"), ("POST", "ComputerSystem.Reset", "take the order ForceOff")],
)
def test_a_bmc_that_answers_500_is_told(well: FakeBmc, method: str, ending: str, what: str) -> None:
    well.answer = lambda asked, path: 500 if asked == method and path.endswith(ending) else None
    with pytest.raises(BmcError) as told:
        Machine(access(well), Time().clock).power_cycle()
    assert str(told.value) == (
        f"gpu-1: its BMC {well.address} cannot {what}: it answered 500 (the BMC is out of sorts); look at the BMC's "
        "own log"
    )
    assert well.state() == "On"


@pytest.mark.parametrize("address", ["http://10.0.0.1", "ftp://10.0.0.1", "https://"])
def test_the_password_goes_over_https_alone(address: str) -> None:
    with pytest.raises(BmcError, match="is no address for https"):
        Machine(Access("gpu-1", address, USER, PASSWORD))


@pytest.mark.parametrize(
    "dmi",
    [
        {"product_uuid": UUID.upper()},
        # The same with the first fields in the other byte order, as older firmware tells it.
        {"product_uuid": "44454c4c-4200-1035-8047-b7c04f595631"},
    ],
)
def test_a_machine_is_known_by_its_uuid(well: FakeBmc, dmi: dict[str, str]) -> None:
    Machine(access(well)).refuse_other(dmi)


@pytest.mark.parametrize(
    "dmi",
    [
        {"product_uuid": "4c4c4544-0042-3510-8047-b7c04f595632"},
        {"product_uuid": "", "product_serial": ""},
        {},
        {"product_serial": "To Be Filled By O.E.M."},
    ],
)
def test_the_bmc_of_another_machine_is_refused_before_anything_is_done(well: FakeBmc, dmi: dict[str, str]) -> None:
    with pytest.raises(BmcError, match=f"is not shown to be that of this node: it tells UUID {UUID} .+ correct"):
        Machine(access(well)).refuse_other(dmi)
    assert well.orders == []


def test_a_machine_is_known_by_its_serial_number(well: FakeBmc) -> None:
    machine = Machine(access(well))
    machine._system.serial_number = "S12X"
    machine.refuse_other({"product_serial": "s12x "})
    for empty in ("", "Default string"):
        machine._system.serial_number = empty
        with pytest.raises(BmcError, match="is not shown"):
            machine.refuse_other({"product_serial": empty})


def test_a_machine_that_the_bmc_does_not_have(well: FakeBmc) -> None:
    with pytest.raises(BmcError, match=r"cannot find its machine: it answered 404"):
        Machine(access(well, system="9"))


def provider(found: FakeBmc) -> Redfish:
    time = Time()
    return Redfish(USER, PASSWORD, str(found.ca_file), clock=time.clock)


def target(found: FakeBmc, **changes: str) -> Target:
    return Target(**{"name": "gpu-1", "address": found.address, "uuid": UUID, **changes})  # type: ignore[arg-type]


def test_a_provider_switches_off_in_order_and_on_and_orders_nothing_twice(well: FakeBmc) -> None:
    redfish_way, gpu_1 = provider(well), target(well)
    assert redfish_way.is_on(gpu_1)
    for _ in range(2):
        redfish_way.turn_off(gpu_1)
    assert not redfish_way.is_on(gpu_1)
    for _ in range(2):
        redfish_way.turn_on(gpu_1)
    assert redfish_way.is_on(gpu_1)
    assert well.orders == ["GracefulShutdown", "On"]


def test_a_provider_takes_no_word_of_another_machines_bmc(well: FakeBmc) -> None:
    other = target(well, uuid="00000000-0000-0000-0000-000000000001")
    for call in (provider(well).is_on, provider(well).turn_on, provider(well).turn_off):
        with pytest.raises(BmcError, match=r"correct fleet_power\.address, or fleet_power\.uuid"):
            call(other)
    assert well.orders == []


def test_a_machine_of_which_nothing_is_pinned_is_not_switched(well: FakeBmc) -> None:
    with pytest.raises(BmcError, match="neither UUID nor serial number of it is pinned"):
        provider(well).turn_on(target(well, uuid=""))
    assert well.orders == []
