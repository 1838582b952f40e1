"""The chart installed, changed and removed by Helm in a real API server that others built.

Only here: what Helm's own labels and its order of writing make of it, and that nothing is left after it and `muster
detach`. No kubelet and no controller runs.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.admission.client import KubeApi, NotFound
from gpu_burnin.admission.gate_probe import attached as gate_probe
from gpu_burnin.admission.webhook.certificate import Pair, usable
from gpu_burnin.api.attached import GATE_CONFIG, GATE_KEY, PROBE_ACCOUNT, WEBHOOK_CA
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from tests.integration.attach_cluster import OWN, Cluster
from tests.integration.kube import NO_BINARIES, api_server, binaries, until
from tests.lab.helm import ensure_helm
from tests.support.clocks import wait_until
from tools.dist.chart.__main__ import write
from tools.dist.chart.symbols import AUTHORITY_MADE

pytestmark = pytest.mark.soak
IMAGE = "registry.example.com/muster:1"
NODES = ["--gpu-nodes", "example.com/gpu=yes"]
POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/muster-node-gate.attached"
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster-preflight-taint"
PAGE = Path(__file__).resolve().parents[2] / "docs/operations/attach.md"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with api_server(
        directory := tmp_path_factory.mktemp("foreign"), "--enable-aggregator-routing=true", foreign=True
    ) as server:
        made = Cluster(server, directory)
        wait_until(lambda: made.objects().keys() >= OWN)
        yield made


def page(chart: str, verb: str, last: str = "") -> list[str]:
    """The words of a `helm install` or `helm upgrade` on the page, without the first, for this chart."""
    lines = PAGE.read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"helm {verb} ") and line.endswith(last)]
    given = {"muster-VERSION.tgz": chart, "REF": IMAGE, "=LABEL": "=example.com/gpu", "=VALUE": "=yes"}
    for word, value in given.items():
        line = line.replace(word, value)
    return line.split()[1:]


def helm(cluster: Cluster, *words: str) -> None:
    command = [str(ensure_helm()), *words]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def names(cluster: Cluster) -> set[str]:
    """Of all objects; none while the API server still names kinds that are going."""
    try:
        return set(cluster.objects())
    except NotFound:
        return set()


def secret(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{WEBHOOK_CA}")["data"])


def test_helm_installs_changes_and_removes_it(cluster: Cluster, tmp_path: Path) -> None:
    before, chart = cluster.objects(), str(write(tmp_path))
    helm(cluster, *page(chart, "install"), "--set", "taintBy=webhook")
    authority = secret(cluster)
    until("the gate observes", lambda: gate_probe.refuses(cluster.api(), enforcing=False))

    # What a chart cannot look for, attach does; beside Helm it writes nothing.
    words = ["attach", "--image", IMAGE, *NODES, "--cluster", "test"]
    looked = cluster.muster(*words, "--dry-run", "--json")
    assert looked.returncode == 0 and json.loads(looked.stdout)["intolerant_daemonsets"] == [], looked.stderr
    for refused in (cluster.muster(*words), cluster.muster("detach", "--cluster", "test")):
        assert refused.returncode == 1 and "release muster of Helm" in refused.stderr
    assert "observing" in cluster.muster("status").stdout

    helm(cluster, *page(chart, "upgrade", "enforce=true"))
    assert secret(cluster) == authority
    until("the gate enforces", lambda: gate_probe.refuses(cluster.api(), enforcing=True))
    folder, said = tmp_path / "gate", list[str]()
    folder.mkdir()
    data = cluster.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{GATE_CONFIG}")["data"]
    (folder / GATE_KEY).write_text(data[GATE_KEY])
    probe = KubeApi(cluster.bearer(PROBE_ACCOUNT))
    assert gate_probe.once(probe, folder, said.append).exit_code == 0, said
    # Helm leaves an exception that somebody has added, until it is to put the gate back.
    nodes = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes"], "scope": "*"}
    cluster.api().merge(POLICY, {"spec": {"matchConstraints": {"excludeResourceRules": [nodes]}}})
    helm(cluster, *page(chart, "upgrade", "enforce=true"))
    assert gate_probe.once(probe, folder, said.append).changed == 1
    helm(cluster, *page(chart, "upgrade", "--force"))
    until("the gate is put back", lambda: gate_probe.once(probe, folder, said.append).exit_code == 0)
    # In its last year the webhook's authority gives way to another one at the next upgrade; both are believed then.
    old = base64.b64decode(authority["ca.crt"]).decode()
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{WEBHOOK_CA}"
    nine_years_ago = int(time.time() - 3286 * 86400)
    cluster.api().merge(path, {"metadata": {"annotations": {AUTHORITY_MADE: str(nine_years_ago)}}})
    helm(cluster, *page(chart, "upgrade", "--force"))
    made = base64.b64decode(secret(cluster)["ca.crt"]).decode()
    assert made.endswith(old) and made.count("BEGIN CERTIFICATE") == 2
    [hook] = cluster.api().get(HOOK)["webhooks"]
    assert hook["clientConfig"]["caBundle"] == secret(cluster)["ca.crt"]
    assert usable(Pair(made, base64.b64decode(secret(cluster)["ca.key"]).decode()), datetime.now(UTC))
    with cluster.webhook():
        until("the new one is used", lambda: cluster.machine("gpu-0").try_to_register().status in (201, 409))
    renewed = secret(cluster)
    helm(cluster, *page(chart, "upgrade", "--force"))
    assert secret(cluster) == renewed
    late = cluster.machine("gpu-1")
    # Its webhook does not run: the gate refuses.
    assert late.try_to_register().status == 403

    helm(cluster, "uninstall", "muster", "--namespace", SYSTEM_NAMESPACE, "--wait")
    cluster.api().delete(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}")
    cluster.end_namespace()
    done = cluster.muster("detach", "--cluster", "test", "--json")
    assert done.returncode == 0, done.stderr
    kinds = {name.partition("/")[0] for name in json.loads(done.stdout)["removed"]}
    assert kinds == {"CustomResourceDefinition", "Node"}
    until("the definitions' end", lambda: names(cluster) - {"nodes//gpu-0"} == before.keys())
    assert {name: one for name, one in cluster.objects().items() if name != "nodes//gpu-0"} == before
