"""The files of an API server as the roles render them, and the objects that they apply."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
POLICIES = ("admissions.yaml", "extension.yaml", "gate.yaml", "identities.yaml")
# Those that a fleet with teams has besides.
TEAM_POLICIES = ("pods.yaml", "team_objects.yaml", "teams.yaml")


def render(role: str, template: str, variables: Mapping[str, Any]) -> str:
    """A role's template as Ansible renders it. Raises jinja2.UndefinedError for a missing variable."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPOSITORY / "roles" / role / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["to_json"] = json.dumps
    environment.filters["combine"] = lambda first, second: {**first, **second}
    environment.filters["dict2items"] = lambda of, key_name="key", value_name="value": [
        {key_name: key, value_name: value} for key, value in of.items()
    ]
    environment.globals["lookup"] = lambda plugin, path: Path(path).read_text().rstrip()
    return environment.get_template(template).render(**variables)


def defaults(role: str) -> dict[str, Any]:
    """The role's defaults, untemplated."""
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "roles" / role / "defaults/main.yml").read_text())
    return loaded


def policy_hash(directory: Path) -> str:
    """What an API server that has loaded the policies of `directory` says of itself (apiserver manifest/loader.go)."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.yaml")):
        digest.update(path.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()}"


def gate_file(name: str, directory: Path) -> str:
    """A file of role node_admission, with `directory` in the place of /etc/kubernetes and system-1 exempt."""
    variables = {
        **defaults("node_admission"),
        "node_admission_domain": "muster.dev",
        "node_admission_system_nodes": ["system-1"],
        # The webhooks of jobs stand in the API itself here (jobs_start.py).
        "node_admission_teams": False,
        "node_admission_dir": str(directory / "admission"),
    }
    return render("node_admission", f"{name}.j2", variables)


def write_configuration(directory: Path) -> None:
    """The roles' own files, with `directory` in the place of /etc/kubernetes."""
    static = directory / "admission/static"
    static.mkdir(parents=True)
    for name in POLICIES:
        (static / name).write_text(gate_file(name, directory))
    (directory / "admission/admission.yaml").write_text(gate_file("admission.yaml", directory))
    server = {
        **defaults("kube_apiserver"),
        "kube_apiserver_pki_dir": str(directory),
        "kube_apiserver_domain": "muster.dev",
    }
    (directory / "encryption-key").write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    for name in ("authentication.yaml", "audit-policy.yaml", "encryption.yaml"):
        (directory / name).write_text(render("kube_apiserver", f"{name}.j2", server))


def rbac_objects() -> list[Any]:
    """The fleet's roles, bindings and priorities, as the role applies them."""
    of_teams = {"kube_apiserver_teams": True, "kube_apiserver_team_groups": ["oidc-vision"]}
    more = {**of_teams, "kube_apiserver_enrolment": True}
    variables = {**defaults("kube_apiserver"), "kube_apiserver_domain": "muster.dev", **more}
    texts = [render("kube_apiserver", name, variables) for name in ("rbac.yaml.j2", "priority.yaml.j2")]
    return [item for text in texts for item in yaml.safe_load_all(text)]
