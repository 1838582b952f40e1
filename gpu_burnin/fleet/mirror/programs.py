"""The programs of a mirror: which releases, where they are downloaded, and how they are built."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpu_burnin.fleet.mirror.download import fetch_verified, place, published_sum, unpack
from gpu_burnin.fleet.mirror.fill import Contents, Step
from gpu_burnin.fleet.mirror.golang import MODULES, Build
from gpu_burnin.fleet.mirror.manifests import Beside, Manifests

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.16"
COREDNS_VERSION = "1.15.0"
CONTAINERD_VERSION = "2.4.2"
TOOLKIT_VERSION = "1.20.1"
KUEUE_VERSION = "0.19.2"
JOBSET_VERSION = "0.12.0"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
ETCD = ("etcd", "etcdctl", "etcdutl")
KUBERNETES_SITE = "https://dl.k8s.io/release"
GITHUB = "https://github.com"
REACHABLE = f"{KUBERNETES_SITE}/stable.txt"


def kubernetes_build(name: str, module: str, version: str, modules: Path = MODULES) -> Build:
    """One program of Kubernetes of this release."""
    major, minor, _ = version.split(".")
    said = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    ldflags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())
    return Build(name, module, f"k8s.io/kubernetes/cmd/{name}", ldflags, modules=modules)


CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
_CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
CONTAINERD_BUILDS = tuple(
    Build(
        name,
        "containerd",
        f"{_CONTAINERD_MODULE}/cmd/{name}",
        f"-X {_CONTAINERD_MODULE}/version.Version={CONTAINERD_VERSION}",
    )
    for name in CONTAINERD
)
_TOOLKIT_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"
TOOLKIT_BUILDS = tuple(
    Build(
        name,
        "nvidia",
        f"{_TOOLKIT_MODULE}/cmd/{name}",
        f"-X {_TOOLKIT_MODULE}/internal/info.version={TOOLKIT_VERSION}",
        nvml=True,
    )
    for name in ("nvidia-ctk", "nvidia-cdi-hook")
)
_KUEUE_MODULE, _JOBSET_MODULE = "sigs.k8s.io/kueue", "sigs.k8s.io/jobset"
_KUEUE_BUILD = Build(
    "kueue", "kueue", f"{_KUEUE_MODULE}/cmd/kueue", f"-X {_KUEUE_MODULE}/pkg/version.GitVersion=v{KUEUE_VERSION}"
)
_JOBSET_BUILD = Build(
    "jobset", "kueue", _JOBSET_MODULE, f"-X {_JOBSET_MODULE}/pkg/version.GitVersion=v{JOBSET_VERSION}"
)
# Kueue makes these where they are known; the scaler answers them.
_REQUESTS = Beside(
    "k8s.io/autoscaler/cluster-autoscaler/apis", "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml", "v1"
)
JOBS_MANIFESTS = (
    Manifests(_KUEUE_BUILD, _KUEUE_MODULE, "v1beta2", beside=(_REQUESTS,)),
    Manifests(_JOBSET_BUILD, _JOBSET_MODULE, "v1alpha2"),
)
BUILDS = (
    *(kubernetes_build(name, "kubernetes", KUBERNETES_VERSION) for name in KUBERNETES),
    Build("etcd", "etcd", "go.etcd.io/etcd/server/v3", version=ETCD_VERSION),
    Build("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3", version=ETCD_VERSION),
    Build("etcdutl", "etcd", "go.etcd.io/etcd/etcdutl/v3", version=ETCD_VERSION),
    Build("coredns", "coredns", ".", version=COREDNS_VERSION),
    *CONTAINERD_BUILDS,
    *TOOLKIT_BUILDS,
    _KUEUE_BUILD,
    _JOBSET_BUILD,
)


def _download(name: str, part: Path) -> None:
    """One Kubernetes binary."""
    url = f"{KUBERNETES_SITE}/v{KUBERNETES_VERSION}/bin/linux/amd64/{name}"
    place(part / name, fetch_verified(url, published_sum(f"{url}.sha256", name)))


def _download_etcd(part: Path) -> None:
    base = f"{GITHUB}/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
    archive = f"etcd-v{ETCD_VERSION}-linux-amd64.tar.gz"
    unpack(part, ETCD, fetch_verified(f"{base}/{archive}", published_sum(f"{base}/SHA256SUMS", archive)))


def _download_containerd(part: Path) -> None:
    base = f"{GITHUB}/containerd/containerd/releases/download/v{CONTAINERD_VERSION}"
    archive = f"containerd-{CONTAINERD_VERSION}-linux-amd64.tar.gz"
    url = f"{base}/{archive}"
    unpack(part, CONTAINERD, fetch_verified(url, published_sum(f"{url}.sha256sum", archive)))


def _download_coredns(part: Path) -> None:
    base = f"{GITHUB}/coredns/coredns/releases/download/v{COREDNS_VERSION}"
    archive = f"coredns_{COREDNS_VERSION}_linux_amd64.tgz"
    url = f"{base}/{archive}"
    unpack(part, ("coredns",), fetch_verified(url, published_sum(f"{url}.sha256", archive)))


DOWNLOADS = (
    *(Step(f"download {name}", (name,), partial(_download, name)) for name in KUBERNETES),
    Step("download containerd", CONTAINERD, _download_containerd),
    Step("download etcd", ETCD, _download_etcd),
    Step("download coredns", ("coredns",), _download_coredns),
)
MIRROR = Contents("mirror", KUBERNETES_VERSION, BUILDS, DOWNLOADS, REACHABLE, JOBS_MANIFESTS)
