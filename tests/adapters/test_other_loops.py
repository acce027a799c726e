"""The loops of Lightning, Accelerate and Transformers, with a rate attached and with `Pursuit`.

Each is a process of its own: the rate changes, the framework's own logger has it, and a run that
goes on from the framework's own checkpoint is an uninterrupted one, bit by bit.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import gloo_ranks
import pytest
import torch

HERE = Path(__file__).parent
CHILDREN = {"lightning": "module_child.py", "accelerate": "prepared_child.py"}
CHILDREN |= {"transformers": "trainer_child.py"}
LOOPS = {"lightning": ("lightning", 1), "lightning on two ranks": ("lightning", 2)}
LOOPS |= {"accelerate": ("accelerate", 1), "transformers": ("transformers", 1)}

pytestmark = pytest.mark.slow
SECONDS = 10  # of the processor, for a loop on one thread, without what it imports
EACH = pytest.mark.parametrize("name", LOOPS)
WHAT = pytest.mark.parametrize("what", ["attach", "pursuit"])


def play(folder, package, what, part, ranks):
    """Run a child and whatever it starts, which end with it."""
    command = [sys.executable, str(HERE / CHILDREN[package]), str(folder), what, part, str(ranks)]
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": gloo_ranks.LOOPBACK}
    with (folder / f"{what}-{part}.txt").open("w+") as said:
        one = subprocess.Popen(
            command,
            env={**os.environ, **quiet},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = one.wait(180)
        finally:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
        said.seek(0)
        assert code == 0, said.read()[-3000:]
    return [torch.load(folder / f"{what}-{part}-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return what the whole run of a loop and the resumed one left, rank by rank."""

    @cache
    def both(name, what):
        package, ranks = LOOPS[name]
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install -e '.[loops]'")
        folder = tmp_path_factory.mktemp("loop")
        return [play(folder, package, what, part, ranks) for part in ("whole", "rest")]

    return both


@EACH
@WHAT
def test_the_rate_moves_and_is_logged(played, name, what):
    whole, _ = played(name, what)
    rates, logged = torch.tensor(whole[0]["rates"]), torch.tensor(whole[0]["logged"])
    assert len(rates) == len(logged)
    assert len(rates.unique()) > len(rates) / 2
    assert rates.max() > 1.1 * rates.min() > 0
    # Lightning's monitor looks before each step: it shows the rate of the step before.
    late = torch.equal(logged[1:], rates[:-1])
    assert late or torch.equal(logged, rates)
    assert what == "attach" or not late


@EACH
@WHAT
def test_a_loop_takes_seconds(played, name, what):
    assert max(one["seconds"] for part in played(name, what) for one in part) < SECONDS


@EACH
@WHAT
def test_a_resumed_run_is_an_uninterrupted_one(played, name, what):
    whole, rest = played(name, what)
    for one, other in zip(whole, rest, strict=True):
        assert len(one["rates"]) == 2 * len(other["rates"])
        assert one["rates"][len(other["rates"]) :] == other["rates"]
        assert one["weights"].keys() == other["weights"].keys()
        for key, weight in one["weights"].items():
            assert torch.equal(weight, other["weights"][key]), key


@WHAT
def test_ranks_agree_and_train_as_one_process(played, what):
    """Gradients are averaged over the ranks before they are measured."""
    first, second = played("lightning on two ranks", what)[0]
    assert first["rates"] == second["rates"]
    for key, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][key])
    alone = played("lightning", what)[0][0]
    assert first["rates"][:20] == pytest.approx(alone["rates"][:20], rel=1e-3)


def test_ranks_are_parts_of_a_batch(played):
    """DDP sums in another order in its first step, so that a resumed run is near, and no more."""
    whole, rest = played("lightning on two ranks", "ranks")
    assert whole[0]["rates"] == whole[1]["rates"]
    rates = torch.tensor(whole[0]["rates"])
    assert rates.max() > 3 * rates.min()
    assert rest[0]["rates"] == pytest.approx(whole[0]["rates"][-len(rest[0]["rates"]) :], rel=1e-6)
    for key, weight in whole[0]["weights"].items():
        torch.testing.assert_close(weight, rest[0]["weights"][key])
