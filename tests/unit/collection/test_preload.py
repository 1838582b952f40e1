"""What the controller loads before its first worker is really loaded, and the checkout's configuration has it so."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.lab.paths import REPOSITORY

# In a process of its own: plugin loaders and garbage collection are the process's.
SCRIPT = """
import gc, sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([sys.argv[1]])
from ansible_collections.muster.fleet.plugins.callback import preload
from ansible_collections.muster.fleet.plugins.filter import gpu_models
assert (gpu_models._text.cache_info().currsize, gc.get_freeze_count()) == (0, 0)
preload.CallbackModule().v2_playbook_on_start(None)
assert gpu_models._text.cache_info().currsize == 1
assert gc.get_freeze_count() > 0
for name in preload.FILTERS:
    assert name.replace("muster.fleet.", "ansible_collections.muster.fleet.plugins.filter.") in sys.modules, name
missing = [name for loader, names in preload.PRELOADED for name in names if loader.get(name, class_only=True) is None]
assert not missing, missing
assert len(preload.FILTERS) > 10
"""


@pytest.mark.slow
def test_workers_inherit_plugins_and_the_gpu_data() -> None:
    command = [sys.executable, "-c", SCRIPT, str(REPOSITORY / "collections")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_modules_can_still_be_imported_once_ansible_s_plugins_are_in_this_process(ansible_plugins: None) -> None:
    module = importlib.import_module("ansible_collections.muster.fleet.plugins.modules.clock_skew")
    # Found and loaded anew, which nobody else needs of this one.
    assert importlib.reload(module).ARGUMENT_SPEC["max_skew_s"]["default"] == 0.5


def test_the_checkout_s_configuration_preloads() -> None:
    text = (REPOSITORY / "ansible.cfg").read_text()
    assert "callbacks_enabled = muster.fleet.preload, " in text
