"""Sharded models: the same run as in one process, on gloo and the CPU."""

from __future__ import annotations

from functools import cache

import pytest

fsdp = pytest.importorskip("torch.distributed.fsdp")

import gloo_ranks  # noqa: E402

if not hasattr(fsdp, "fully_shard"):
    pytest.skip("fully_shard came with torch 2.6", allow_module_level=True)

import sharded_checks  # noqa: E402
import sharded_resume  # noqa: E402, F401 (it adds checks)
import sharded_uneven  # noqa: E402, F401 (it adds checks)

OTHERS = ["save_of_others", "resume_of_others"]  # one way to spread a model is enough every time
EVERY = [name for name in sharded_checks.CHECKS if name not in OTHERS]
LIMIT = 240  # seconds, for machines that do other things too


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """All checks on two ranks, in one launch: most of it is the start."""
    folder = tmp_path_factory.mktemp("two")
    return folder, gloo_ranks.start("sharded_child.py", folder, 2, *EVERY, limit=LIMIT)


@pytest.mark.parametrize("name", EVERY)
def test_two_ranks(two, name):
    folder, ended = two
    assert (folder / f"{name}.passed").exists(), gloo_ranks.report(ended)


def test_two_ranks_end(two):
    assert [one.code for one in two[1]] == [0, 0], gloo_ranks.report(two[1])


def launched(folder, world, *names):
    (folder / "rendezvous").unlink(missing_ok=True)
    ended = gloo_ranks.start("sharded_child.py", folder, world, *names, limit=LIMIT)
    assert [one.code for one in ended] == [0] * world, gloo_ranks.report(ended)


@pytest.mark.slow
def test_four_ranks(tmp_path):
    launched(tmp_path, 4, *EVERY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return where a number of ranks left checkpoints, from which as many have gone on."""

    @cache
    def by(world):
        folder = tmp_path_factory.mktemp("saved")
        launched(folder, world, "save", "resume", *OTHERS)
        return folder

    return by


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_as_many_ranks_go_on_to_the_bit(saved, world):
    """However the model is spread."""
    saved(world)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (2, 1)])
def test_another_number_of_ranks_goes_on(saved, before, after):
    launched(saved(before), after, "resume", "resume_of_others")
