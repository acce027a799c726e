"""What the package says of itself, as a registry reads it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import driftrate

ROOT = Path(__file__).parent.parent.parent
HOME = "https://github.com/driftrate/driftrate"
RAW = "https://raw.githubusercontent.com/driftrate/driftrate"
LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.fixture(scope="module")
def metadata(wheel):
    with ZipFile(wheel) as opened:
        (name,) = (one for one in opened.namelist() if one.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


def test_it_renders_and_is_whole(wheel, sdist):
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_its_addresses_are_of_one_repository(metadata):
    urls = dict(one.split(", ") for one in metadata.get_all("Project-URL"))
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"}
    documentation = urls.pop("Documentation")
    assert documentation == "https://driftrate.github.io/driftrate/"
    assert all(one.startswith(HOME) for one in urls.values())


def test_the_version_is_the_citations(metadata):
    assert metadata["Version"] == driftrate.__version__
    assert f"\nversion: {driftrate.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_extra_of_the_project_is_offered(metadata):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])


def test_the_readme_points_to_its_own_version_where_no_files_lie_beside_it(metadata):
    """An index shows it alone: a relative link or picture would lead nowhere."""
    shown = LINK.findall(metadata.get_payload(decode=True).decode())
    written = LINK.findall((ROOT / "README.md").read_text())
    inside = [one for one in written if not one.startswith(("https://", "#"))]
    assert inside
    version = driftrate.__version__
    for one, there in zip(written, shown, strict=True):
        if one in inside:
            kind = f"{RAW}/v{version}" if one.endswith(".png") else f"{HOME}/blob/v{version}"
            assert there == f"{kind}/{one}"
            assert (ROOT / one.partition("#")[0]).exists(), one
        else:
            assert there == one
