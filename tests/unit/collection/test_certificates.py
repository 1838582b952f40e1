"""Until when a host's certificates are valid, as roles/host_metrics/files/certificates.py tells it."""

from __future__ import annotations

import datetime as dt
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROLES = Path(__file__).resolve().parents[3] / "roles"
FROM = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
# Before 2050 a certificate has a UTCTime, from then on a GeneralizedTime.
SOON, LATE = dt.datetime(2026, 6, 1, tzinfo=dt.UTC), dt.datetime(2050, 6, 1, tzinfo=dt.UTC)
EXPIRES, UNREADABLE = "muster_certificate_expires_timestamp_seconds", "muster_certificate_unreadable"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_certificates", ROLES / "host_metrics/files/certificates.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def certificate(key: ec.EllipticCurvePrivateKey, until: dt.datetime) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(FROM).not_valid_after(until)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def written_series(script: ModuleType, folder: Path, *files: Path) -> dict[str, str]:
    """Each series with its value."""
    output = folder / "muster_certificates.prom"
    assert script.main(["--output", str(output), *map(str, files)]) == 0
    assert output.stat().st_mode & 0o777 == 0o644
    lines = [line for line in output.read_text().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}


@pytest.mark.parametrize("until", [SOON, LATE])
def test_from_when_until_when(
    script: ModuleType, key: ec.EllipticCurvePrivateKey, tmp_path: Path, until: dt.datetime
) -> None:
    file = tmp_path / "a.crt"
    file.write_bytes(certificate(key, until))
    series = written_series(script, tmp_path, file)
    assert series[f'{EXPIRES}{{file="{file}"}}'] == str(int(until.timestamp()))
    assert series[f'muster_certificate_issued_timestamp_seconds{{file="{file}"}}'] == str(int(FROM.timestamp()))
    assert not any(name.startswith(UNREADABLE) for name in series)


def test_of_several_the_one_that_ends_first(
    script: ModuleType, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.crt"
    file.write_bytes(b"# two\n" + certificate(key, LATE) + b"\n" + certificate(key, SOON))
    assert written_series(script, tmp_path, file)[f'{EXPIRES}{{file="{file}"}}'] == str(int(SOON.timestamp()))


def test_not_a_byte_of_a_key_is_read(
    script: ModuleType, key: ec.EllipticCurvePrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "kubelet.pem", certificate(key, SOON)
    begin, _, body = secret(key).partition(b"\n")
    file.write_bytes(whole + begin + b"\n" + body)
    read_to: list[int] = []

    class Recorded(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                read_to.append(self.tell())
            super().close()

    def opened(path: Path, mode: str, buffering: int) -> Recorded:
        assert buffering == 0
        return Recorded(path, mode)

    monkeypatch.setattr(Path, "open", opened)
    assert len(list(script.certificates(file))) == 1
    assert read_to == [len(whole + begin + b"\n")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no_certificate"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no_certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n", "unreadable"),
        (b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "unreadable"),
        (b"-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n", "unreadable"),
        (b"-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----\n", "unreadable"),
    ],
)
def test_what_is_no_certificate_is_told(script: ModuleType, tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "a.crt"
    file.write_bytes(content)
    assert written_series(script, tmp_path, file)[f'{UNREADABLE}{{file="{file}",problem="{problem}"}}'] == "1"


def test_every_shorter_form_of_a_certificate_is_refused(script: ModuleType, key: ec.EllipticCurvePrivateKey) -> None:
    der = x509.load_pem_x509_certificate(certificate(key, SOON)).public_bytes(serialization.Encoding.DER)
    assert script.validity(der).expires_s == int(SOON.timestamp())
    for size in range(len(der)):
        with pytest.raises(script.NoCertificate):
            script.validity(der[:size])


def test_a_file_that_vanished_is_told_and_one_that_never_came_is_not(
    script: ModuleType, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    file = tmp_path / "a.crt"
    assert not any(str(file) in name for name in written_series(script, tmp_path, file))
    file.write_bytes(certificate(key, SOON))
    written_series(script, tmp_path, file)
    file.unlink()
    missing = f'{UNREADABLE}{{file="{file}",problem="missing"}}'
    assert written_series(script, tmp_path, file)[missing] == "1"
    # It stays told until it is back.
    assert written_series(script, tmp_path, file)[missing] == "1"
    file.write_bytes(certificate(key, SOON))
    assert missing not in written_series(script, tmp_path, file)


def test_a_folder_is_no_certificate(script: ModuleType, tmp_path: Path) -> None:
    assert written_series(script, tmp_path, tmp_path)[f'{UNREADABLE}{{file="{tmp_path}",problem="unreadable"}}'] == "1"


def test_numbers_that_cannot_be_written_are_an_error(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--output", str(tmp_path / "none/x.prom"), "/etc/x.crt"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_no_role_writes_a_certificate_that_nobody_looks_at() -> None:
    variables = yaml.safe_load((ROLES / "host_metrics/vars/main.yml").read_text())
    watched = {file for files in variables["__host_metrics_certificates_of"].values() for file in files}
    written = {
        name
        for path in (*ROLES.glob("*/tasks/*.yml"), *ROLES.glob("*/vars/*.yml"))
        for name in re.findall(r"dest: \"?(/etc/[^ ,\"]+\.crt)", path.read_text())
    }
    assert len(written) > 20
    own = {name for name in watched if name.startswith("/var/lib/kubelet/")}
    assert watched - own == written
    assert len(own) == 2
