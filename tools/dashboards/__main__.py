"""Write the dashboards into the role fleet_monitoring. With --check nothing is written; it fails and names every file
that is not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.dashboards.grafana import to_json
from tools.dashboards.pages import PAGES

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "roles" / "fleet_monitoring" / "files" / "dashboards"


def main(arguments: list[str]) -> int:
    """Write or check; 1 when a file is not as it should be, or does not belong there."""
    wanted = {FOLDER / f"{page.uid}.json": to_json(page) for page in PAGES}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    strange = sorted(set(FOLDER.glob("*")) - set(wanted))
    if "--check" in arguments:
        for path in stale + strange:
            print(f"{path.relative_to(REPOSITORY)} is not up to date: run `make docs`", file=sys.stderr)
        return 1 if stale or strange else 0
    FOLDER.mkdir(exist_ok=True)
    for path in strange:
        path.unlink()
        print(f"removed {path.relative_to(REPOSITORY)}")
    for path in stale:
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
