"""One version: of the package, the collection and the change logs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.doc_fragments import program
from packaging.version import Version

from gpu_burnin import __version__
from tools import collection

ROOT = Path(__file__).resolve().parents[3]
FLEET = ROOT / "collections/ansible_collections/muster/fleet"


def headings(page: Path) -> list[str]:
    """The versions that a change log has headings for, newest first; what is not released yet has none."""
    found = re.findall(r"^## \[?([^\]\s]+)", page.read_text(), re.MULTILINE)
    return [version for version in found if version != "Unreleased"]


def test_collection_and_change_logs_name_the_version_of_the_package() -> None:
    assert yaml.safe_load((FLEET / "galaxy.yml").read_text())["version"] == __version__
    for page in (ROOT / "CHANGELOG.md", FLEET / "CHANGELOG.md"):
        versions = headings(page)
        assert versions[0] == __version__, page
        assert versions == sorted(set(versions), key=Version, reverse=True), page
    archives = re.findall(r"muster-fleet-(\S+)\.tar\.gz", (FLEET / "README.md").read_text())
    assert archives and set(archives) == {__version__}


def test_each_released_version_has_its_date() -> None:
    lines = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    undated = [line for line in lines if not re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line)]
    assert undated in ([], ["## [Unreleased]"])


def added_in(document: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    """(name, version_added) of a plugin and each of its options that has one."""
    found = [(name, document["version_added"])] if "version_added" in document else []
    options = (document.get("options") or {}) | (document.get("suboptions") or {})
    return found + [pair for key, option in options.items() for pair in added_in(option, f"{name}.{key}")]


def test_plugins_name_versions_of_the_change_log() -> None:
    versions = headings(FLEET / "CHANGELOG.md")
    documents = {"program": yaml.safe_load(program.ModuleDocFragment.DOCUMENTATION)}
    for kind in ("modules", "filter"):
        for path in (FLEET / "plugins" / kind).glob("*.py"):
            (text,) = re.findall(r'^DOCUMENTATION = r"""\n(.*?)"""', path.read_text(), re.MULTILINE | re.DOTALL)
            documents[path.stem] = yaml.safe_load(text)
            assert "version_added" in documents[path.stem], path
    for name, document in documents.items():
        for where, version in added_in(document, name):
            assert version in versions, where
            # What came later than its plugin says so; what came with it need not.
            assert Version(version) >= Version(document.get("version_added", version)), where


@pytest.mark.parametrize(
    ("remote", "written"),
    [
        ("https://git.example.com/a/muster.git", "https://git.example.com/a/muster.git"),
        ("https://me:secret@git.example.com:8443/a/muster.git", "https://git.example.com:8443/a/muster.git"),
        ("https://secret@git.example.com/a?token=secret", "https://git.example.com/a"),
        ("git@git.example.com:a/muster.git", "ssh://git@git.example.com/a/muster.git"),
        ("ssh://git:secret@git.example.com/a.git", "ssh://git@git.example.com/a.git"),
        ("/srv/muster.git", ""),
        ("file:///srv/muster.git", ""),
        (None, ""),
    ],
)
def test_the_archive_names_the_repository_of_its_checkout(remote: str | None, written: str, tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    if remote is not None:
        subprocess.run([*git, "remote", "add", "origin", remote], check=True)
    assert collection.repository_url(tmp_path) == written
    # A checkout without a repository of its own that lies in another one.
    (tmp_path / "inner").mkdir()
    assert collection.repository_url(tmp_path / "inner") == ""
