"""`python -m driftrate.playground --out FILE`: write the page."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from driftrate._html import write_whole
from driftrate.playground.build import build


def main() -> None:
    """Write the page and say where it is."""
    parser = ArgumentParser(prog="python -m driftrate.playground", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/playground/index.html"), help="the file to write"
    )
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, build())
    print(f"{out} ({out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
