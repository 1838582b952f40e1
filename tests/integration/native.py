"""Kubernetes' own gangs, as the roles turn them on."""

from __future__ import annotations

from tests.integration.kube_files import defaults, render

# What the units of the control plane's roles name besides, of which no flag of gangs depends.
_PLACES = {
    "fleet_api_server_port": 0,
    "fleet_enrolment": False,
    "fleet_service_cidr": "",
    "__kube_apiserver_etcd": {},
    "__kube_apiserver_etcd_events": {},
}


def gang_flags(role: str, gang: str) -> list[str]:
    """The flags that a role's unit has with this `fleet_gang` and not with `kueue`."""

    def flags(value: str) -> list[str]:
        unit = render(role, f"{role.replace('_', '-')}.service.j2", {**_PLACES, **defaults(role), "fleet_gang": value})
        return [word for word in unit.split() if word.startswith("--")]

    usual = flags("kueue")
    return [word for word in flags(gang) if word not in usual]
