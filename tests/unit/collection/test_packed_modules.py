"""Archives of modules are kept for the next run, and used only whole, by their owner, for the very same sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.plugin_utils import packed_modules
from ansible_collections.muster.fleet.plugins.plugin_utils.packed_modules import Sources, put_away, take_out

from tests.lab.paths import REPOSITORY

UNIT = "ansible_collections.muster.fleet.plugins.modules.unit-ZIP_DEFLATED-none"
COMMAND = "ansible.modules.command-ZIP_DEFLATED-none"
STATE = "5" * 64


def run_folder(folder: Path, **archives: bytes) -> Path:
    """Ansible's temporary folder of one run, with what it packed."""
    (folder / packed_modules.ANSIBLE_FOLDER).mkdir(parents=True)
    for name, archive in archives.items():
        (folder / packed_modules.ANSIBLE_FOLDER / name).write_bytes(archive)
    return folder


def taken(kept: Path, folder: Path, state: str = STATE) -> dict[str, bytes]:
    """What a run that begins now has."""
    folder.mkdir()
    take_out(kept, state, folder)
    return {path.name: path.read_bytes() for path in folder.glob("*/*")}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where one run kept two archives."""
    put_away(tmp_path / "kept", STATE, run_folder(tmp_path / "first", **{UNIT: b"unit\n\x00", COMMAND: b"command"}))
    return tmp_path / "kept"


def test_the_next_run_has_what_one_packed(kept: Path, tmp_path: Path) -> None:
    assert taken(kept, tmp_path / "next") == {UNIT: b"unit\n\x00", COMMAND: b"command"}


def test_other_sources_have_nothing(kept: Path, tmp_path: Path) -> None:
    assert taken(kept, tmp_path / "next", "6" * 64) == {}


def test_the_first_run_of_all_has_nothing(tmp_path: Path) -> None:
    assert taken(tmp_path / "kept", tmp_path / "next") == {}


def test_what_others_may_enter_is_not_used(kept: Path, tmp_path: Path) -> None:
    (kept / STATE).chmod(0o750)
    assert taken(kept, tmp_path / "loose") == {}
    (kept / STATE).chmod(0o700)
    kept.chmod(0o701)
    assert taken(kept, tmp_path / "looser") == {}
    put_away(kept, "6" * 64, run_folder(tmp_path / "second", **{UNIT: b"unit"}))
    assert not (kept / ("6" * 64)).exists()


def test_what_belongs_to_another_user_is_not_used(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(packed_modules.os, "geteuid", lambda: owner + 1)
    assert taken(kept, tmp_path / "next") == {}


def test_a_link_is_not_followed(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(kept)
    assert taken(tmp_path / "link", tmp_path / "next") == {}


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-1], lambda text: b"", lambda text: text.replace(b"unit", b"evil")]
)
def test_a_damaged_archive_is_packed_and_kept_again(
    kept: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = kept / STATE / UNIT
    file.write_bytes(damage(file.read_bytes()))
    assert taken(kept, tmp_path / "next") == {COMMAND: b"command"}
    put_away(kept, STATE, run_folder(tmp_path / "again", **{UNIT: b"unit again"}))
    assert taken(kept, tmp_path / "last") == {COMMAND: b"command", UNIT: b"unit again"}


def test_what_has_sources_that_nobody_looks_at_is_not_kept(tmp_path: Path) -> None:
    strange = {
        "ansible_collections.community.general.plugins.modules.ini_file-ZIP_DEFLATED-none": b"another collection",
        "ansible.legacy.unit-ZIP_DEFLATED-none": b"beside a playbook",
        UNIT.replace("none", "_debugpy"): b"for a debugger",
        UNIT + ".lock": b"",
        UNIT + "-part": b"half",
    }
    put_away(tmp_path / "kept", STATE, run_folder(tmp_path / "run", **strange))
    assert taken(tmp_path / "kept", tmp_path / "next") == {}


def test_two_runs_may_keep_at_once(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / f"run{n}", **{UNIT: b"%d" % n * 100_000}) for n in range(8)]
    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(lambda run: put_away(tmp_path / "kept", STATE, run), runs))
    assert taken(tmp_path / "kept", tmp_path / "next")[UNIT] in {b"%d" % n * 100_000 for n in range(8)}
    assert [path.name for path in (tmp_path / "kept" / STATE).iterdir()] == [UNIT]


def test_the_states_used_last_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    states = [str(n) * 64 for n in range(packed_modules.KEPT_STATES + 1)]
    for age, state in enumerate(reversed(states[:-1])):
        put_away(kept, state, run_folder(tmp_path / state, **{UNIT: b"unit"}))
        os.utime(kept / state, (1_000_000 - age, 1_000_000 - age))
    assert taken(kept, tmp_path / "used", states[0])
    put_away(kept, states[-1], run_folder(tmp_path / states[-1], **{UNIT: b"unit"}))
    assert {path.name for path in kept.iterdir()} == set(states) - {states[1]}


def source_trees(folder: Path) -> Sources:
    for name in (
        "own/plugins/modules/unit.py", "own/plugins/module_utils/nvidia/apt.py", "own/meta/runtime.yml",
        "core/module_utils/basic.py", "core/modules/command.py", "core/executor/module_common.py",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("one\n")
    return Sources(folder / "own", folder / "core")


@pytest.mark.parametrize(
    "name", ["own/plugins/modules/unit.py", "own/plugins/module_utils/nvidia/apt.py", "own/meta/runtime.yml"]
)
def test_a_source_of_the_collection_counts_by_its_content(tmp_path: Path, name: str) -> None:
    sources = source_trees(tmp_path)
    before, status = sources.state(), (tmp_path / name).stat()
    os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert sources.state() == before
    (tmp_path / name).write_text("two\n")
    os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sources.state() != before


@pytest.mark.parametrize(
    "name", ["core/module_utils/basic.py", "core/modules/command.py", "core/executor/module_common.py"]
)
def test_a_source_of_ansible_core_counts_by_size_and_time(tmp_path: Path, name: str) -> None:
    sources = source_trees(tmp_path)
    before, status = sources.state(), (tmp_path / name).stat()
    os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert sources.state() != before


def test_a_source_that_comes_or_goes_counts(tmp_path: Path) -> None:
    sources = source_trees(tmp_path)
    before = sources.state()
    (tmp_path / "own/plugins/module_utils/new.py").write_text("")
    assert sources.state() != before


def test_a_folder_of_the_user_s_own_sources_is_seen(tmp_path: Path) -> None:
    sources = source_trees(tmp_path)
    core = str(tmp_path / "core/module_utils")
    assert sources.complete([core, str(tmp_path / "nowhere")])
    (tmp_path / "module_utils").mkdir()
    assert not sources.complete([str(tmp_path / "module_utils"), core])


# In a process of its own: plugin loaders are the process's. A run is what Ansible does on the controller for two tasks.
SCRIPT = """
import json, sys
from pathlib import Path
from ansible import constants
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_loader, module_utils_loader
from ansible.template import Templar
init_plugin_loader([sys.argv[1]])
from ansible_collections.muster.fleet.plugins.callback import preload

