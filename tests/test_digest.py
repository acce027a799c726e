"""The digest of code: it changes with what determines a result, and with nothing else."""

from __future__ import annotations

import pytest

from driftrate._digest import digest

START = ["driftrate.estimate.shift"]  # imports schedules.base, and tells it from annotations


@pytest.mark.parametrize(
    "change",
    [
        lambda text: f"# A comment.\n\n\n{text}",
        lambda text: text.replace('"""', '"""Said better. ', 1),
        lambda text: text.replace("\n\n\n", "\n\n\n\n"),
        lambda text: text + "\nif TYPE_CHECKING:\n    from driftrate.theory import bounds\n",
    ],
    ids=["comment", "docstring", "layout", "types"],
)
@pytest.mark.parametrize("file", ["estimate/shift.py", "schedules/base.py"])
def test_words_layout_and_types_do_not_count(edit, file, change):
    before = digest(START)
    edit(file, change)
    assert digest(START) == before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("estimate/shift.py", True),
        ("schedules/base.py", True),
        ("schedules/_codec.py", True),  # behind schedules/base.py
        ("estimate/noise.py", False),
        ("errors.py", False),
        ("cli.py", False),
    ],
)
def test_code_counts_where_it_is_imported(edit, file, counts):
    before = digest(START)
    edit(file, lambda text: text + "\n_NEW = 1\n")
    assert (digest(START) != before) is counts


def test_what_is_set_aside_does_not_count_nor_lead_on(edit):
    aside = ["driftrate.schedules.base"]
    before = digest(START, aside=aside)
    for file in ("schedules/base.py", "schedules/_codec.py"):
        edit(file, lambda text: text + "\n_NEW = 1\n")
    assert digest(START, aside=aside) == before != digest(START)


def test_versions_of_numpy_and_the_given_packages_count(newer):
    plain, more = digest(START), digest(START, ["torch"])
    newer("torch")
    assert digest(START) == plain
    assert digest(START, ["torch"]) != more
    newer("numpy")
    assert digest(START) != plain
