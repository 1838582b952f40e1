"""NVIDIA's repository as an inventory names it, with a real key."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt

FINGERPRINT = "BF2243ABA661B87E5B92A36EDC2388E100B0F9E7"
# Made for this test by `gpg --quick-gen-key`; nothing is signed with it.
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawNd3hYJKwYBBAHaRw8BAQdAWGTY77gJRTxpALB5Dif9yBhtApwzbVxIMxT0
oFxjEru0IE11c3RlciB0ZXN0cyA8dGVzdHNAZXhhbXBsZS5jb20+iJAEExYIADgW
IQS/IkOrpmG4fluSo27cI4jhALD55wUCawNd3gIbAwULCQgHAgYVCgkICwIEFgID
AQIeAQIXgAAKCRDcI4jhALD551nuAQCTf7tPv72UaRs5yc8o9L6QRzMmSVq8tLGS
1kA6lNvbHwD+NVj3+1E/QCbusRB7l4MgLbu4dLS2N1UUkxB4Y5Wd4Ac=
=xiwX
-----END PGP PUBLIC KEY BLOCK-----
"""
REPOSITORY = apt.Repository("https://mirror.example.com/debian12/x86_64", KEY, FINGERPRINT)
