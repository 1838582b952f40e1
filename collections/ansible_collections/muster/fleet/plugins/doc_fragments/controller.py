"""Documentation that modules share: modules that run on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options: {}
notes:
  - Runs on the controller, with the Python of the Muster virtual environment. The play sets
    C(ansible_python_interpreter) to C({{ ansible_playbook_python }}).
"""
