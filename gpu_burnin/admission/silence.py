"""Why an API server did not answer, in few words: those of urllib3 have addresses of objects and whole URLs in them."""

from __future__ import annotations

import ssl

from urllib3 import exceptions


def words(error: BaseException) -> str:
    """What is behind an error of a request."""
    if isinstance(error, exceptions.MaxRetryError) and error.reason is not None:
        return words(error.reason)
    if isinstance(error, exceptions.NameResolutionError):
        return "its name cannot be resolved"
    if isinstance(error, exceptions.ConnectTimeoutError | TimeoutError) and not isinstance(
        error, exceptions.NewConnectionError
    ):
        return "nobody answers there"
    if isinstance(error, exceptions.ReadTimeoutError):
        return "it does not answer in time"
    if (found := _certificate(error)) is not None:
        return f"its certificate is not accepted ({found})"
    if (broken := _tls(error)) is not None:
        return f"TLS does not begin ({broken.reason or broken.strerror or broken})"
    if (system := _system(error)) is not None and system.strerror:
        return system.strerror
    if isinstance(error, exceptions.ProtocolError):
        return "it has closed the connection"
    return str(error) or type(error).__name__


def remedy(error: BaseException) -> str:
    """What to do about it."""
    if _tls(error) is not None:
        return "check that the kubeconfig is of this cluster, and which certificate authority and keys it names"
    return "check that the API servers and their balancer answer"


def _chain(error: BaseException) -> list[BaseException]:
    """The error, what it was raised for, and what it holds."""
    found: list[BaseException] = []
    left = [error]
    while left and len(found) < 20:
        one = left.pop(0)
        if one in found:
            continue
        found.append(one)
        left += [more for more in (*one.args, one.__cause__, one.__context__) if isinstance(more, BaseException)]
    return found


def _certificate(error: BaseException) -> str | None:
    found = next((one for one in _chain(error) if isinstance(one, ssl.SSLCertVerificationError)), None)
    return found.verify_message if found is not None else None


def _tls(error: BaseException) -> ssl.SSLError | None:
    """What is wrong with certificates or keys; not a connection that ended."""
    ended = ssl.SSLEOFError | ssl.SSLZeroReturnError
    return next((one for one in _chain(error) if isinstance(one, ssl.SSLError) and not isinstance(one, ended)), None)


def _system(error: BaseException) -> OSError | None:
    return next((one for one in _chain(error) if isinstance(one, OSError) and one.errno), None)
