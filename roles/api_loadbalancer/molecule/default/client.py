"""A client of the API that keeps its connection and tries again a second after an error, as Kubernetes' clients do.

client.py ADDRESS PORT FOLDER STOP: FOLDER has ca.crt, gate-probe.crt and gate-probe.key. It ends when the file STOP is
there and prints how many requests were answered, and each time without answers: how many requests failed one after the
other, with what, and how long it was.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import time
from pathlib import Path

TIMEOUT_S = 5.0
PAUSE_S = 0.1
RETRY_S = 1.0


def main() -> None:
    """Ask until told to stop."""
    address, port, folder, stop = sys.argv[1:]
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    context.load_cert_chain(f"{folder}/gate-probe.crt", f"{folder}/gate-probe.key")
    connection = http.client.HTTPSConnection(address, int(port), context=context, timeout=TIMEOUT_S)
    answered, gaps, errors, last = 0, [], [], time.monotonic()
    while not Path(stop).exists():
        try:
            connection.request("GET", "/version")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            errors.append(type(error).__name__)
            time.sleep(RETRY_S)
        else:
            if errors:
                gaps.append({"errors": errors, "gap_s": round(time.monotonic() - last, 1)})
            answered, errors, last = answered + 1, [], time.monotonic()
            time.sleep(PAUSE_S)
    print(json.dumps({"answered": answered, "gaps": gaps, "unanswered": errors}))


if __name__ == "__main__":
    main()
