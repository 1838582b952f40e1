"""What the page on launching shows runs as it says."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpu_burnin.launch.function import script_of
from gpu_burnin.launch.objects import KEPT_S, LEAST_RUN_S
from gpu_burnin.launch.pack import MOST_BYTES
from gpu_burnin.system.quantities import size
from tests.unit.launch.examples import REQUEST, pod_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations/launch.md").read_text()
TRAIN, LAUNCH = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


TORCH = """
class cuda:
    set_device = staticmethod(lambda number: None)
class tensor:
    def __init__(self, value, device):
        self.item = lambda: value
"""
DISTRIBUTED = """
import os
class ReduceOp:
    MAX = None
init_process_group = all_reduce = barrier = lambda *args, **of: None
def get_rank():
    return int(os.environ["RANK"])
"""


@pytest.fixture
def store() -> Iterator[tuple[str, dict[str, bytes]]]:
    """What takes PUT and gives it back, and what it has."""
    kept: dict[str, bytes] = {}

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in kept else 404)
            self.end_headers()
            self.wfile.write(kept.get(self.path, b""))

        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", kept
        server.shutdown()


def test_the_training_saves_when_it_is_asked_and_goes_on_from_there(
    tmp_path: Path, store: tuple[str, dict[str, bytes]]
) -> None:
    url, kept = store
    path = "/vision/first/step"
    assert "http://store.example" in TRAIN
    script = TRAIN.replace("http://store.example", url)
    (tmp_path / "lib/torch").mkdir(parents=True)
    (tmp_path / "lib/torch/__init__.py").write_text(TORCH)
    (tmp_path / "lib/torch/distributed.py").write_text(DISTRIBUTED)
    lib = str(tmp_path / "lib")
    leave = json.dumps({"since": "", "deadline": "", "why": "a fault"})
    code, log = pod_of(tmp_path / "first", script, leave=leave).run(PYTHONPATH=lib)
    assert (code, kept[path]) == (42, b"20") and "[0] saved at step 20" in log
    kept[path] = b"999"
    assert pod_of(tmp_path / "second", script).run(PYTHONPATH=lib)[0] == 0


def test_the_function_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "launching.py"
    path.write_text(LAUNCH)
    spec = importlib.util.spec_from_file_location("launching", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "train(*_args, **_kwargs)" in script_of(module.train, [1000])


@pytest.mark.parametrize(
    "figure",
    [
        f"takes {size(MOST_BYTES)} of it",
        f"by itself {KEPT_S // 86400} days after",
        f"within {LEAST_RUN_S} seconds and unasked",
        f"against `--restarts` ({REQUEST.restarts})",
    ],
)
def test_figures_are_those_of_the_code(figure: str) -> None:
    assert figure in PAGE
