"""The generated pages name every role and every reason code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]


def test_pages_hold_every_code_and_variable(tmp_path: Path) -> None:
    """In a copy: the pages of the checkout are there or not, as `make docs` left them."""
    (tmp_path / "roles").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "gpu_burnin").mkdir()
    (tmp_path / "tools/docs.py").write_text((ROOT / "tools/docs.py").read_text())
    (tmp_path / "gpu_burnin/hardware").symlink_to(ROOT / "gpu_burnin/hardware")
    specs = sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
    for spec in specs:
        copy = tmp_path / spec.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        copy.write_text(spec.read_text())

    def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "tools/docs.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    missing = docs("--check")
    assert missing.returncode == 1
    assert "docs/reference/reasons.md is not up to date: run `make docs`" in missing.stderr
    assert docs().returncode == 0
    assert docs("--check").returncode == 0
    reasons = yaml.safe_load((ROOT / "gpu_burnin/hardware/reasons.yaml").read_text())
    page = (tmp_path / "docs/reference/reasons.md").read_text()
    assert all(f"| `{code}` |" in page for code in reasons)
    for spec in specs:
        text = (tmp_path / spec.parents[1].relative_to(ROOT) / "README.md").read_text()
        entries = yaml.safe_load(spec.read_text())["argument_specs"].values()
        assert all(f"| `{name}` |" in text for entry in entries for name in entry.get("options") or {}), spec
