"""The variables by which an inventory tells Ansible how to reach and enter a host."""

from __future__ import annotations

from ansible import constants as C
from ansible.plugins.loader import become_loader, connection_loader


def ansible_names() -> frozenset[str]:
    """All of them: those of every connection, and of SSH, sudo and su."""
    for loader, name in ((connection_loader, "ssh"), (become_loader, "sudo"), (become_loader, "su")):
        loader.get(name, class_only=True)  # which makes its options known
    definitions = [
        C.config.get_configuration_definitions(*plugin).values()
        for plugin in ((), ("connection", "ssh"), ("become", "sudo"), ("become", "su"))
    ]
    plugins = {entry["name"] for options in definitions for option in options for entry in option.get("vars") or ()}
    magic = {name for names in C.MAGIC_VARIABLE_MAPPING.values() for name in names}
    return frozenset({*C.COMMON_CONNECTION_VARS, *magic, *plugins})
