"""The parts of a release: equal inputs give equal bytes, sums cover each file, a changed file is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from tools.dist import archives, deb, debian, image, python, sbom, sums
from tools.dist.__main__ import LOCKS, PYTHONS, main
from tools.dist.error import DistError
from tools.dist.source import Source, export
from tools.wheelhouse import NODE_LOCKS

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = Path(__file__).parent / "cyclonedx"
EPOCH_S = 1_700_000_000


@pytest.fixture
def source() -> Source:
    """This checkout as a release's source."""
    return Source(ROOT, "0123456789abcdef" * 2, EPOCH_S, "1.2.3")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The releaser's key."""
    path = tmp_path_factory.mktemp("key") / "releaser"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "releaser", "-f", path], check=True)
    return path


@pytest.fixture
def signers(key: Path, tmp_path: Path) -> Path:
    """What a user has got of the releaser."""
    path = tmp_path / "signers"
    path.write_text(f"# of Muster\nreleases@example.com {key.with_suffix('.pub').read_text()}")
    return path


@pytest.fixture
def release(tmp_path: Path, key: Path) -> Path:
    """Two signed files, one in a folder."""
    folder = tmp_path / "release"
    (folder / "wheelhouse").mkdir(parents=True)
    (folder / "a.whl").write_text("a")
    (folder / "wheelhouse/b.tar").write_text("b")
    sums.write_sums(folder)
    sums.sign(folder, key)
    return folder


def test_sums_cover_each_file_and_sha256sum_reads_them(release: Path, signers: Path) -> None:
    assert sums.verify(release, signers) == 2
    done = subprocess.run(["sha256sum", "--check", "--strict", sums.SUMS], cwd=release, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "a.whl: OK\nwheelhouse/b.tar: OK\n")


def _changed(release: Path) -> None:
    (release / "wheelhouse/b.tar").write_text("c")


def _missing(release: Path) -> None:
    (release / "a.whl").unlink()


def _added(release: Path) -> None:
    (release / "wheelhouse/c.tar").write_text("c")


def _unsigned(release: Path) -> None:
    (release / sums.SIGNATURE).unlink()


def _summed_anew(release: Path) -> None:
    (release / "a.whl").write_text("b")
    signature = (release / sums.SIGNATURE).read_bytes()
    sums.write_sums(release)
    (release / sums.SIGNATURE).write_bytes(signature)


def _signed_by_another(release: Path) -> None:
    other = release.parent / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    sums.sign(release, other)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_changed, "b.tar: is not the file that was signed"),
        (_missing, "a.whl: is missing"),
        (_added, "c.tar: is not in SHA256SUMS"),
        (_unsigned, "nobody vouches"),
        (_summed_anew, "has signed this SHA256SUMS"),
        (_signed_by_another, "has signed this SHA256SUMS"),
    ],
)
def test_a_release_that_is_not_what_was_signed_is_refused(
    spoil: Callable[[Path], None], says: str, release: Path, signers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(release)
    assert main(["verify", str(release), "--signers", str(signers)]) == 1
    assert says in capsys.readouterr().err


def test_the_command_of_the_page_verifies_and_refuses(release: Path, signers: Path) -> None:
    page = (ROOT / "docs/operations/install.md").read_text()
    (command,) = (line for line in page.splitlines() if line.startswith("ssh-keygen -Y verify"))
    command = command.replace("RELEASER", "releases@example.com").replace("allowed_signers", str(signers))
    assert subprocess.run(command, shell=True, cwd=release, capture_output=True).returncode == 0
    _changed(release)
    assert subprocess.run(command, shell=True, cwd=release, capture_output=True).returncode != 0


def test_a_release_is_of_the_commit_and_of_nothing_beside_it(tmp_path: Path) -> None:
    checkout, trees = tmp_path / "checkout", [tmp_path / "one", tmp_path / "two"]
    (checkout / "gpu_burnin").mkdir(parents=True)
    (checkout / "gpu_burnin/__init__.py").write_text('__version__ = "9.8.7"\n')
    git = ["git", "-C", str(checkout), "-c", "user.name=A", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *words], check=True, env=os.environ | {"GIT_COMMITTER_DATE": f"{EPOCH_S} +0000"})
    (checkout / "gpu_burnin/__init__.py").write_text('__version__ = "0.0.0"\n')
    (checkout / "secret").write_text("")
    for tree, mask in zip(trees, (0o077, 0o002), strict=True):
        before = os.umask(mask)
        tree.mkdir()
        found = export(checkout, "HEAD", tree)
        os.umask(before)
    assert (found.version, found.epoch_s, (trees[0] / "secret").exists()) == ("9.8.7", EPOCH_S, False)
    assert tarred(trees[0]) == tarred(trees[1])
    with pytest.raises(DistError, match="commit nowhere: git failed"):
        export(checkout, "nowhere", tmp_path)


