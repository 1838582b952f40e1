"""Encrypted values are opened where they are needed, and never shown."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.vault import EncryptedString, VaultLib, VaultSecret, VaultSecretsContext
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import ROLE_RULES
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import rule_judge
from ansible_collections.muster.fleet.plugins.plugin_utils.secrets import encrypted, is_secret, opened
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Variables

KEY = [("default", VaultSecret(b"right"))]


@pytest.fixture
def secret() -> EncryptedString:
    """The text `mirror/hunter2`, encrypted."""
    return EncryptedString(ciphertext=VaultLib(KEY).encrypt("mirror/hunter2", KEY[0][1]).decode())


@pytest.fixture
def _password() -> Iterator[None]:
    with mock.patch.object(VaultSecretsContext, "_current", VaultSecretsContext(KEY)):
        yield


@pytest.mark.usefixtures("_password")
def test_opened(secret: EncryptedString) -> None:
    value = {"a": [secret, 1], "b": {"c": secret}, "d": "plain"}
    assert [name for name, _ in encrypted(value)] == ["a", "b"]
    assert is_secret(value) and not is_secret({"d": ["plain", None]})
    assert opened(value) == {"a": ["mirror/hunter2", 1], "b": {"c": "mirror/hunter2"}, "d": "plain"}


def test_without_its_password_it_stays_closed(secret: EncryptedString) -> None:
    with mock.patch.object(VaultSecretsContext, "_current", VaultSecretsContext([])), pytest.raises(AnsibleError):
        opened(secret)


@pytest.mark.usefixtures("_password")
def test_what_a_rule_finds_in_a_secret_is_not_shown(secret: EncryptedString) -> None:
    (rule,) = (rule for rule in ROLE_RULES["kube_binaries"] if rule.variables == ("kube_binaries_url",))
    variables = Variables({"kube_binaries_url": secret, "plain": "x", "made": "{{ kube_binaries_url }}"}, None)
    assert [variables.is_secret(name) for name in ("kube_binaries_url", "plain", "made")] == [True, False, True]
    (found,) = rule_judge(rule)(variables)
    assert found == ("kube_binaries_url is not right (value withheld: it is a secret)", "correct kube_binaries_url")
