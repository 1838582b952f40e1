"""Which module would be loaded, and who signed it: the real depmod, modprobe and modinfo over a made-up tree."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver, kernel, x509

RELEASE = "6.1.0-50-amd64"
DKMS, UBUNTUS, KERNELS = "updates/dkms", "kernel/nvidia-580srv", "kernel/drivers/video"
_FIELD = '__attribute__((section(".modinfo"), used)) static const char {name}[] = "{name}={value}";\n'


def add(root: Path, folder: str, version: str, name: str = "nvidia", depends: str = "") -> Path:
    """A module as far as depmod and modinfo look into it."""
    path = root / "lib/modules" / RELEASE / folder / f"{name}.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"license": "Dual MIT/GPL", "version": version, "depends": depends}
    source = "".join(_FIELD.format(name=key, value=value) for key, value in fields.items())
    subprocess.run(["gcc", "-x", "c", "-c", "-o", path, "-"], input=source, text=True, check=True)
    return path


def depmod(root: Path) -> None:
    for name in ("modules.order", "modules.builtin"):
        (root / "lib/modules" / RELEASE / name).touch()
    subprocess.run(["depmod", "-b", root, RELEASE], check=True, capture_output=True)


def configure(root: Path, text: str) -> None:
    (root / "etc/modprobe.d").mkdir(parents=True)
    (root / "etc/modprobe.d/nvidia.conf").write_text(text)


def on_disk(root: Path) -> dict[str, driver.Module]:
    return driver.on_disk(root, run_command)


@pytest.mark.parametrize(
    ("folders", "chosen"),
    [
        ((DKMS, UBUNTUS, KERNELS), DKMS),
        ((KERNELS, UBUNTUS), None),
        ((UBUNTUS,), UBUNTUS),
        (("extra", "updates"), "updates"),
    ],
)
def test_the_module_is_the_one_that_modprobe_takes(
    tmp_path: Path, folders: tuple[str, ...], chosen: str | None
) -> None:
    paths = {folder: add(tmp_path, folder, f"580.{number}") for number, folder in enumerate(folders)}
    depmod(tmp_path)
    shown = subprocess.run(
        ["modprobe", "-D", "-d", tmp_path, "-S", RELEASE, "nvidia"], check=True, capture_output=True, text=True
    ).stdout.split()[1]
    assert on_disk(tmp_path)[RELEASE].path == shown
    assert chosen is None or shown == str(paths[chosen])


def test_an_order_of_the_site_s_own_is_followed(tmp_path: Path) -> None:
    """A file of depmod.d that puts the kernel's own folder first: no order by names would know."""
    add(tmp_path, DKMS, "580.1")
    first = add(tmp_path, KERNELS, "575.1")
    (tmp_path / "search").mkdir()
    (tmp_path / "search/x.conf").write_text("search kernel updates\n")
    for name in ("modules.order", "modules.builtin"):
        (tmp_path / "lib/modules" / RELEASE / name).touch()
    command = ["depmod", "-b", tmp_path, "-C", tmp_path / "search", RELEASE]
    subprocess.run(command, check=True, capture_output=True)
    assert on_disk(tmp_path)[RELEASE] == driver.Module("575.1", "open", "", str(first))


def test_debian_s_module_has_another_name(tmp_path: Path) -> None:
    add(tmp_path, DKMS, "535.1", "nvidia-current")
    chosen = add(tmp_path, DKMS, "535.2", "nvidia-current-open", depends="drm")
    add(tmp_path, "kernel/drivers/gpu", "6.1", "drm")
    depmod(tmp_path)
    assert on_disk(tmp_path) == {}  # `modprobe nvidia` finds none
    configure(tmp_path, "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    assert on_disk(tmp_path)[RELEASE].path == str(chosen)


def test_a_module_that_modprobe_does_not_know_is_none(tmp_path: Path) -> None:
    add(tmp_path, KERNELS, "6.1", "drm")
    depmod(tmp_path)
    add(tmp_path, DKMS, "580.1")
    assert on_disk(tmp_path) == {}


def test_a_module_that_modprobe_d_keeps_away_is_told(tmp_path: Path) -> None:
    add(tmp_path, DKMS, "580.1")
    depmod(tmp_path)
    configure(tmp_path, "install nvidia /bin/false\n")
    with pytest.raises(CommandError, match="has `install nvidia /bin/false`, so the module is not loaded; remove"):
        on_disk(tmp_path)


@pytest.mark.slow
def test_the_certificate_that_signed_a_module(tmp_path: Path) -> None:
    """Signed as the kernel's scripts/sign-file does: PKCS#7 without certificates, then struct module_signature."""
    path = add(tmp_path, DKMS, "580.1")
    dkms = tmp_path / "var/lib/dkms"
    dkms.mkdir(parents=True)
    for name in ("mok", "other"):
        words = [
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=DKMS module signing key",
            "-keyout",
            dkms / f"{name}.key",
        ]
        command = ["openssl", "req", "-new", "-x509", *words, "-outform", "DER", "-out", dkms / f"{name}.pub"]
        subprocess.run(command, check=True, capture_output=True)
    signer = ["-signer", dkms / "mok.pub", "-inkey", dkms / "mok.key"]
    signed = subprocess.run(
        ["openssl", "cms", "-sign", "-binary", "-noattr", "-nocerts", "-nosmimecap", "-md", "sha256", "-outform", "DER",
         "-in", path, *signer],
        check=True,
        capture_output=True,
    ).stdout  # fmt: skip
    end = struct.pack(">5B3xI", 0, 0, 2, 0, 0, len(signed)) + b"~Module signature appended~\n"
    path.write_bytes(path.read_bytes() + signed + end)
    depmod(tmp_path)
    module = on_disk(tmp_path)[RELEASE]
    assert module.signer == "DKMS module signing key"
    assert kernel.key_serials(tmp_path) == {str(dkms / "mok.pub"): module.key}
    assert x509.serial((dkms / "other.pub").read_bytes()) != module.key


@pytest.mark.parametrize(
    "text", [b"", b"stand-in of a certificate\n", b"\x30\x82\xff\xff\x30", b"\x30\x04\x30\x02\x05\x00"]
)
def test_what_is_no_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"ends too early|no certificate|no serial number"):
        x509.serial(text)
