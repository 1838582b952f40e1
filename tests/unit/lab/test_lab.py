"""The lab's own logic that needs no hosts: the model of an inventory, the cache of binaries, the progress line."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror import download, golang, programs
from gpu_burnin.fleet.mirror.commands import run
from tests.lab import binaries, container_image, paths, wall
from tests.lab.error import LabError
from tests.lab.model import Lab, read_groups, read_lab
from tests.lab.paths import REPOSITORY
from tests.support.server_helpers import QuietFiles, listening


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder served over HTTP on loopback, and its address."""
    with listening(partial(QuietFiles, directory=str(tmp_path))) as url:
        yield tmp_path, url


@pytest.fixture(scope="module")
def lab() -> Lab:
    """As Ansible reads it, once."""
    return read_lab([REPOSITORY / "inventory/lab"])


@pytest.mark.slow
def test_the_labs_inventory_describes_the_labs_hosts(lab: Lab) -> None:
    assert lab.name == "lab"
    assert len({host.address for host in lab.hosts}) == len(lab.hosts) == 12
    assert [host.name for host in lab.hosts if host.gpu_scenario] == ["gpu-1", "gpu-2", "gpu-3"]
    assert [host.name for host in lab.hosts if host.nvidia is not None] == ["gpu-1", "gpu-2", "gpu-3"]
    assert [host.name for host in lab.hosts if host.disk_id] == ["etcd-1", "etcd-2", "etcd-3", "etcd-events-1"]
    assert read_groups([REPOSITORY / "inventory/lab"])["gpu_nodes"] == {"gpu-1", "gpu-2", "gpu-3"}


@pytest.mark.slow
def test_no_two_labs_share_a_network(lab: Lab) -> None:
    """Molecule runs scenarios beside each other, in an order by their times: two of one network fail now and then."""
    networks: dict[str, list[str]] = {subnet: [lab.name] for subnet in lab.subnets}
    for path in REPOSITORY.glob("roles/*/molecule/*/inventory.yml"):
        variables = yaml.safe_load(path.read_text())["all"]["vars"]
        networks.setdefault(variables["lab_subnet"], []).append(variables["fleet_name"])
    assert len(networks) > 20
    assert {network: names for network, names in networks.items() if len(names) > 1} == {}


def test_an_address_outside_the_labs_networks_is_refused(lab: Lab) -> None:
    assert [lab.subnet_of(address) for address in ("198.18.7.31", "198.18.8.61")] == list(lab.subnets)
    with pytest.raises(LabError, match=r"lab lab: 198\.18\.9\.1 is in none of its networks"):
        lab.subnet_of("198.18.9.1")


def test_the_labs_firewall_is_the_table_of_the_page(lab: Lab) -> None:
    """Each row of the page is a path, and no path is missing there: by protocol and port."""
    page = (REPOSITORY / "docs/operations/networks.md").read_text()
    table = page.partition("\n\n|")[2].partition("\n\n")[0]
    told = {(protocol, int(port)) for port, protocol in re.findall(r"\b(\d+)/(tcp|udp)", table)}
    # The lab's mirror has no TLS, its clock is this machine's, and its controller is the router.
    told -= {("tcp", 443), ("udp", 123), ("tcp", 22)}
    assert {(path.protocol, path.port) for path in wall.paths(lab)} == told


def test_an_inventory_without_lab_variables_is_refused_by_name(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {one: {}}, vars: {fleet_name: x}}\n")
    with pytest.raises(LabError, match=r"hosts\.yml: one: ansible_host is missing"):
        read_lab([inventory])


def test_a_missing_command_says_what_installs_it() -> None:
    with pytest.raises(GpuBurninError, match="make setup-lab"):
        run(["no-such-command-anywhere"])


def test_a_failing_command_is_quoted_with_its_words() -> None:
    with pytest.raises(GpuBurninError, match=r"exit code 3: broken"):
        run(["sh", "-c", "echo broken >&2; exit 3"])
    with pytest.raises(GpuBurninError, match=r"^`sh -c [^`]{50,90} \[...\]` failed with exit code 3: broken$"):
        run(["sh", "-c", "echo broken >&2; exit 3", *["option"] * 99])


def test_a_download_with_another_checksum_is_refused(site: tuple[Path, str]) -> None:
    folder, url = site
    (folder / "etcd").write_bytes(b"not etcd")
    with pytest.raises(GpuBurninError, match="its publisher says"):
        download.fetch_verified(f"{url}/etcd", "0" * 64)
    good = golang.sha256(folder / "etcd")
    assert download.fetch_verified(f"{url}/etcd", good) == b"not etcd"


def test_a_download_that_does_not_answer_is_one_sentence(site: tuple[Path, str]) -> None:
    with pytest.raises(GpuBurninError, match="cannot be downloaded"):
        download.fetch_verified(f"{site[1]}/absent", "0" * 64)


@pytest.mark.parametrize(
    ("module", "required", "version"),
    [
        ("kubernetes", "k8s.io/kubernetes", programs.KUBERNETES_VERSION),
        ("etcd", "go.etcd.io/etcd/server/v3", programs.ETCD_VERSION),
        ("coredns", "github.com/coredns/coredns", programs.COREDNS_VERSION),
        ("containerd", "github.com/containerd/containerd/v2", programs.CONTAINERD_VERSION),
        ("nvidia", "github.com/NVIDIA/nvidia-container-toolkit", programs.TOOLKIT_VERSION),
        ("kueue", "sigs.k8s.io/kueue", programs.KUEUE_VERSION),
        ("kueue", "sigs.k8s.io/jobset", programs.JOBSET_VERSION),
    ],
)
def test_what_is_built_is_the_release_that_would_be_downloaded_and_is_on_the_page(
    module: str, required: str, version: str
) -> None:
    assert f"{required} v{version}\n" in (golang.MODULES / module / "go.mod").read_text()
    assert f" {version} " in (REPOSITORY / "docs/operations/mirror.md").read_text().replace(",", " ")


