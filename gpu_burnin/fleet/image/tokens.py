"""Bootstrap tokens, each for the enrolment of one machine: made, found, taken back.

A token is a Secret of kube-system (Kubernetes documentation, "Authenticating with Bootstrap Tokens"), and the
NodeEnrolment says which node it is for. The gate's policies say which tokens there may be, and what they are good for.
"""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from gpu_burnin.admission.client import Conflict, KubeApi, NotFound, admissions_path
from gpu_burnin.api.enrolment import (
    GROUP,
    EnrolmentError,
    EnrolmentSpec,
    Handed,
    enrolment_document,
    enrolments_path,
    parse_enrolment,
)
from gpu_burnin.api.names import ENROLMENT_KIND, Names
from gpu_burnin.system.clock import rfc3339_s

SECRETS = "/api/v1/namespaces/kube-system/secrets"
TYPE = "bootstrap.kubernetes.io/token"
DEFAULT_LIFETIME_S = 4 * 3600.0
MOST_LIFETIME_S = 24 * 3600.0
_ALPHABET = string.ascii_lowercase + string.digits


def mint(
    api: KubeApi,
    names: Names,
    node: str,
    lifetime_s: float,
    now: datetime,
    *,
    again: bool = False,
    draw: Callable[[str], str] = secrets.choice,
) -> Handed:
    """A new token for a node of the ledger, in the place of the one that it had. Raises ApiError and EnrolmentError.

    `again`: also where a machine has enrolled already. What it said and what was decided goes; what was pinned stays.
    """
    if api.find(admissions_path(names, node), f"read the NodeAdmission of {node}") is None:
        raise EnrolmentError(
            f"{node}: the ledger has no entry for it; add it to gpu_nodes of the inventory and run site.yml"
        )
    found = api.find(enrolments_path(names, node), f"read the {ENROLMENT_KIND} of {node}")
    old = None if found is None else parse_enrolment(found)
    if old is not None and old.spec.claim and not again:
        decision = old.spec.decision
        stands = "waits for a decision" if decision is None else "was approved" if decision.approved else "was refused"
        raise EnrolmentError(
            f"{node}: a machine has enrolled as it already, and {stands} (muster image enrolments); to have another "
            "one take its place, give --again"
        )
    token, secret = ("".join(draw(_ALPHABET) for _ in range(length)) for length in (6, 16))
    handed, ends = Handed(node, token, secret), now + timedelta(seconds=lifetime_s)
    # First the enrolment: a token that no enrolment names lets nobody in.
    document = enrolment_document(
        node, EnrolmentSpec(token, rfc3339_s(ends)), names, old.version if old is not None else ""
    )
    try:
        if old is None:
            api.create(enrolments_path(names), document, f"create the {ENROLMENT_KIND} of {node}")
        else:
            api.replace(enrolments_path(names, node), document, f"write the {ENROLMENT_KIND} of {node}")
    except Conflict as error:
        raise EnrolmentError(
            f"{node}: its enrolment changed meanwhile ({error}); look at it, and run this again"
        ) from error
    # After it: a machine that comes in this very moment is told of above, and still has its token.
    if old is not None:
        withdraw(api, old.spec.token)
    api.create(SECRETS, secret_of(handed, ends), f"make a token for {node}")
    return handed


def withdraw(api: KubeApi, token: str) -> None:
    """Take a token back, by its id. Raises ApiError.

    An API server may take it for 10 s more, which it has in its cache: what lets nobody in by it at once is another
    token in the NodeEnrolment, or a decision there.
    """
    with suppress(NotFound):
        api.delete(f"{SECRETS}/bootstrap-token-{token}", f"take back token {token}")


def secret_of(handed: Handed, ends: datetime) -> dict[str, object]:
    """The Secret of a token."""
    said = {
        "token-id": handed.token,
        "token-secret": handed.secret,
        "expiration": rfc3339_s(ends),
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": GROUP,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": TYPE,
        "metadata": {"name": f"bootstrap-token-{handed.token}", "namespace": "kube-system"},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in said.items()},
    }
