"""What pages and comments say of the repository agrees with it: paths, the lab's hosts, the inventory's groups."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import KNOWN_GROUPS

ROOT = Path(__file__).parents[3]
SOURCES = (".py", ".yml", ".yaml", ".j2", ".sh", ".cfg", ".toml", ".cu", ".cuh", "Makefile")
# A file with its folder, as comments name it: from the root, or from within its package.
PATH = re.compile(
    r"(?<![\w./:{}<>*~-])((?:[a-z_0-9-]+/)+[a-zA-Z_0-9.-]+\.(?:py|md|yml|yaml|j2|cuh?|json|txt|sh|toml))\b(?![/*{])"
)
COMMENT = re.compile(r"(?:^|\s)#(?!!)(.*)|\{#(.*?)#\}|//(.*)")
# Of other projects, or made by a run.
ELSEWHERE = {
    "testing/python3/dcgm_diag_schema.json",  # DCGM
    "nvvs/diag-skus.yaml",
    "nvvs/plugin_src/diagnostic/compare.cu",
    "doc/PERFORMANCE.md",  # nccl-tests
    "src/common.cu",
    "targets/JOB.json",
}
NUMBERS = {9: "nine", 10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen"}
HOSTS = re.compile(r"(?:site\.yml`? on|\*\*Size\*\*: more than) (\w+) (?:hosts|containers)")


def tracked(*patterns: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@cache
def endings() -> frozenset[str]:
    """Every tracked file by each end of its path."""
    parts = [name.split("/") for name in tracked()]
    return frozenset("/".join(words[start:]) for words in parts for start in range(len(words)))


def remarks(name: str, text: str) -> Iterator[str]:
    """Comments, and docstrings of Python."""
    if not name.endswith(".py"):
        yield from (next(filter(None, found.groups()), "") for found in COMMENT.finditer(text))
        return
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def astray(name: str, text: str) -> list[str]:
    """Paths in remarks that lead nowhere."""

    def unknown(words: str) -> list[str]:
        found = (path for path in PATH.findall(words) if not path.startswith("build/"))
        return [path for path in found if path not in endings() and path not in ELSEWHERE]

    # To find remarks takes longer than to see that nothing in the file is unknown.
    return [path for remark in remarks(name, text) for path in unknown(remark)] if unknown(text) else []


def wrong_counts(text: str) -> list[str]:
    """Counts of the lab's hosts that are not theirs."""
    lab = yaml.safe_load((ROOT / "inventory/lab/hosts.yml").read_text())["all"]["children"]
    hosts = sum(len(group["hosts"]) for group in lab.values())
    return [count for count in HOSTS.findall(" ".join(text.split())) if count not in (NUMBERS.get(hosts), str(hosts))]


def lists_of_groups(text: str) -> list[set[str]]:
    """The groups of each sentence that lists most of them."""
    sentences = re.split(r"[.;:|](?:\s|$)", text)
    found = [set(re.findall(r"`(\w+)`", sentence)) & {*KNOWN_GROUPS} for sentence in sentences]
    return [groups for groups in found if len(groups) > len(KNOWN_GROUPS) / 2]


@pytest.mark.slow
def test_paths_in_comments_and_docstrings_lead_somewhere() -> None:
    texts = {name: (ROOT / name).read_text() for name in tracked() if name.endswith(SOURCES)}
    assert {name: found for name, text in texts.items() if (found := astray(name, text))} == {}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.yaml", "a: 1  # see compute/data_path.py\n", ["compute/data_path.py"]),
        ("a.yaml", "a: gone/x.py\n# see checks/gemm/data_path.py, docs/reference/NAME/x.md, build/x.json\n", []),
        ("a.py", '"""See crd/nodeadmission.yaml."""\n', ["crd/nodeadmission.yaml"]),
        ("a.py", 'a = "gone/x.py"  # of gone/y.py\n', ["gone/y.py"]),
        ("a.j2", "{# Values: fleet/plan/pages.py. #}\n", ["fleet/plan/pages.py"]),
    ],
)
def test_a_path_that_leads_nowhere_is_seen(name: str, text: str, found: list[str]) -> None:
    assert astray(name, text) == found


def test_counts_and_groups_in_pages_are_those_of_the_inventories() -> None:
    texts = {name: (ROOT / name).read_text() for name in tracked("*.md") if name != "CHANGELOG.md"}
    assert {name: found for name, text in texts.items() if (found := wrong_counts(text))} == {}
    assert {name for name, text in texts.items() if HOSTS.search(text)} >= {"README.md", "docs/status.md"}
    listed = {name: found for name, text in texts.items() if (found := lists_of_groups(text))}
    assert "docs/overview.md" in listed
    assert all(groups == {*KNOWN_GROUPS} for found in listed.values() for groups in found), listed


def test_another_count_and_a_group_left_out_are_seen() -> None:
    assert wrong_counts("It runs `site.yml` on eleven\ncontainers.") == ["eleven"]
    assert wrong_counts("It runs site.yml on twelve hosts.") == []
    shown = "The groups are `etcd`, `etcd_events`, `kube_apiserver`, `gpu_nodes`."
    assert lists_of_groups(shown) == [{"etcd", "etcd_events", "kube_apiserver", "gpu_nodes"}]
