#!/usr/bin/env python3
"""Run a command for which `ansible-playbook` starts quickly: forked from a process that has loaded Ansible.

ansible-lint starts `ansible-playbook --syntax-check` for each playbook and each role, over a hundred times, and two
thirds of each start is Python that loads Ansible. Here that happens once. Each check is as it was: the same arguments,
environment and folder, in a process of its own. Ansible reads its configuration as it is loaded, so a call with other
variables than the first one, or from another folder without the name of a configuration, starts the real program.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

# Kinds of plugins of which each run has some.
PLUGINS = ("callback", "connection", "inventory", "shell", "strategy")
# What stands first on PATH as ansible-playbook. It hands all to the server and ends as the check does.
_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = json.dumps({{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}).encode()
    socket.send_fds(server, [len(call).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(call)
    status = server.recv(1)
if not status:
    sys.exit("ansible-playbook: it ended without a status")
sys.exit(status[0])
"""


def main(command: list[str]) -> int:
    """Run this command; its exit status."""
    if not command:
        print("usage: python -m tools.warm_ansible COMMAND...", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="warm-ansible-") as folder, socket.socket(socket.AF_UNIX) as listener:
        client = Path(folder) / "ansible-playbook"
        address = str(Path(folder) / "socket")
        listener.bind(address)
        listener.listen(64)
        client.write_text(_CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        # The server ends with the pipe: when this process does, in whatever way.
        ended, ends = os.pipe()
        server = os.fork()
        if not server:
            os.close(ends)
            _serve(listener, ended)
        os.close(ended)
        listener.close()
        try:
            return subprocess.run(
                command, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, check=False
            ).returncode
        finally:
            os.close(ends)
            os.waitpid(server, 0)


def _serve(listener: socket.socket, ended: int) -> NoReturn:
    """Answer each call with a process of its own, until `ended` is closed."""
    # As for a program whose output is read: no colours.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    loaded: dict[str, Any] = {}
    running: set[int] = set()
    while ended not in select.select([listener.fileno(), ended], [], [])[0]:
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0]}
        client, _ = listener.accept()
        with client:
            call, files = _received(client)
            if not loaded:
                loaded = _configuration(call)
                os.chdir(call["folder"])
                os.environ.clear()
                os.environ.update(call["environment"])
                _load()
            child = os.fork()
            running.add(child)
            if not child:
                status = 1
                try:
                    for number, file in enumerate(files):
                        os.dup2(file, number)
                    status = _played(call) if _configuration(call) == loaded else _started(call)
                finally:
                    client.sendall(bytes([status]))
                    os._exit(status)
            for file in files:
                os.close(file)
    for child in running:
        os.waitpid(child, 0)
    sys.exit()  # not os._exit: Ansible removes its temporary folder as it ends


def _received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A call, and standard input, output and error of it."""
    length, files, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as stream:
        call: dict[str, Any] = json.loads(stream.read(int.from_bytes(length, "big")))
    return call, files


def _load() -> None:
    """Load Ansible, and the largest file that each check reads: of names that moved out of Ansible's own collection."""
    # Here, not above: as it is loaded it reads its configuration.
    import ansible.cli.playbook
    from ansible.plugins import loader
    from ansible.utils.collection_loader import _collection_finder as finder

    # It has its content's name as an argument so that others may keep what it returns.
    finder._meta_yml_to_dict = functools.cache(finder._meta_yml_to_dict)
    moved = Path(ansible.__file__).parent / "config/ansible_builtin_runtime.yml"
    finder._meta_yml_to_dict(moved.read_bytes(), ("ansible.builtin", "runtime.yml"))
    # A run reads the options of forty plugins, a third of what the smallest one takes.
    for kind in PLUGINS:
        for _ in getattr(loader, f"{kind}_loader").all(class_only=True):
            pass


def _configuration(call: dict[str, Any]) -> dict[str, Any]:
    """All that Ansible may read as it is loaded: its folder too, where no file of a configuration is named.

    This project's own variables, MUSTER_..., are not among them.
    """
    is_named = Path(call["environment"].get("ANSIBLE_CONFIG", "")).is_absolute()
    variables = {name: value for name, value in call["environment"].items() if not name.startswith("MUSTER_")}
    return {"folder": "" if is_named else call["folder"], "environment": variables}


def _played(call: dict[str, Any]) -> int:
    """ansible-playbook in this process; its exit status."""
    from ansible import constants
    from ansible.cli import playbook

    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.argv = [_program(), *call["arguments"]]
    _take_name()
    shared = Path(constants.DEFAULT_LOCAL_TMP)
    with tempfile.TemporaryDirectory(dir=shared) as own:
        # Each run has a folder of its own, as the real program; but modules are packed once for all.
        packed = shared / "ansiballz_cache"
        packed.mkdir(exist_ok=True)
        Path(own, packed.name).symlink_to(packed)
        constants.DEFAULT_LOCAL_TMP = own
        try:
            playbook.main(sys.argv)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def _take_name() -> None:
    """Have this process a command line as that of the real program: the fleet's locks know a run by it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # arg_start and arg_end of proc_pid_stat(5).
    begin, end = int(fields[45]), int(fields[46])
    ctypes.memmove(begin, b"python\0ansible-playbook\0".ljust(end - begin, b"\0"), end - begin)


def _started(call: dict[str, Any]) -> int:
    """The real ansible-playbook, from what it was called with; its exit status."""
    command = [_program(), *call["arguments"]]
    return subprocess.run(command, cwd=call["folder"], env=call["environment"], check=False).returncode


def _program() -> str:
    return str(Path(sys.executable).parent / "ansible-playbook")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
