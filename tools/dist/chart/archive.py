"""The chart of a release: made by the commit's own code, and packed to the same bytes each time."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ..archives import compress, write_tree
from ..source import Source, run

NAME = "muster"


def build_chart(source: Source, output: Path) -> Path:
    """Write muster-VERSION.tgz into `output`, as `helm package` names it. Raises DistError, OSError."""
    with tempfile.TemporaryDirectory(prefix=".chart-", dir=output) as scratch:
        tree, plain = Path(scratch, "tree"), Path(scratch, "chart.tar")
        tree.mkdir()
        # Nothing of the checkout beside the commit may get into it.
        env = os.environ | {"PYTHONPATH": str(source.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        run([sys.executable, "-m", "tools.dist.chart", tree], "chart", env=env, cwd=source.tree)
        for path in tree.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with plain.open("wb") as out:
            write_tree(tree, out, source.epoch_s)
        archive = output / f"{NAME}-{source.version}.tgz"
        compress(plain, archive)
    return archive
