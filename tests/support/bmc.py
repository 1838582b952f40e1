"""A BMC of this machine: sushy-tools' emulator with its fake machine, behind TLS, and what a sick BMC does instead."""

from __future__ import annotations

import importlib
import io
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.tls_pairs import make_pair

USER, PASSWORD = "muster", "a password"
UUID = "4c4c4544-0042-3510-8047-b7c04f595631"


@dataclass
class FakeBmc:
    """A running one. `orders` are the resets asked for; `answer` may answer a request in the emulator's place.

    `state` is the power of a machine by its UUID, of the first one without.
    """

    address: str
    ca_file: Path
    orders: list[str] = field(default_factory=list)
    answer: Callable[[str, str], int | None] = lambda method, path: None
    before: Callable[[str, str], None] = lambda order, machine: None
    obeys: bool = True
    state: Callable[..., str] = lambda machine="": ""


@contextmanager
def fake_bmc(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    power: str = "On",
    machines: tuple[str, ...] = (UUID,),
    address: str = "127.0.0.1",
) -> Iterator[FakeBmc]:
    """A BMC with machines of these UUIDs. Their power changes as soon as they are told, where it obeys.

    It listens at an `address` of this machine.
    """
    bcrypt = importlib.import_module("bcrypt")
    emulator = importlib.import_module("sushy_tools.emulator.main")
    fakedriver = importlib.import_module("sushy_tools.emulator.resources.systems.fakedriver")
    serving = importlib.import_module("werkzeug.serving")

    # The emulator's machines take up to 11 seconds.
    monkeypatch.setattr(fakedriver.random, "randint", lambda low, high: 0)
    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    systems = [{"uuid": uuid, "name": uuid, "power_state": power, "nics": []} for uuid in machines]
    settings = folder / "emulator.conf"
    settings.write_text(
        f"SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}\nSUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\n"
    )
    pem = make_pair(folder, "bmc", address)
    # The emulator is one application for the process, and remembers its machines.
    app = emulator.app
    if not isinstance(app.wsgi_app, emulator.RedfishAuthMiddleware):
        app.configure(config_file=str(settings))
    for system in systems:
        app.systems._systems[system["uuid"]] = system
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    bmc = FakeBmc("", pem)

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if (status := bmc.answer(method, path)) is not None:
            start(f"{status} Trouble", [("Content-Type", "application/json")])
            return [b'{"error": {"code": "Base.1.0.GeneralError", "message": "the BMC is out of sorts"}}']
        if path.endswith("/Actions/ComputerSystem.Reset"):
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            bmc.orders.append(body.decode().rpartition(": ")[2].strip('"}'))
            bmc.before(bmc.orders[-1], path.split("/")[4])
            if not bmc.obeys:
                start("204 No Content", [])
                return [b""]
            environ["wsgi.input"] = io.BytesIO(body)
        return app(environ, start)

    server = serving.make_server(address, 0, serve, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    bmc.address = f"{address}:{server.server_port}"
    bmc.state = lambda machine=machines[0]: str(app.systems.get_power_state(machine))
    try:
        yield bmc
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
