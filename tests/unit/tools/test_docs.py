"""The generated pages name every role and every reason code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools import docs

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("roles/gpu_burnin/defaults/main.yml", "roles/gpu_burnin/vars/main.yml")


@pytest.mark.slow
def test_pages_hold_every_code_and_variable(tmp_path: Path) -> None:
    """In a copy: the pages of the checkout are there or not, as `make docs` left them."""
    (tmp_path / "roles").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "gpu_burnin").mkdir()
    (tmp_path / "tools/docs.py").write_text((ROOT / "tools/docs.py").read_text())
    (tmp_path / "gpu_burnin/hardware").symlink_to(ROOT / "gpu_burnin/hardware")
    (tmp_path / "collections").symlink_to(ROOT / "collections")
    specs = sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
    for spec in specs:
        copy = tmp_path / spec.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        copy.write_text(spec.read_text())
    (tmp_path / "docs/reference").mkdir(parents=True)
    commands = "tests/unit/cli/runbook_commands.yml"
    for name in ("docs/reference/configuration.md", "docs/reference/expectations.md", commands, *PARTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())

    def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tools.docs", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    missing = docs("--check")
    assert missing.returncode == 1
    assert "docs/reference/reasons.md is not up to date: run `make docs`" in missing.stderr
    assert docs().returncode == 0
    assert docs("--check").returncode == 0
    nothing = yaml.safe_load((ROOT / commands).read_text())["nothing"]
    untested = (tmp_path / "docs/reference/untested-commands.md").read_text()
    assert [shape for untested in nothing.values() for shape in untested["commands"]] == re.findall(
        r"^- `(.*)`$", untested, re.MULTILINE
    )
    reasons = yaml.safe_load((ROOT / "gpu_burnin/hardware/reasons.yaml").read_text())
    page = (tmp_path / "docs/reference/reasons.md").read_text()
    assert all(f"| `{code}` |" in page for code in reasons)
    roles = (tmp_path / "docs/reference/roles.md").read_text()
    for spec in specs:
        assert f"| [{spec.parents[1].name}](../../roles/{spec.parents[1].name}/README.md) |" in roles
        text = (tmp_path / spec.parents[1].relative_to(ROOT) / "README.md").read_text()
        entries = yaml.safe_load(spec.read_text())["argument_specs"].values()
        assert all(f"| `{name}` |" in text for entry in entries for name in entry.get("options") or {}), spec
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows), f"{spec}: a default splits its cell"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("set C(x_y) to V(true\\)), see O(level=quick)", "set `x_y` to `true)`, see `level=quick`"),
        ("I(not) B(ever), E(HOME), RV(report)", "*not* **ever**, `HOME`, `report`"),
        ("O(muster.fleet.burnin#module:level) of M(muster.fleet.burnin)", "`level` of `muster.fleet.burnin`"),
        ("P(muster.fleet.addresses#filter), R(the guide,guide)", "`muster.fleet.addresses`, the guide"),
        ("U(https://a.example/b) and L(etcd, https://etcd.io)", "<https://a.example/b> and [etcd](https://etcd.io)"),
        ("a function MAC(x) and PCI(y) are no markup", "a function MAC(x) and PCI(y) are no markup"),
    ],
)
def test_markup_of_ansible_becomes_markdown(text: str, expected: str) -> None:
    assert docs.markdown(text) == expected


def test_a_page_renders_markup_and_lists_suboptions() -> None:
    inner = {"options": {"gpus": {"type": "int", "description": "How many, see C(nvidia-smi)."}}}
    options = {"demo_expect": {"type": "dict", "description": ["Like O(demo_level)."], **inner}}
    options["demo_list"] = {"type": "list", "elements": "dict", **inner}
    page = docs.role_page("demo", {"main": {"short_description": "Uses V(a)", "options": options}})
    assert "\nUses `a`\n" in page
    assert "| `demo_expect` | dict |  | Like `demo_level`. |" in page
    assert "| `demo_expect.gpus` | int |  | How many, see `nvidia-smi`. |" in page
    assert "| `demo_list[].gpus` | int |" in page


def raw_markup(page: str) -> list[str]:
    """Ansible's markup that a page still shows as such, code included; calls such as `MAC(x)` are none."""
    return re.findall(r"(?<![\w.])(?:[CVOMPBILUER]|RV|HORIZONTALLINE)\([^)\n]*\)?", page)


def test_raw_markup_is_seen() -> None:
    assert raw_markup("see `C(a b)`, V(x\\) and MAC(y) of obj.C(z)") == ["C(a b)", "V(x\\)"]


def test_no_generated_page_shows_markup() -> None:
    # In a process of its own: in this one Ansible's loader may stand between the generator and the collection.
    program = "import json; from tools import docs; print(json.dumps({str(path): text for path, text in docs.pages()}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = {path: text for name, text in json.loads(done.stdout).items() if (path := Path(name)).suffix == ".md"}
    assert {"reasons.md", "roles.md", "configuration.md", "expectations.md"} <= {path.name for path in pages}
    assert len(pages) > 20
    assert {str(path): found for path, text in pages.items() if (found := raw_markup(text))} == {}
