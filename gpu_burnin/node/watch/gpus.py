"""NVML in a thread of its own: readings now and then, events as they come. It may hang there; nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pynvml

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.nvml import Nvml, NvmlUnavailableError
from gpu_burnin.telemetry.nvml_reader import error_name
from gpu_burnin.telemetry.vitals import EventWatch, Vitals, read_vitals


class Gpus:
    """Reads every `poll_s`, at once when asked to, and after each event. What it learns goes to its listeners.

    `library` says which file NVML is, for a pod whose driver comes and goes; `on_stale` is called, and nothing read any
    more, once the kernel has another driver than the library that this process has loaded, which it does for good.
    """

    def __init__(
        self,
        poll_s: float,
        on_vitals: Callable[[Vitals | None, str], None],
        on_xid: Callable[[XidEvent], None],
        library: Callable[[], object] | None = None,
        on_stale: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._poll_s, self._on_vitals, self._on_xid = poll_s, on_vitals, on_xid
        self._library, self._on_stale = library, on_stale
        self._soon = threading.Event()

    def start(self) -> None:
        """Read from now on, until the process ends."""
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def ask(self) -> None:
        """Read as soon as possible."""
        self._soon.set()

    def _run(self) -> None:
        first, worked = self._library() if self._library else None, False
        while True:
            code = 0
            try:
                with Nvml() as nvml:
                    worked = True
                    self._watch(nvml)
            except pynvml.NVMLError as error:
                code = error.value
                self._on_vitals(None, f"NVML failed with {error_name(error.value)}")
            except GpuBurninError as error:
                code = error.code if isinstance(error, NvmlUnavailableError) else 0
                self._on_vitals(None, str(error))
            except Exception as error:
                # Whatever it is, silence would look like health.
                self._on_vitals(None, f"NVML cannot be read ({type(error).__name__}: {error})")
            # A process that has never had another library, and sees none, would find the same after its next start.
            mismatch = code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            if mismatch and self._library is not None and (worked or self._library() != first):
                self._on_stale("the kernel has another driver than the NVML that it has loaded")
                return
            self._soon.wait(self._poll_s)
            self._soon.clear()

    def _watch(self, nvml: Nvml) -> None:
        """Until NVML fails as a whole."""
        events, due_s = EventWatch(nvml.gpu_count()), 0.0
        while True:
            if time.monotonic() >= due_s or self._soon.is_set():
                self._soon.clear()
                self._on_vitals(read_vitals(nvml), events.why)
                due_s = time.monotonic() + self._poll_s
                if events.ended:
                    events = EventWatch(nvml.gpu_count())
            for event in events.wait(max(0.0, due_s - time.monotonic())):
                if event is None:
                    self._soon.set()
                else:
                    self._on_xid(event)
