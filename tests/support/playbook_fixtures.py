"""ansible-playbook for unit tests: each run in a process of its own, forked from one that has loaded Ansible."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PlaybookIn = Callable[[Path], Playbook]
# It says where the program is, and stays until its input is closed.
STAY = "command -v ansible-playbook; exec cat"


@contextlib.contextmanager
def warm_playbook(home: Path, **settings: str) -> Iterator[PlaybookIn]:
    """Makes for a folder what runs ansible-playbook there, with this checkout's collection and these variables.

    Loading Ansible is half of a run that refuses something. tools/warm_ansible.py does it once for all runs whose
    environment is the same; where a test has set a variable it starts the real program.
    """
    # An own, empty configuration: neither the checkout's nor the user's.
    configuration = home / "ansible.cfg"
    configuration.write_text("[defaults]\n")
    own = {
        "ANSIBLE_CONFIG": str(configuration),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_ROLES_PATH": str(home / "roles"),
        "ANSIBLE_LOCAL_TEMP": str(home / "local-tmp"),
        "ANSIBLE_HOME": str(home / "home"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
        **settings,
    }
    warm = [sys.executable, "-m", "tools.warm_ansible", "sh", "-c", STAY]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        warm, cwd=ROOT, env={**os.environ, "PATH": path}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        program = server.stdout.readline().strip()

        def made(folder: Path) -> Playbook:
            def run(*arguments: str, inventory: str = "localhost,") -> subprocess.CompletedProcess[str]:
                environment = {**os.environ, **own}
                # pytest's own, other in each test.
                environment.pop("PYTEST_CURRENT_TEST", None)
                return subprocess.run(
                    [program, "-i", inventory, "-c", "local", *arguments],
                    cwd=folder,
                    env=environment,
                    text=True,
                    capture_output=True,
                    timeout=PATIENCE_S,
                    check=False,
                )

            return run

        # The first call says what the environment is; it must not be that of a test which changes it.
        made(home)("--version")
        yield made


@pytest.fixture(scope="session")
def playbook_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaybookIn]:
    """Makes for a folder what runs ansible-playbook there. A file whose tests all set the same has one of its own."""
    with warm_playbook(tmp_path_factory.mktemp("ansible")) as made:
        yield made


@pytest.fixture
def ansible_playbook(tmp_path: Path, playbook_in: PlaybookIn) -> Playbook:
    """Runs ansible-playbook in the test's folder."""
    return playbook_in(tmp_path)
