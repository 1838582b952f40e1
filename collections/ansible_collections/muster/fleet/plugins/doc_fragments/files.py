"""Documentation that modules share: files that are placed on the host (module_utils/host/file_options.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = r"""
options:
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      dest:
        description: Absolute path on the host. A symbolic link there is replaced, not followed.
        type: str
        required: true
      template:
        description: Name of a template in the role's C(templates) folder, or a path on the controller.
        type: str
      src:
        description:
          - Name of a file in the role's O(files) folder, or a path on the controller. Copied byte for byte.
        type: str
      content:
        description: The text itself.
        type: str
      content_b64:
        description: The bytes themselves, base64 encoded.
        type: str
      mode:
        description: Octal mode as a quoted string.
        type: str
        required: true
      owner:
        description: User name or number. Left as it is when not given.
        type: str
      group:
        description: Group name or number. Left as it is when not given.
        type: str
      sensitive:
        description: Keep content and the validate command's output out of diffs and errors.
        type: bool
        default: false
      validate:
        description:
          - Command that must exit 0 before anything is placed.
          - C(%s) is a copy of the new file under the same file name, in a private folder.
          - No shell is involved.
        type: str
  directories:
    description: Directories, made before the files. Missing parents get mode 0755.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path on the host.
        type: str
        required: true
      mode:
        description: Octal mode as a quoted string.
        type: str
        default: "0755"
      owner:
        description: User name or number. Left as it is when not given.
        type: str
      group:
        description: Group name or number. Left as it is when not given.
        type: str
  absent:
    description: Absolute paths that must not exist. Folders go with all that is in them.
    type: list
    elements: str
    default: []
"""