packed = []
pack = module_common.recursive_finder
module_common.recursive_finder = lambda name, *rest: (packed.append(name), pack(name, *rest))[1]

def run(number):
    packed.clear()
    folder = Path(sys.argv[2], f"run{number}")
    folder.mkdir()
    constants.DEFAULT_LOCAL_TMP = str(folder)
    callback = preload.CallbackModule()
    callback.v2_playbook_on_start(None)
    for name in ("muster.fleet.unit", "ansible.builtin.ping"):
        module_common.modify_module(
            module_name=name, module_path=module_loader.find_plugin(name), module_args={},
            templar=Templar(DataLoader()), task_vars={"ansible_playbook_python": sys.executable},
            module_compression="ZIP_DEFLATED", remote_is_local=True)
    callback.v2_playbook_on_stats(None)
    return list(packed)

runs = [run(0), run(1)]
real = preload.SOURCES
class Changing:
    complete = real.complete
    states = iter("abcd")
    def state(self):
        return next(self.states)
preload.SOURCES = Changing()
runs += [run(2), run(3)]
preload.SOURCES = real
module_utils_loader.add_directory(sys.argv[2])
print(json.dumps([*runs, run(4)]))
"""
BOTH = ["muster.fleet.unit", "ansible.builtin.ping"]


def packed_in_runs(tmp_path: Path, cache: Path) -> object:
    """What each run packed: two alike, two in which a source changes, one with a folder of the user's module_utils."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(REPOSITORY / "collections"), str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "MUSTER_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_ansible_packs_once_for_runs_with_the_same_sources(tmp_path: Path) -> None:
    """Only here: this release of Ansible takes the archives that an earlier run packed."""
    assert packed_in_runs(tmp_path, tmp_path / "cache") == [BOTH, [], BOTH, BOTH, BOTH]
    assert len(list((tmp_path / "cache/packed-modules").iterdir())) == 1


@pytest.mark.slow
def test_a_run_goes_on_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """A file is where the folder should be: neither a user nor root can write there."""
    (tmp_path / "cache").write_text("")
    assert packed_in_runs(tmp_path, tmp_path / "cache") == [BOTH] * 5
