#!/usr/bin/python
"""Ansible module: load container images into containerd from archives on a mirror."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import binaries

DOCUMENTATION = r"""
module: container_images
short_description: Load container images into containerd, each with its SHA-256
version_added: "0.1.0"
description:
  - For images that every node needs before its first pod (the pause image, say), so that hundreds of joining nodes do
    not ask a registry at once, and for fleets without a registry.
  - An image that containerd has by name is left alone. The archive of a missing one is downloaded, compared with its
    checksum, and imported into the namespace of Kubernetes.
options:
  images:
    description: Image name to the file name of its archive (docker or OCI format).
    type: dict
    required: true
extends_documentation_fragment:
  - muster.fleet.mirror
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Load the pause image
  muster.fleet.container_images:
    images: {"registry.k8s.io/pause:3.10.2": pause.tar}
    url: https://mirror.example.com/images
    checksums: "{{ kube_binaries_checksums }}"
"""

RETURN = r"""
loaded:
  description: Images that were loaded (or would be, in check mode).
  type: list
  elements: str
  returned: always
"""

CTR = ["ctr", "--namespace", "k8s.io", "images"]


ARGUMENT_SPEC: dict[str, Any] = {
    "images": {"type": "dict", "required": True},
    **binaries.MIRROR_OPTIONS,
}


def load(module: AnsibleModule) -> dict[str, Any]:
    """Load every image that containerd lacks. Raises FleetError, OSError."""
    given = module.params
    binaries.check_request(list(given["images"].values()), given["checksums"])
    loaded = []
    for image, archive in given["images"].items():
        if not _present(module, image):
            loaded.append(image)
            if not module.check_mode:
                _load(module, image, archive)
    return {"changed": bool(loaded), "loaded": loaded}


def _present(module: AnsibleModule, image: str) -> bool:
    rc, out, _ = module.run_command([*CTR, "ls", "--quiet", f"name=={image}"])
    # Before containerd is installed (a first check run) no image is there.
    return rc == 0 and image in out.split()


def _load(module: AnsibleModule, image: str, archive: str) -> None:
    given = module.params
    with tempfile.TemporaryDirectory(prefix="muster-image-") as folder:
        path = str(Path(folder, archive))
        url = f"{given['url'].rstrip('/')}/{archive}"
        binaries.install(url, path, given["checksums"][archive], 0o600, given["timeout_s"])
        rc, _, err = module.run_command([*CTR, "import", path])
    if rc != 0:
        raise FleetError(f"containerd does not take {url} as an image: {err.strip()}; look at the archive")
    if not _present(module, image):
        raise FleetError(f"{url} holds another image than {image}; correct container_runtime_images")


def main() -> None:
    """Entry point."""
    run_module(load, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
