"""Packages in exact versions: the key that is pinned, what apt's errors mean, and which version is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt, openpgp

from tests.support.nvidia_repository import FINGERPRINT, KEY, REPOSITORY


class Host:
    """Answers commands by their verb, and remembers them."""

    def __init__(self, **answers: Output) -> None:
        self.answers = answers
        self.commands: list[list[str]] = []

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        self.commands.append(list(command))
        words = [word for word in command if not word.startswith("-")]
        return self.answers.get(words[1] if len(words) > 1 else words[0], Output(0, "", ""))


def test_fingerprint_of_a_key() -> None:
    assert openpgp.fingerprints(KEY) == (FINGERPRINT,)
    assert openpgp.fingerprints(KEY.replace("\n\nmDM", "\nComment: by hand\n\nmDM")) == (FINGERPRINT,)
    assert openpgp.fingerprints(KEY + KEY) == (FINGERPRINT, FINGERPRINT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no PUBLIC KEY BLOCK"),
        (KEY.replace("PUBLIC KEY", "MESSAGE"), "there is no PUBLIC KEY BLOCK"),
        (KEY.replace("HkAc=", "H").replace("mDMEawNd", "mDMEa"), "damaged"),
        (KEY.replace("mDMEawNd3h", "mDMDawNd3h"), "there is no key of version 4"),
    ],
)
def test_no_key(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        openpgp.fingerprints(text)


def test_the_repository_is_pinned_to_its_key() -> None:
    spaced = f"{FINGERPRINT[:20].lower()} {FINGERPRINT[20:]}"
    keyring, source = apt.repository_files(apt.Repository(REPOSITORY.url, KEY, spaced))
    assert keyring.content.decode() == KEY
    assert source.content.decode() == (
        "Types: deb\nURIs: https://mirror.example.com/debian12/x86_64/\nSuites: /\n"
        "Signed-By: /etc/apt/keyrings/muster-nvidia.asc\n"
    )


@pytest.mark.parametrize(
    ("key", "fingerprint", "said"),
    [
        (KEY, "A" * 40, f"is the key {FINGERPRINT} and not {'A' * 40}"),
        (KEY + KEY, FINGERPRINT, f"is the key {FINGERPRINT}, {FINGERPRINT} and not"),
        ("secret", FINGERPRINT, "is no public key: there is no PUBLIC KEY BLOCK; give it as armoured text"),
    ],
)
def test_another_key_is_refused(key: str, fingerprint: str, said: str) -> None:
    with pytest.raises(FleetError, match=said):
        apt.repository_files(apt.Repository(REPOSITORY.url, key, fingerprint))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "W: GPG error: m: The following signatures couldn't be verified because the public key is "
            "not available: NO_PUBKEY 93CAF20793AACEB0\nE: The repository 'https://m InRelease' is not signed.",
            f"is signed by the key 93CAF20793AACEB0 and not by {FINGERPRINT}",
        ),
        (
            "W: GPG error: m: The following signatures were invalid: EXPKEYSIG DC2388E100B0F9E7 Muster",
            f"the key {FINGERPRINT} that signs https://mirror.example.com/debian12/x86_64 has expired",
        ),
        ("E: m: The following signatures were invalid: BADSIG DC23", "its index was changed since"),
        ("E: The repository 'm' is not signed.", "is not signed; give the URL of a folder with InRelease"),
        ("E: Failed to fetch https://m/InRelease  Could not connect", "cannot be read: Failed to fetch"),
    ],
)  # fmt: skip
def test_why_the_repository_cannot_be_used(output: str, said: str) -> None:
    with pytest.raises(FleetError) as error:
        apt.update(Host(update=Output(100, "", output)).run, REPOSITORY)
    assert said in str(error.value)
    assert str(error.value).count("; ") == 1


def test_only_the_repository_itself_is_judged_by_its_warnings() -> None:
    host = Host()
    apt.update(host.run, REPOSITORY)
    own, all_sources = host.commands
    assert "--option=APT::Update::Error-Mode=any" in own and f"--option=Dir::Etc::sourcelist={apt.SOURCES}" in own
    assert not any("Dir::Etc" in word for word in all_sources)
    with pytest.raises(FleetError, match="package lists cannot be updated: no network"):
        apt.update(Host(update=Output(100, "", "E: no network")).run)


MADISON = (
    " libcuda1 | 580.105.08-1 | https://m  Packages\n libcuda1 | 580.65.06-1 | https://m  Packages\n"
    " libcuda1 | 580.105.08-1 | https://other  Packages\n libcuda1-x | 1-1 | https://m  Packages\n"
)


def test_versions_are_exact() -> None:
    host = Host(madison=Output(0, MADISON, ""))
    wanted = {"libcuda1": "580.65.06", "nvidia-persistenced": ""}
    assert apt.resolve(wanted, host.run) == {"libcuda1": "580.65.06-1", "nvidia-persistenced": ""}
    assert apt.resolve({"libcuda1": "580.105.08-1"}, host.run) == {"libcuda1": "580.105.08-1"}
    with pytest.raises(FleetError, match=r"has libcuda1 580\.65; they have 580\.105\.08-1, 580\.65\.06-1$"):
        apt.resolve({"libcuda1": "580.65"}, host.run)
    with pytest.raises(FleetError, match="no package source of the host has nvidia-smi; see fleet_nvidia_source and"):
        apt.resolve({"nvidia-smi": "1"}, host.run)


def test_an_interrupted_dpkg_is_ended_before_anything_is_installed() -> None:
    host = Host()
    apt.install({"libcuda1": "580.65.06-1", "nvidia-persistenced": ""}, host.run)
    assert host.commands[0][:1] == ["dpkg"] and "--configure" in host.commands[0]
    assert host.commands[1][-3:] == ["install", "libcuda1=580.65.06-1", "nvidia-persistenced"]
    assert {"--allow-downgrades", "--allow-change-held-packages"} <= set(host.commands[1])


def test_what_changes_along_is_let_go_first() -> None:
    host = Host()
    apt.install({"libcuda1": "580.65.06-1"}, host.run, ["libnvidia-ml1"])
    assert host.commands[0] == ["apt-mark", "unhold", "libnvidia-ml1"]
    with pytest.raises(FleetError, match="apt-mark unhold failed: locked"):
        apt.install({}, Host(unhold=Output(1, "", "E: locked")).run, ["libcuda1"])


def test_an_apt_that_was_killed_is_no_fault_of_the_packages() -> None:
    with pytest.raises(FleetError, match="cannot install libcuda1: apt-get was killed by signal 9; run it again"):
        apt.install({"libcuda1": ""}, Host(install=Output(-9, "debconf: delaying", "")).run)


@pytest.mark.parametrize("broken", [Output(100, "", "E: Unmet dependencies"), None])
def test_what_apt_cannot_do_is_said(broken: Output | None) -> None:
    def run(command: Sequence[str], timeout_s: float = 30.0) -> Output:
        if broken is None:
            raise CommandError(f"{command[0]} gave no answer in 60 s")
        return broken

    said = "Unmet dependencies" if broken else "gave no answer in 60 s; look at what holds apt or dpkg up"
    with pytest.raises(FleetError, match=said):
        apt.install({"libcuda1": ""}, run)
    with pytest.raises(FleetError, match=said):
        apt.repair(run)
    with pytest.raises(FleetError, match=said):
        apt.hold(["libcuda1"], run)


def test_preferences_name_the_version_that_wins() -> None:
    spec = apt.preferences("driver", {"nvidia-* libcuda1": "580.65.06", "nvlsm": "2025.06.5-1"})
    assert spec.dest == "/etc/apt/preferences.d/muster-driver"
    assert spec.content.decode() == (
        "Package: nvidia-* libcuda1\nPin: version 580.65.06-*\nPin-Priority: 1001\n\n"
        "Package: nvlsm\nPin: version 2025.06.5-1\nPin-Priority: 1001\n"
    )
