"""What the packages module finds missing, and how it reports apt's errors."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.host import packages
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import apt_errors


def test_missing_are_those_not_installed() -> None:
    query = "installed runc\nconfig-files containerd\n"
    assert packages.missing(["containerd", "runc", "iptables"], query) == ["containerd", "iptables"]


def test_nothing_missing() -> None:
    assert packages.missing(["runc", "runc"], "installed runc\n") == []


def test_half_installed_is_missing() -> None:
    assert packages.missing(["runc"], "half-configured runc\n") == ["runc"]


def test_apt_errors_are_its_own_words() -> None:
    output = "Reading package lists...\nE: Unable to locate package nosuch\nE: Second\n"
    assert apt_errors(output) == "Unable to locate package nosuch; Second"
    unmet = " nvidia-smi : Depends: libcuda1 (= 1) but it is not installable\nE: Unable to correct problems\n"
    assert apt_errors(unmet).startswith("nvidia-smi : Depends: libcuda1 (= 1) but it is not installable; Unable")
    failed = (
        "Error! Bad return status for module build on kernel: 6.1.0-56-amd64 (x86_64)\n"
        "Consult /var/lib/dkms/nvidia-current-open/535.261.03/build/make.log for more information.\n"
        "dpkg: error processing package nvidia-open-kernel-dkms (--configure):\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    assert apt_errors(failed) == (
        "Error! Bad return status for module build on kernel: 6.1.0-56-amd64 (x86_64); "
        "Consult /var/lib/dkms/nvidia-current-open/535.261.03/build/make.log; "
        "Sub-process /usr/bin/dpkg returned an error code (1)"
    )
    assert apt_errors("last line\n") == "last line"
    assert apt_errors("") == "apt-get said nothing"
