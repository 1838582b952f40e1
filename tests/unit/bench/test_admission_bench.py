"""The admission benchmark's own parts: its signatures are OpenSSH's, and it reads metrics as they are written."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpu_burnin.api.evidence import signature_holds
from tests.bench.admission.measure import quantile, samples, total
from tests.support.ssh_signature import public_line, sign


def test_a_signature_made_here_is_one_of_openssh() -> None:
    key = Ed25519PrivateKey.generate()
    signature = sign(b"a statement", key)
    assert signature_holds(b"a statement", signature, public_line(key))
    assert not signature_holds(b"another", signature, public_line(key))


def test_metrics_are_summed_by_name_and_labels() -> None:
    text = '# HELP a x\na{code="200",verb="PATCH"} 3\na{code="409",verb="PATCH"} 4\nab{code="200"} 8\nplain 1.5e+3\n'
    found = samples(text)
    assert total(found, "a", verb="PATCH") == 7
    assert total(found, "a", code="200") == 3
    assert total(found, "plain") == 1500
    assert total(found, "missing") == 0


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(100)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 99.0]
