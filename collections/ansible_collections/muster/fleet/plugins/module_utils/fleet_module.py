"""What all modules of the collection share: their error, and the entry point that ends the task.

Needs no more than Python 3.11 and what Ansible sends along: this runs on the hosts.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

# What to do about the errors of the operating system that a user can mend.
_OS_ADVICE = {
    errno.EACCES: "run the task as root",
    errno.EPERM: "run the task as root",
    errno.EROFS: "mount its file system writable",
    errno.ENOSPC: "make room on its file system",
    errno.EDQUOT: "make room within the quota",
}


class FleetError(Exception):
    """Why a task cannot be done: one sentence without the host's name and without a full stop.

    It names the file or the key, what is wrong and what to do. `result` is what else the task returns.
    """

    def __init__(self, message: str, **result: Any) -> None:
        super().__init__(message)
        self.result = result


def run_module(
    work: Callable[[AnsibleModule], Mapping[str, Any]],
    argument_spec: Mapping[str, Any],
    *,
    missing: ImportError | None = None,
    **restrictions: Any,
) -> NoReturn:
    """Do the work of a module and end the task with its result, or with its error and the name of this host.

    `missing` is the import that failed; `restrictions` are AnsibleModule's, such as required_together.
    """
    module = AnsibleModule(argument_spec=dict(argument_spec), supports_check_mode=True, **restrictions)
    host = os.uname().nodename
    try:
        if missing is not None:
            raise _without_package(missing)
        result = work(module)
    except FleetError as error:
        module.fail_json(msg=f"{host}: {error}", **error.result)
    except OSError as error:
        module.fail_json(msg=f"{host}: {os_error(error)}")
    module.exit_json(**result)
    raise AssertionError("exit_json returned")


def os_error(error: OSError) -> str:
    """An error of the operating system as a sentence: the file, what is wrong, and what to do where that is known."""
    where = f"{error.filename}: " if error.filename else ""
    advice = _OS_ADVICE.get(error.errno or 0)
    return f"{where}{error.strerror or error}" + (f"; {advice}" if advice else "")


def _without_package(missing: ImportError) -> FleetError:
    package = (missing.name or str(missing)).partition(".")[0]
    return FleetError(
        f"{sys.executable} has no Python package {package}; give the task the Python of Muster's virtual "
        'environment (ansible_python_interpreter: "{{ ansible_playbook_python }}")',
        exception="".join(traceback.format_exception(missing)),
    )