def tarred(tree: Path) -> bytes:
    """A folder as it gets into archives."""
    out = io.BytesIO()
    archives.write_tree(tree, out, EPOCH_S)
    return out.getvalue()


def test_a_tree_is_the_same_bytes_in_whatever_order_and_at_whatever_time_it_was_made(tmp_path: Path) -> None:
    for name, order in (("one", "abc"), ("two", "cba")):
        (tmp_path / name / "d").mkdir(parents=True)
        for letter in order:
            (tmp_path / name / "d" / letter).write_text(letter)
        (tmp_path / name / "link").symlink_to("d/a")
        os.link(tmp_path / name / "d/a", tmp_path / name / "e")
        os.utime(tmp_path / name / "d/b", (len(order), ord(order[0])))
    one = tarred(tmp_path / "one")
    assert one == tarred(tmp_path / "two")
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        found = {member.name: (member.type, member.linkname, member.uid, member.mtime) for member in tar}
    assert found["e"] == (tarfile.LNKTYPE, "d/a", 0, EPOCH_S) and found["link"][:2] == (tarfile.SYMTYPE, "d/a")
    (tmp_path / "two/d/a").write_text("z")
    assert one != tarred(tmp_path / "two")


def test_an_archive_is_repacked_to_the_same_bytes(tmp_path: Path) -> None:
    packed = []
    for name, order in (("one", "ab"), ("two", "ba")):
        archive = tmp_path / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for letter in order:
                info = tarfile.TarInfo(letter)
                info.size, info.mtime, info.uname, info.mode = 1, ord(order[0]), name, 0o664
                tar.addfile(info, io.BytesIO(letter.encode()))
        archives.repack(archive, EPOCH_S, {"b": b"new"})
        packed.append(archive.read_bytes())
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        assert (tar.extractfile("b") or io.BytesIO()).read() == b"new"


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("./usr/bin/python3.11", "usr/bin/python3.11"),
        ("./usr/bin/ssh-keygen", "usr/bin/ssh-keygen"),
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/lib/python3.11/json/__init__.py", "usr/lib/python3.11/json/__init__.py"),
        ("./usr/share/doc/libc6/copyright", "usr/share/doc/libc6/copyright"),
        ("./usr/share/doc/libc6/changelog.gz", None),
        ("./bin/sh", None),
        ("./usr/bin/ssh", None),
        ("./sbin/ldconfig", None),
        ("./usr/lib/openssh/ssh-keysign", None),
        ("./usr/lib/python3.11/lib-dynload/readline.cpython-311-x86_64-linux-gnu.so", None),
        ("./etc/init.d/x", None),
    ],
)
def test_the_image_keeps_what_python_and_ssh_keygen_need(name: str, where: str | None) -> None:
    assert debian.place(name) == where


def test_files_of_a_package_get_into_the_root_and_its_scripts_do_not_run(tmp_path: Path) -> None:
    debs = [
        packed(tmp_path, "one", {"lib/x/libone.so": "one", "bin/sh": "no", "usr/share/doc/one/copyright": "mine"}),
        packed(tmp_path, "two", {"usr/bin/tool": "no", "usr/share/doc/two/copyright": "mine"}),
    ]
    (root := tmp_path / "root").mkdir()
    kept = debian.lay_out(debs, root)
    assert [(one.name, one.version, one.sha256) for one in kept] == [("one", "1.0", sums.sha256(debs[0]))]
    assert (root / "lib/x/libone.so").read_text() == "one" and (root / "lib").readlink() == Path("usr/lib")
    assert list((root / "usr/bin").iterdir()) == [] and not (root / "usr/share/doc/two").exists()
    assert "Version: 1.0" in (root / "var/lib/dpkg/status.d/one").read_text()
    debs[0].write_bytes(b"no package")
    with pytest.raises(DistError, match=r"one\.deb: dpkg-deb cannot read it"):
        debian.lay_out(debs, tmp_path / "other")


def packed(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """A Debian package whose script would fail."""
    tree = folder / name
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content)
    (tree / "DEBIAN").mkdir()
    about = f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\nMaintainer: A\nDescription: a\n long: text\n"
    (tree / "DEBIAN/control").write_text(about)
    (tree / "DEBIAN/preinst").write_text("#!/bin/false\n")
    (tree / "DEBIAN/preinst").chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", tree, folder / f"{name}.deb"], check=True, capture_output=True)
    return folder / f"{name}.deb"


