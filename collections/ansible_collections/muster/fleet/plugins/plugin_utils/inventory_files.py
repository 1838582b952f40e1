"""The files of variables beside an inventory and its plays: which cannot be read, at which line, and why.

Ansible reads them one by one as it needs them. It ends at the first that is wrong, and names neither file nor line of
those under group_vars and host_vars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.parsing.vault import AnsibleVaultError, AnsibleVaultFormatError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.secrets import encrypted
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import origin_of, place_of

FOLDERS = ("group_vars", "host_vars")
SUFFIXES = ("", ".yml", ".yaml", ".json")
VAULT_ERRORS = (AnsibleVaultError, AnsibleVaultFormatError)
VAULT_FIX = "add --ask-vault-pass, or --vault-password-file FILE"

# Words of Ansible's and of PyYAML's message, what they mean to somebody who writes an inventory, and what to do.
MEANINGS = (
    ("Tabs are", "has a tab in it", "indent with spaces"),
    ("template block", "has a value that begins with {{ without quotes", 'write NAME: "{{ ... }}"'),
    ("Colons in", "has a second colon in a value without quotes", "put the value into quotes"),
    ("same quote", "has text behind a value's closing quote, or lacks that quote", "put the whole value into quotes"),
    ("duplicate mapping key", "sets a name that is set above already", "keep one of them"),
    ("apping values", "is indented deeper than the lines it belongs to", "align it with them"),
    ("expected key", "is not indented as the lines it belongs to", "align it with them"),
    ("end of stream", "is the end of the file, and a quote or bracket above is not closed", "close it"),
    ("',' or", "comes inside of a bracket that is not closed, or lacks a comma", "close it, or add the comma"),
    ("expected ':'", "or the one above has no colon after its name", "write NAME: VALUE"),
    ("cannot start any token", "has a value that begins with a sign that YAML keeps to itself", "put it into quotes"),
    ("undefined alias", "has a value that begins with * without quotes", "put it into quotes"),
    ("tag", "has a value that begins with ! and is neither !vault nor !unsafe", "put it into quotes"),
    ("document", "begins a second document", "take the line of --- away"),
)


def unreadable(sources: Iterable[str], basedir: str, loader: Any) -> list[Problem]:
    """A problem for each file that is not YAML, of the inventory's `sources` and of the folder of the plays.

    Of what no password opens it is what every play needs: the file group_vars/all, and the values in it that say how to
    enter a host.
    """
    found: list[Problem] = []
    for file, is_variables in _files(list(sources), basedir, loader):
        try:
            data = _read(file, loader)
        except VAULT_ERRORS as error:
            found += [_vault_problem(error, "the file", place_of(file))] if _is_of_all(file) else []
        except AnsibleError as error:
            found.append(_yaml_problem(error, file))
        else:
            if is_variables and data and not isinstance(data, Mapping):
                found.append(Problem("the file holds no variables", "write each as NAME: VALUE", where=place_of(file)))
            if is_variables and _is_of_all(file):
                found += _locked_values(data, lambda name: name.startswith("ansible_"), set())
    return found


def missing(sources: Iterable[str], *, is_given: bool, has_hosts: bool, needs_hosts: bool) -> str:
    """The sentence for the inventory that does not exist, or was not given to plays that need hosts; else nothing."""
    if not is_given:
        known = _known_inventories(Path("inventory"))
        return f"no inventory was given; add -i inventory/NAME{known}" if needs_hosts and not has_hosts else ""
    for source in sources:
        path = Path(source)
        if "," not in source and not path.exists():
            return f"{place_of(source)} does not exist{_known_inventories(path.parent)}"
    return ""


def locked(
    sources: Iterable[str], basedir: str, loader: Any, is_used: Callable[[str], bool] = lambda name: True
) -> list[Problem]:
    """A problem for each encrypted file, and one for the encrypted values of used variables, that no password opens.

    What cannot be read otherwise is `unreadable`.
    """
    found: list[Problem] = []
    known: set[str] = set()
    for file, _ in _files(list(sources), basedir, loader):
        try:
            found += _locked_values(_read(file, loader), is_used, known)
        except VAULT_ERRORS as error:
            found.append(_vault_problem(error, "the file", place_of(file)))
        except AnsibleError:
            continue
    return found


def files_of(kind: str, sources: Iterable[str], basedir: str) -> dict[str, str]:
    """Each file or folder under group_vars or host_vars, as shown, and the group or host that it is for."""
    paths = [folder / kind for folder in _folders(sources, basedir)]
    return {place_of(str(file)): file.stem for path in paths for file in _visible(path) if file.suffix in SUFFIXES}


def _known_inventories(folder: Path) -> str:
    """The inventories of a folder, as the end of a sentence."""
    folders = sorted({place_of(str(file.parent)) for file in folder.glob("*/hosts*") if file.is_file()})
    return f"; inventories here: {', '.join(folders)}" if folders else ""


def _read(file: str, loader: Any) -> Any:
    """As Ansible's own reading, which then finds the file in the loader's cache."""
    return loader.load_from_file(file, cache="all", unsafe=True, trusted_as_template=True)


def _files(sources: Iterable[str], basedir: str, loader: Any) -> Iterator[tuple[str, bool]]:
    """Each file once, and whether it must hold variables."""
    for source in (Path(source) for source in sources):
        files = _visible(source) if source.is_dir() else [source]
        yield from ((str(file), False) for file in files if file.is_file() and file.suffix in (".yml", ".yaml"))
    for path in (folder / name for folder in _folders(sources, basedir) for name in FOLDERS):
        for entity in dict.fromkeys(file.stem for file in _visible(path)):
            yield from ((file, True) for file in loader.find_vars_files(str(path), entity))


def _folders(sources: Iterable[str], basedir: str) -> list[Path]:
    """The folders that group_vars and host_vars may be in: of the plays, and of each source that is no list."""
    paths = [path for path in (Path(source).absolute() for source in sources) if path.exists()]
    return list(dict.fromkeys([Path(basedir).absolute(), *(path if path.is_dir() else path.parent for path in paths)]))


def _visible(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else []


def _yaml_problem(error: AnsibleError, file: str) -> Problem:
    origin = error.obj
    where = place_of(file, getattr(origin, "line_num", None))
    message = str(error.message).removeprefix("YAML parsing failed: ")
    for words, meaning, fix in MEANINGS:
        if words in message:
            return Problem(f"this line {meaning}", fix, where=where)
    cause = error.__cause__
    if isinstance(cause, (UnicodeError, yaml.reader.ReaderError)):
        return Problem("the file has characters that are no text", "write it in UTF-8", where=where)
    return Problem(f"this line is not YAML that Ansible reads: {message.rstrip('.')}", "correct this line", where=where)


def _is_of_all(file: str) -> bool:
    """Whether the file is of the group of all hosts, which Ansible reads for each play."""
    return bool({"all", "all.yml", "all.yaml", "all.json"} & set(Path(file).parts[-2:]))


def _locked_values(data: Any, is_used: Callable[[str], bool], known: set[str]) -> list[Problem]:
    """The problems of encrypted values that no password opens.

    One value of each vault id says whether its password is there, since each costs a tenth of a second; `known` keeps
    the ids that were tried.
    """
    found: list[Problem] = []
    for name, value in encrypted(data):
        label = value._ciphertext.partition("\n")[0]
        if label in known or not is_used(name):
            continue
        known.add(label)
        try:
            str(value)
        except VAULT_ERRORS as error:
            found.append(_vault_problem(error, name, origin_of(value)))
    return found


def _vault_problem(error: AnsibleError, what: str, where: str) -> Problem:
    if "must be specified" in str(error) or "no vault secrets found" in str(error):
        return Problem(f"{what} is encrypted with Ansible Vault, and no password was given", VAULT_FIX, where=where)
    if "no vault secrets were found that could decrypt" in str(error):
        return Problem(
            f"{what} is encrypted with Ansible Vault, and no password that was given opens it",
            f"give the right one: {VAULT_FIX.removeprefix('add ')}",
            where=where,
        )
    return Problem(
        f"{what} is not what Ansible Vault encrypts ({str(error.message).rstrip('.')})", "encrypt it anew", where=where
    )
