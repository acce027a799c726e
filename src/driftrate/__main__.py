"""`python -m driftrate` and `driftrate`: the command line."""

from __future__ import annotations

import sys

from driftrate._version import __version__


def main() -> None:
    """Run the command line, or tell the version, which needs no extra."""
    if sys.argv[1:] == ["--version"]:
        print(f"driftrate {__version__}")
        return
    from driftrate.cli import app

    app(prog_name="driftrate")


if __name__ == "__main__":
    main()