@pytest.mark.parametrize(
    ("wheel", "pythons"),
    [
        ("numpy-2.4.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", {"3.11"}),
        ("numpy-2.4.0-cp312-cp312-manylinux_2_28_x86_64.whl", {"3.12"}),
        ("cryptography-46.0.0-cp311-abi3-manylinux2014_x86_64.whl", {"3.11", "3.12"}),
        ("nvidia_cublas-13.1.0-py3-none-manylinux_2_27_x86_64.whl", {"3.11", "3.12"}),
        ("nvidia_cublas-13.10.0.20-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl", {"3.11", "3.12"}),
        ("nvidia_cuda_nvrtc-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl", {"3.11", "3.12"}),
        ("click-8.5.1-py3-none-any.whl", {"3.11", "3.12"}),
        ("numpy-2.4.0-cp311-cp311-manylinux_2_28_aarch64.whl", set()),
    ],
)
def test_each_python_gets_its_wheels(wheel: str, pythons: set[str]) -> None:
    assert {one for one in PYTHONS if python.fits(wheel, one)} == pythons


def wheelhouse(folder: Path, wheels: Mapping[str, Mapping[str, bytes]]) -> Path:
    """An archive of wheels with these files."""
    folder.mkdir()
    for name, files in wheels.items():
        with zipfile.ZipFile(folder / name, "w") as made:
            for inside, content in files.items():
                made.writestr(inside, content)
    archive = folder.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return archive


BIG = b"x" * python.LINKED_BYTES
NODE = {
    "gpu_burnin-1.2.3-py3-none-any.whl": {"gpu_burnin/__init__.py": b"", "gpu_burnin/big.py": BIG},
    "numpy-2.0-cp311-cp311-manylinux_2_17_x86_64.whl": {"numpy/a.so": b"11", "numpy-2.0.data/scripts/f2py": b"no"},
    "numpy-2.0-cp312-cp312-manylinux_2_17_x86_64.whl": {"numpy/a.so": b"12"},
    "pip-26.0-py3-none-any.whl": {"pip/__init__.py": b""},
}


def test_packages_are_laid_out_for_each_python_and_equal_files_once(tmp_path: Path) -> None:
    archive = wheelhouse(tmp_path / "node", NODE)
    (root := tmp_path / "root").mkdir()
    python.lay_out([archive, archive], PYTHONS, "/usr/bin/python3", root)
    sites = [root / python.HOME / f"lib/python{one}/site-packages" for one in PYTHONS]
    assert [(site / "numpy/a.so").read_bytes() for site in sites] == [b"11", b"12"]
    assert {path.name for path in sites[0].iterdir()} == {"gpu_burnin", "numpy"}
    assert (sites[0] / "gpu_burnin/big.py").samefile(sites[1] / "gpu_burnin/big.py")
    assert not (sites[0] / "gpu_burnin/__init__.py").samefile(sites[1] / "gpu_burnin/__init__.py")
    program = (root / "usr/bin/muster").resolve()
    assert program.read_text().startswith("#!/usr/lib/gpu-burnin/bin/python\n") and os.access(program, os.X_OK)
    lacking = {name: files for name, files in NODE.items() if "cp312" not in name}
    with pytest.raises(DistError, match=r"lacking\.tar: has no numpy for Python 3\.12"):
        python.lay_out([wheelhouse(tmp_path / "lacking", lacking)], PYTHONS, "/usr/bin/python3", tmp_path / "l")
    second = {"numpy-2.1-cp311-cp311-manylinux_2_17_x86_64.whl": {"numpy/a.so": b"x"}}
    with pytest.raises(DistError, match=r"numpy-2\.1.* is a second version of numpy"):
        python.lay_out([archive, wheelhouse(tmp_path / "other", second)], ("3.11",), "/usr/bin/python3", tmp_path / "r")


