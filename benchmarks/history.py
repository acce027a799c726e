"""The history of quick figures, one file a commit: so that a slower or worse commit is seen.

    python benchmarks/history.py              # measure the commit that is imported: two minutes
    python benchmarks/history.py --compare    # exit 1 if the newest is worse than one before it
    python benchmarks/history.py --draw       # docs/history.md anew, from what was measured

Files lie in benchmarks/history, named by the day and the hash of the commit; with --folder FOLDER
they lie there, and the page beside them. To measure an older commit, give its src:
PYTHONPATH=elsewhere/src python benchmarks/history.py. A loss that is meant is accepted by
"accepted": "why", written by hand into the figure of the commit that brought it: the figure is
compared with what is measured from there on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is there: speed of one core

from history_compare import Entry, read, worse
from history_page import page

import driftrate
from driftrate._html import write_whole

HERE = Path(__file__).parent
FOLDER, PAGE = HERE / "history", HERE.parent / "docs" / "history.md"


def git(*words: str) -> str:
    """Ask git about the repository of the code that is imported."""
    call = ["git", "-C", str(Path(driftrate.__file__).parent), *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, Any]:
    """Return what speeds depend on; no names, no paths."""
    cpu = platform.processor() or platform.machine()
    known = Path("/proc/cpuinfo")
    if known.exists():
        lines = (line.partition(":") for line in known.read_text().splitlines())
        cpu = next((value.strip() for key, _, value in lines if key.strip() == "model name"), cpu)
    packages = {name: version(name) for name in ("numpy", "torch")}
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **packages,
    }


def measure(folder: Path) -> Path:
    """Measure the commit that is imported and write its file."""
    from history_measures import imported, measures

    if git("status", "--porcelain", "."):
        sys.exit("history: the library differs from its commit: commit it first")
    commit, committed = git("rev-parse", "--short=10", "HEAD"), git("log", "-1", "--format=%cI")
    found = []
    for one in (*measures(), imported()):
        print(f"{one.value:8.3f} ± {one.error:.3f}  {one.name}, over {one.over}", flush=True)
        found.append(one._asdict())
    written = folder / f"{committed[:10]}-{commit}.json"
    told = {
        "commit": commit,
        "committed": committed,
        "version": driftrate.__version__,
        "machine": machine(),
        "measures": found,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(written, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return written


def compare(entries: list[Entry]) -> int:
    """Say where the newest commit is worse than those before; return the exit code."""
    if len(entries) < 2:
        print("nothing to compare with")
        return 0
    complaints = worse(entries)
    print("\n".join(complaints) or f"{entries[-1].commit} is not worse than those before")
    return 1 if complaints else 0


def main() -> int:
    """Measure, compare or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    told = parser.parse_args()
    if told.compare:
        return compare(read(told.folder))
    if not told.draw:
        print(measure(told.folder))
    kept = PAGE if told.folder == FOLDER else told.folder / PAGE.name
    write_whole(kept, page(read(told.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
