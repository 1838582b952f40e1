#!/usr/bin/python
"""Ansible module: a file of random bytes in base64, made once."""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: random_key
short_description: Make a file of random bytes in base64, once
version_added: "0.1.0"
description:
  - Makes the file with mode 0600 when it does not exist, and never touches one that does.
  - The value is neither returned nor logged.
options:
  path:
    description: The file.
    type: path
    required: true
  size_bytes:
    description: Number of random bytes.
    type: int
    default: 32
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Make the key that encrypts Secrets at rest
  muster.fleet.random_key:
    path: /root/fleet/pki/encryption-key
"""

RETURN = r""" # """


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "size_bytes": {"type": "int", "default": 32},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    if path.exists():
        module.exit_json(changed=False)
    if not module.check_mode:
        try:
            _write(path, base64.b64encode(secrets.token_bytes(module.params["size_bytes"])) + b"\n")
        except OSError as error:
            module.fail_json(msg=f"{path} cannot be written: {error.strerror}.")
    module.exit_json(changed=True)


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink()
        raise


if __name__ == "__main__":
    main()