def test_an_image_is_an_oci_layout_of_equal_bytes(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "compile_tree", lambda root, version: None)
    archive = wheelhouse(tmp_path / "node", NODE)
    debs = [packed(tmp_path, "one", {"lib/x/libone.so": "one"})]
    built = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.build_image(source, debs, [archive], "3.11", "1.2.3", tmp_path / name / "image.tar")
        built.append((tmp_path / name / "image.tar").read_bytes())
    assert built[0] == built[1]
    with tarfile.open(tmp_path / "a/image.tar") as tar:
        blobs = {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, content in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (found,) = json.loads(blobs["index.json"])["manifests"]
    assert found["annotations"]["io.containerd.image.name"] == "localhost/muster:1.2.3"

    def blob(described: Mapping[str, Any]) -> bytes:
        content = blobs[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
        assert len(content) == described["size"]
        return content

    manifest = json.loads(blob(found))
    config = json.loads(blob(manifest["config"]))
    layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert (config["config"]["User"], "PATH=/usr/bin" in config["config"]["Env"]) == ("65532:65532", True)
    names = list[str]()
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tree:
            names += tree.getnames()
    assert {"usr/bin/gpu-burnin", "usr/bin/muster", "etc/passwd"} <= set(names) and "usr/bin/sh" not in names


def test_bytecode_of_an_image_is_of_its_own_python(tmp_path: Path) -> None:
    with pytest.raises(DistError, match=r"Python 2\.7 of the image"):
        python.compile_tree(tmp_path, "2.7")


def test_units_of_the_package_are_the_roles_and_nothing_is_left_to_fill_in() -> None:
    role = yaml.safe_load((ROOT / "roles/gpu_burnin/vars/main.yml").read_text())["__gpu_burnin_program"]
    for unit, text in (found := deb.units(ROOT)).items():
        template = (ROOT / f"roles/gpu_burnin/templates/{unit}.j2").read_text()
        assert template.count("{{ __gpu_burnin_program }}") == text.count("/usr/bin/gpu-burnin ") > 0
        assert "{" not in text and role not in text and text.count("\n") == template.count("\n")
    assert set(found) == {path.name.removesuffix(".j2") for path in (ROOT / "roles/gpu_burnin/templates").iterdir()}


def test_of_the_packages_a_host_has_one_and_a_python_that_fits() -> None:
    assert set(LOCKS) == set(NODE_LOCKS) and set(NODE_LOCKS.values()) == set(LOCKS.values())
    text = deb.control("1.2.3", "13", PYTHONS, 7)
    assert "Package: gpu-burnin-cuda13\n" in text and "Conflicts: gpu-burnin, gpu-burnin-cuda12\n" in text
    assert "Depends: python3 (>= 3.11), python3 (<< 3.13), openssh-client\n" in text


def test_a_package_is_the_same_bytes_again(tmp_path: Path, source: Source) -> None:
    archive = wheelhouse(tmp_path / "node", NODE)
    built = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        built.append(deb.build_deb(source, archive, "none", PYTHONS, tmp_path / name))
    assert built[0].read_bytes() == built[1].read_bytes()
    listed = subprocess.run(["dpkg-deb", "--contents", built[0]], check=True, capture_output=True, text=True).stdout
    assert all(f"./usr/lib/systemd/system/{unit}" in listed for unit in deb.UNITS)
    assert all(line.split()[1] == "root/root" and "./usr/local" not in line for line in listed.splitlines())


def test_the_bill_is_valid_and_lists_each_wheel_and_package(tmp_path: Path, source: Source) -> None:
    archive = wheelhouse(tmp_path / "node", NODE)
    shutil.copy(archive, tmp_path / "image.tar")
    debs = (debian.DebPackage("libc6", "2.36-9+deb12u10", "amd64", "0" * 64),)
    artefacts = [sbom.Artefact(archive, (archive,)), sbom.Artefact(tmp_path / "image.tar", (archive,), debs)]
    found = json.loads(json.dumps(sbom.bill(source, tmp_path, artefacts)))
    assert list(_schema().iter_errors(found)) == []
    names = {one["name"]: one for one in found["components"]}
    assert {"gpu-burnin", "numpy", "pip", "libc6", "node.tar", "image.tar"} == set(names)
    listed = {one["hashes"][0]["content"] for one in found["components"]}
    assert {sums.sha256(path) for path in (tmp_path / "node").iterdir()} <= listed
    assert names["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"
    needs = {one["ref"]: len(one["dependsOn"]) for one in found["dependencies"]}
    assert (needs["node.tar"], needs["image.tar"]) == (4, 5)
    assert list(_schema().iter_errors(found | {"components": [{"name": "no type"}]}))


def _schema() -> Draft7Validator:
    texts = {path.name: json.loads(gzip.decompress(path.read_bytes())) for path in SCHEMAS.glob("*.gz")}
    bom = texts.pop("bom-1.6.schema.json.gz")
    home = "http://cyclonedx.org/schema/"
    # By the names in which the first refers to them.
    others = [
        (home + name.replace(".schema.json.gz", ".SNAPSHOT.schema.json"), Resource.from_contents(text))
        for name, text in texts.items()
    ]
    return Draft7Validator(bom, registry=Registry[Any]().with_resources(others))
