"""A cluster that others built, with real kubelets: for `muster attach`.

Three hosts of a lab of its own: cp-1 with the control plane, CoreDNS and a kubelet, gpu-1 healthy, gpu-2 sick. All is
as kubeadm would have it, but for two things: the control plane's programs and CoreDNS are services and no pods, for
which there are no images here, and pods reach each other by static routes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.fleet.mirror.cache import cache_dir
from tests.support.authority import Authority
from tests.support.server_helpers import write_kubeconfig

from . import hosts
from .error import LabError
from .model import Host, Lab
from .paths import state_dir

CONTROL_PLANE, HEALTHY, SICK = "cp-1", "gpu-1", "gpu-2"
SANDBOX_IMAGE = "lab.muster.dev/tool:1"
# Of every kubelet's GPU Node at its creation, as a node group of a cloud has one.
GPU_LABEL = ("example.com/gpu", "yes")
# As gpu-operator's driver container has it; the host's own root stands in for that container's.
DRIVER_ROOT = "/run/nvidia/driver"
# Of this boot, where pods with the host's /dev read it.
KERNEL_LOG = "/dev/kernel-log"
_SUBNET, _SERVICES = "198.18.77.0/24", "198.18.79.0/24"
_API_SERVICE = "198.18.79.1"
# By host: its address and the network of its pods.
_HOSTS = {
    CONTROL_PLANE: ("198.18.77.11", "198.18.78.0/26", None),
    HEALTHY: ("198.18.77.21", "198.18.78.64/26", "healthy-2gpu"),
    SICK: ("198.18.77.22", "198.18.78.128/26", "sick-ecc-xid79"),
}
_API = f"https://{_HOSTS[CONTROL_PLANE][0]}:6443"
_NODE_PROGRAMS = ("kubelet", "kube-proxy")
_CONTROL_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
_PKI = "/etc/kubernetes/pki"
_CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "/etc/containerd/base.json"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""
# A container's /proc is made anew and shows the boot id of the machine below, not that of the lab's host.
_BOOT_ID_HOOK = """\
#!/bin/sh
bundle=$(sed 's/.*"bundle":"\\([^"]*\\)".*/\\1/')
exec mount --bind /run/lab_boot_id "$bundle/rootfs/proc/sys/kernel/random/boot_id"
"""
_COREFILE = """\
.:53 {{
    bind {address}
    errors
    kubernetes cluster.local {{
        kubeconfig /etc/kubernetes/coredns.conf
        ttl 5
    }}
}}
"""
_UNIT = """\
[Unit]
After=network-online.target containerd.service host-network.service
StartLimitIntervalSec=0
[Service]
Type={type}
RemainAfterExit={remain}
ExecStart={command}
Restart={restart}
RestartSec=1
KillMode=process
[Install]
WantedBy=multi-user.target
"""


def lab() -> Lab:
    """Its hosts."""
    made = tuple(Host(name, address, True, None, gpus, None) for name, (address, _, gpus) in _HOSTS.items())
    return Lab("foreign", state_dir("foreign"), (_SUBNET,), "198.18.77.5", made, {})


class ForeignCluster:
    """`kubeconfig` is its cluster admin's."""

    def __init__(self) -> None:
        self.lab = lab()
        self._pki = self.lab.state / "pki"
        self.kubeconfig = self._pki / "admin.conf"

    def up(self, images: Sequence[Path]) -> None:
        """Start it, with these image archives in each host's containerd. Raises LabError."""
        hosts.up(self.lab)
        self._pki.mkdir()
        authority = Authority(self._pki)
        for name in _HOSTS:
            self._write_host(name, authority)
        self.kubeconfig.symlink_to(self._kubeconfig(authority, "kubernetes-admin", ["system:masters"]))
        for name in _HOSTS:
            self.on(name, "systemctl daemon-reload; systemctl enable --now containerd host-network 2>&1")
            for archive in images:
                with archive.open("rb") as content:
                    self.on(name, "ctr --namespace k8s.io images import -", content)
        self.on(CONTROL_PLANE, f"systemctl enable --now {' '.join(_CONTROL_PROGRAMS)} 2>&1")
        for name in _HOSTS:
            self.on(name, f"systemctl enable --now {' '.join(_NODE_PROGRAMS)} 2>&1")

    def down(self) -> None:
        """Remove all of it."""
        hosts.down(self.lab)

    def on(self, host: str, script: str, content: Any = None) -> str:
        """Standard output of a shell script on a host. Raises LabError where it fails."""
        done = self._done(host, script, content)
        if done.returncode != 0:
            raise LabError(f"{host}: {script!r} ended with {done.returncode}: {(done.stdout + done.stderr).decode()}")
        return done.stdout.decode()

    def succeeds(self, host: str, script: str) -> bool:
        """Whether a shell script on a host ends with 0."""
        return self._done(host, script, None).returncode == 0

    def _done(self, host: str, script: str, content: Any) -> subprocess.CompletedProcess[bytes]:
        words = ["podman", "exec", *(["-i"] if content else []), f"muster-{self.lab.name}-{host}", "sh", "-ec", script]
        return subprocess.run(words, stdin=content, capture_output=True, check=False)

    def kubectl(self, *words: str) -> str:
        """Standard output of kubectl as the cluster admin. Raises LabError where it fails."""
        done = self.try_kubectl(*words)
        if done.returncode != 0:
            raise LabError(f"kubectl {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def try_kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What kubectl answers to the cluster admin."""
        command = [str(_binary("kubectl")), f"--kubeconfig={self.kubeconfig}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def reboot(self, host: str) -> None:
        """A new systemd, a new boot id; its driver is not loaded again by itself."""
        hosts.reboot(self.lab, host)

    def load_driver(self, host: str) -> None:
        """The driver comes, as from a container that mounts its root where others look for it."""
        # No peer of the host's root, whose later mounts would come here once more; and shared, or containerd refuses a
        # container that asks for what is mounted later.
        apart = f"mount --make-private {DRIVER_ROOT}; mount --make-shared {DRIVER_ROOT}"
        self.on(host, f"mkdir -p {DRIVER_ROOT}; mount --bind / {DRIVER_ROOT}; {apart}")

    def _kubeconfig(self, authority: Authority, user: str, groups: Sequence[str] = ()) -> Path:
        """With all in it."""
        certificate, key = authority.issue(user, groups)
        files = {"client-certificate": str(certificate), "client-key": str(key)}
        path = certificate.with_suffix(".kubeconfig")
        return write_kubeconfig(path, _API, files, **{"certificate-authority": str(authority.ca)})

    def _write_host(self, name: str, authority: Authority) -> None:
        root = self.lab.state / "hosts" / name / "merged"
        programs = (*_NODE_PROGRAMS, *(_CONTROL_PROGRAMS if name == CONTROL_PLANE else ()))
        for program in programs:
            shutil.copyfile(_binary(program), root / "usr/local/bin" / program)
            (root / "usr/local/bin" / program).chmod(0o755)
        users = {"kubelet": (f"system:node:{name}", ["system:nodes"]), "kube-proxy": ("system:kube-proxy", [])}
        if name == CONTROL_PLANE:
            users |= {one: (f"system:{one}", []) for one in ("kube-controller-manager", "kube-scheduler")}
            users["coredns"] = ("coredns", ["system:masters"])
        texts = {f"{_PKI}/ca.crt": authority.ca.read_text()}
        for program, (user, groups) in users.items():
            texts |= self._credentials(program, user, groups, authority)
        if name == CONTROL_PLANE:
            address = _HOSTS[name][0]
            names = (_API_SERVICE, "kubernetes.default.svc", "kubernetes")
            texts |= _pair("apiserver", authority.issue("kube-apiserver", peer=address, names=names))
            texts |= _pair("kubelet-client", authority.issue("kube-apiserver-kubelet-client", ["system:masters"]))
            texts["/etc/kubernetes/Corefile"] = _COREFILE.format(address=address)
        for path, text in (texts | _files(name)).items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o755 if "sbin" in path else 0o644)

    def _credentials(self, program: str, user: str, groups: Sequence[str], authority: Authority) -> dict[str, str]:
        files = {"client-certificate": f"{_PKI}/{program}.crt", "client-key": f"{_PKI}/{program}.key"}
        made = write_kubeconfig(
            self._pki / "made.conf", _API, files, **{"certificate-authority": f"{_PKI}/ca.crt"}
        ).read_text()
        return {f"/etc/kubernetes/{program}.conf": made} | _pair(program, authority.issue(user, groups))


def _pair(name: str, made: tuple[Path, Path]) -> dict[str, str]:
    return {f"{_PKI}/{name}.crt": made[0].read_text(), f"{_PKI}/{name}.key": made[1].read_text()}


def _binary(name: str) -> Path:
    return cache_dir() / "bin/current" / name


def _files(name: str) -> dict[str, str]:
    """The configuration of a host."""
    routes = [f"ip route replace {pods} via {address}" for other, (address, pods, _) in _HOSTS.items() if other != name]
    network = "; ".join(
        ["sysctl -q -w net.ipv4.ip_forward=1", *routes, f"cp /run/lab/kmsg {KERNEL_LOG}", "mkdir -p /var/lib/kubelet"]
    )
    base = "/usr/local/sbin/lab-base-spec"
    files = {
        "/etc/containerd/config.toml": _CONTAINERD.format(sandbox=SANDBOX_IMAGE),
        "/usr/local/sbin/lab-boot-id": _BOOT_ID_HOOK,
        base: _BASE_SPEC,
        "/etc/systemd/system/containerd.service.d/lab.conf": f"[Service]\nExecStartPre={base}\n",
        "/etc/cni/net.d/10-pods.conflist": json.dumps(_cni(_HOSTS[name][1])),
        "/etc/kubernetes/kubelet.yaml": yaml.safe_dump(_kubelet()),
        "/etc/kubernetes/kube-proxy.yaml": yaml.safe_dump(_kube_proxy(name)),
        "/etc/systemd/system/host-network.service": _UNIT.format(
            command=f"/bin/sh -ec '{network}'", type="oneshot", remain="yes", restart="no"
        ),
    }
    for program, options in _options(name).items():
        command = f"/usr/local/bin/{program} {' '.join(options)}"
        text = _UNIT.format(command=command, type="exec", remain="no", restart="always")
        files[f"/etc/systemd/system/{program}.service"] = text
    return files


# containerd's own specification with a hook; without its limit of files, which CRI has none of.
_BASE_SPEC = """\
#!/usr/bin/python3
import json, subprocess
spec = json.loads(subprocess.run(["ctr", "oci", "spec"], check=True, capture_output=True).stdout)
spec["process"].pop("rlimits", None)
spec["hooks"] = {"createContainer": [{"path": "/usr/local/sbin/lab-boot-id"}]}
open("/etc/containerd/base.json", "w").write(json.dumps(spec))
"""


def _cni(pods: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet() -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{_PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [_HOSTS[CONTROL_PLANE][0]],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "failCgroupV1": False,
    }


def _kube_proxy(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
        "hostnameOverride": name,
        "mode": "iptables",
        "clusterCIDR": "198.18.78.0/24",
        "conntrack": {"maxPerCore": 0},
    }


def _options(name: str) -> Mapping[str, Sequence[str]]:
    address = _HOSTS[name][0]
    labels = f"--node-labels={'='.join(GPU_LABEL)}" if name != CONTROL_PLANE else ""
    of_node = {
        "kubelet": (
            "--config=/etc/kubernetes/kubelet.yaml",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            f"--hostname-override={name}",
            f"--node-ip={address}",
            labels,
        ),
        "kube-proxy": ("--config=/etc/kubernetes/kube-proxy.yaml",),
    }
    if name != CONTROL_PLANE:
        return of_node
    own = f"{_PKI}/apiserver"
    return of_node | {
        "etcd": ("--data-dir=/var/lib/etcd", "--unsafe-no-fsync"),
        "kube-apiserver": (
            f"--advertise-address={address}",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--tls-cert-file={own}.crt",
            f"--tls-private-key-file={own}.key",
            f"--client-ca-file={_PKI}/ca.crt",
            f"--service-account-key-file={own}.key",
            f"--service-account-signing-key-file={own}.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={_SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={_PKI}/kubelet-client.crt",
            f"--kubelet-client-key={_PKI}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
        ),
        "kube-controller-manager": (
            "--kubeconfig=/etc/kubernetes/kube-controller-manager.conf",
            f"--service-account-private-key-file={own}.key",
            f"--root-ca-file={_PKI}/ca.crt",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
        ),
        "kube-scheduler": ("--kubeconfig=/etc/kubernetes/kube-scheduler.conf", "--leader-elect=false"),
        "coredns": ("-conf=/etc/kubernetes/Corefile",),
    }


def tool_image() -> Path:
    """The archive of SANDBOX_IMAGE, which also is a pod that does nothing."""
    return _binary("labtool.tar")
