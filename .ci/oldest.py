"""Print, as pip's constraints, the lowest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

# Only the newest CPU build of torch is in the registries that the tests install from.
PINNED = {"torch": "2.13.0"}
OTHERS = ("dev", "loops")  # extras that the tests need, not the library


def floors() -> dict[str, str]:
    """Return the lowest version of every package that the library itself needs."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(w for e in extras if e not in OTHERS for w in extras[e])]
    found = (re.fullmatch(r"([\w-]+)>=([\d.]+)", one) for one in wanted)
    return {one[1]: PINNED.get(one[1], one[2]) for one in found if one}


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in sorted(floors().items())))
