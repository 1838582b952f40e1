"""`make dist` and the verification of what it has built."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import debian
from .chart.archive import build_chart
from .deb import build_deb
from .error import DistError
from .image import build_image
from .python import build_collection, build_wheel_and_sdist, build_wheelhouse
from .sbom import Artefact, bill
from .source import Source, export
from .sums import SUMS, sign, verify, write_sums

CHECKOUT = Path(__file__).resolve().parents[2]
# Of Debian 12 and Ubuntu 24.04, as the roles' defaults.
PYTHONS = ("3.11", "3.12")
LOCKS = {"none": "node.txt", "12": "node-cuda12.txt", "13": "node-cuda13.txt"}


def build(checkout: Path, commit: str, output: Path, cudas: Sequence[str], key: Path | None) -> Source:
    """Build a release of a commit in `output`, whole or not at all. Raises DistError, OSError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".dist-", dir=output.parent) as scratch:
        tree, made, apt = (Path(scratch, name) for name in ("source", "made", "apt"))
        for folder in (tree, made, apt):
            folder.mkdir()
        source = export(checkout, commit, tree)
        build_all(source, made, apt, cudas)
        write_sums(made)
        if key is not None:
            sign(made, key)
        if output.exists():
            shutil.rmtree(output)
        made.rename(output)
        output.chmod(0o755)
    return source


def build_all(source: Source, made: Path, apt: Path, cudas: Sequence[str]) -> None:
    """Build each file of a release in the folder `made`."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    say(f"Muster {source.version}, commit {source.commit[:12]}: wheel, sdist, collection, chart")
    artefacts = [Artefact(path) for path in build_wheel_and_sdist(source, made)]
    artefacts += [Artefact(build_collection(source, made)), Artefact(build_chart(source, made))]
    admitter = build_wheelhouse(source, ["admitter.txt"], PYTHONS, made / "wheelhouse-admitter")
    artefacts.append(Artefact(admitter, (admitter,)))
    debs = debian.fetch(python, apt)
    for cuda in cudas:
        end = "" if cuda == "none" else f"-cuda{cuda}"
        say(f"CUDA {cuda}: wheelhouse, .deb, image")
        wheels = build_wheelhouse(source, [LOCKS[cuda]], PYTHONS, made / f"wheelhouse{end or '-node'}")
        artefacts.append(Artefact(wheels, (wheels,)))
        artefacts.append(Artefact(build_deb(source, wheels, cuda, PYTHONS, made), (wheels,)))
        tag = f"{source.version}{end}"
        image = made / f"muster-{tag}-image.tar"
        kept = build_image(source, debs, [wheels, admitter], python, tag, image)
        artefacts.append(Artefact(image, (wheels, admitter), tuple(kept)))
    text = json.dumps(bill(source, made, artefacts), indent=1) + "\n"
    (made / f"muster-{source.version}.cdx.json").write_text(text)


def say(line: str) -> None:
    """Progress goes to standard error."""
    print(f"dist: {line}", file=sys.stderr, flush=True)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description=__doc__)
    jobs = parser.add_subparsers(dest="job", required=True)
    made = jobs.add_parser("build", help="build a release of a commit")
    made.add_argument("--commit", default="HEAD", help="what is not committed is not in it")
    made.add_argument("--output", type=Path, default=CHECKOUT / "build/dist", help="folder, which is replaced")
    made.add_argument("--cuda", action="append", choices=LOCKS, help="only these CUDA versions; may be repeated")
    made.add_argument("--key", type=Path, help="SSH key that signs SHA256SUMS; a public one is looked for in the agent")
    checked = jobs.add_parser("verify", help="compare a release with what was signed")
    checked.add_argument("directory", type=Path)
    checked.add_argument("--signers", type=Path, required=True, help="allowed_signers file (ssh-keygen(1))")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 1 when files are not what was signed, 2 when a release cannot be built."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.job == "verify":
            print(f"{verify(options.directory, options.signers)} files are as they were signed")
            return 0
        build(CHECKOUT, options.commit, options.output.absolute(), options.cuda or list(LOCKS), options.key)
    except DistError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1 if options.job == "verify" else 2
    except OSError as error:
        print(f"dist: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 2
    if options.key is None:
        say(f"{SUMS} is not signed: give KEY=, the SSH key of the releaser")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
