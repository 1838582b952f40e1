"""Documentation that modules share: what check mode does."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: In check mode nothing is changed; C(changed) says whether anything would be.
  diff_mode:
    support: none
    description: There is no diff.
"""

    LOOKS = r"""
attributes:
  check_mode:
    support: full
    description: The module changes nothing, in check mode or out of it.
  diff_mode:
    support: none
    description: There is no diff.
"""