def test_coredns_is_built_with_the_plugins_of_the_roles_corefile_and_no_others() -> None:
    corefile = (REPOSITORY / "roles/cluster_dns/templates/Corefile.j2").read_text()
    directives = set(re.findall(r"^    (\w+)\b", corefile, re.MULTILINE))
    package = {"prometheus": "metrics"}
    main = (golang.MODULES / "coredns/main.go").read_text()
    plugins = re.findall(r'_ "github.com/coredns/coredns/plugin/(\w+)"', main)
    assert sorted(plugins) == sorted(package.get(name, name) for name in directives)
    assert len(plugins) > 10
    # The same program serves names on the nodes.
    on_nodes = (REPOSITORY / "roles/node_dns/templates/Corefile.j2").read_text()
    assert {"cache", "forward", "loop"} <= set(re.findall(r"^    (\w+)\b", on_nodes, re.MULTILINE)) <= directives


def test_programs_of_one_module_and_recipe_go_together_and_have_their_own_names() -> None:
    groups = [[build.name for build in builds] for builds in golang.together(binaries.BUILDS)]
    assert groups == [
        [*programs.KUBERNETES], [*programs.ETCD], [binaries.NEXT_ETCD], ["coredns"], [*programs.CONTAINERD],
        ["nvidia-ctk", "nvidia-cdi-hook"], ["kueue"], ["jobset"],
    ]  # fmt: skip
    one = golang.Build("etcd", "etcd", "go.etcd.io/etcd/server/v3")
    assert len(golang.together([one, replace(one, name="b", ldflags="-X a=b"), replace(one, name="c")])) == 2
    assert [golang._executable(build) for build in (one, binaries.BUILDS[0])] == ["server", "kube-apiserver"]
    for module in (*golang.MODULES.iterdir(), *paths.ARTIFACTS.iterdir()):
        # A package "." has the name of its module, which is that of its directory.
        assert (module / "go.mod").read_text().startswith(f"module muster.dev/lab/{module.name}\n")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{sum}\n", "ffff  other\n{sum}  etcd.tar.gz\n", "{sum} *./etcd.tar.gz\n"])
def test_published_checksums_are_found_in_the_usual_forms(site: tuple[Path, str], text: str) -> None:
    folder, url = site
    (folder / "sums").write_text(text.format(sum="a" * 64))
    assert download.published_sum(f"{url}/sums", "etcd.tar.gz") == "a" * 64


def test_a_checksum_file_without_the_name_is_refused(site: tuple[Path, str]) -> None:
    folder, url = site
    (folder / "sums").write_text("ffff  other\n")
    with pytest.raises(GpuBurninError, match=r"no checksum for etcd\.tar\.gz"):
        download.published_sum(f"{url}/sums", "etcd.tar.gz")


def test_the_image_archive_holds_the_binary_under_its_digest(tmp_path: Path) -> None:
    (tmp_path / "labtool").write_bytes(b"program")
    container_image.write_image(tmp_path / "image.tar", "lab.muster.dev/tool:1", tmp_path / "labtool")
    with tarfile.open(tmp_path / "image.tar") as image:
        layer = image.extractfile("layer.tar")
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as tar:
            program = tar.extractfile("labtool")
            assert program is not None and program.read() == b"program"


def test_an_image_of_a_dynamic_program_brings_its_linker_and_its_libraries(tmp_path: Path) -> None:
    program = Path("/bin/true")
    container_image.write_image(
        tmp_path / "image.tar", "lab.muster.dev/true:1", program, libraries=container_image.libraries(program)
    )
    with tarfile.open(tmp_path / "image.tar") as image:
        layer = image.extractfile("layer.tar")
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as tar:
            names = [Path(name).name for name in tar.getnames()]
    assert {"etc", "true", "libc.so.6"} < set(names)
    assert any(name.startswith("ld-linux") for name in names)


def test_an_image_of_packages_has_what_programs_need_and_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(command: Sequence[str | Path]) -> str:
        assert "--include=python3" in command
        with tarfile.open(Path(command[-1]), "w") as tar:
            for name, kind in (
                ("./usr/bin/python3", tarfile.REGTYPE), ("./usr/share/doc/python3/README", tarfile.REGTYPE),
                ("./lib64", tarfile.SYMTYPE), ("./dev/null", tarfile.CHRTYPE),
            ):  # fmt: skip
                entry = tarfile.TarInfo(name)
                entry.type = kind
                tar.addfile(entry)
        return ""

    monkeypatch.setattr(container_image, "run", extract)
    container_image.write_package_image(tmp_path / "image.tar", "python:1", ["python3"], "bookworm", ["python3"])
    with tarfile.open(tmp_path / "image.tar") as image:
        layer, config = image.extractfile("layer.tar"), image.extractfile("config.json")
        assert layer is not None and config is not None
        assert json.loads(config.read())["config"] == {"Cmd": ["python3"]}
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as tar:
            assert tar.getnames() == ["./usr/bin/python3", "./lib64"]
    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"], "nothing half-made stays"
