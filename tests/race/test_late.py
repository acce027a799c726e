"""Labels that arrive late: every method waits for them, as a literal queue of rows does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from driftrate.errors import ConfigError
from driftrate.race import Cell, Race, Reading, contestants, play, resolve
from driftrate.race.contestants import Setup
from driftrate.race.late import Waiting
from driftrate.race.models import errors, losses
from driftrate.race.run import race

BATCH = 8
SPEC = "synthetic:walk,dim=3,steps=60,noise=0.5,size=0.1"
SPECS = {"linear": SPEC, "logistic": f"{SPEC},loss=logistic"}
LINEAR = [name for name, one in contestants().items() if "linear" in one.models]
NETWORKS = [name for name, one in contestants().items() if "mlp" in one.models]


def entrant(name):
    found = contestants()[name]
    if found.available() is not None:
        pytest.skip(f"{name} {found.available()}")
    return found


def make(method, delay, model="linear", seed=0):
    spec = SPECS.get(model, SPEC)
    how = {"model": model, "batch": BATCH, "delay": delay, "hidden": None}
    how |= {"hidden": "4"} if model == "mlp" else {}
    return Cell(spec, method, "default", seed, spec, **how)


class Queue:
    """The slow twin's: one row after the other, each label with the row at which it arrives."""

    def __init__(self, delay):
        self.delay, self.seen, self.rows, self.ready = delay, 0, [], []

    def predicted(self, x, y):
        for row in zip(x, y, strict=True):
            self.rows.append((self.seen + self.delay, *row))
            while self.rows and self.rows[0][0] <= self.seen:
                _, a, b = self.rows.pop(0)
                self.ready.append((a, b))
            self.seen += 1

    def batch(self):
        """Return the first batch that is whole, if any."""
        if len(self.ready) < BATCH:
            return None
        now, self.ready = self.ready[:BATCH], self.ready[BATCH:]
        x, y = zip(*now, strict=True)
        return np.stack(x), np.array(y)


def twin(cell):
    """Return the loss, error and regret of every step."""
    source = resolve(cell.stream, cell)
    setup = Setup(source.make_model(), source.batch, source.steps, cell.seed)
    player, queue, found = contestants()[cell.method].make("default", setup), Queue(cell.delay), []
    network = cell.model == "mlp"
    for batch in source.batches(cell.seed):
        x, y = batch.x, batch.y
        if network:
            import torch

            x = torch.from_numpy(x).float()
            scores = player.scores(x)[:, 0].numpy().astype(float)
            x, y = x.numpy(), y.astype(np.float32)
        else:
            scores = player.forecast(x)
        task = source.task
        excess = losses(task, scores, batch.expected) - losses(task, batch.oracle, batch.expected)
        loss, error = (one(task, scores, batch.y).mean() for one in (losses, errors))
        found.append((loss, error, excess.mean()))
        queue.predicted(x, y)
        while (whole := queue.batch()) is not None:
            if network:
                player.learn(*map(torch.from_numpy, whole))
            else:
                player.step(*whole)
    return np.array(found)


# No batch, a part of one, one, one and a part, many, and more than there are.
DELAYS = (0, 1, BATCH, BATCH + 1, 10 * BATCH - 3, 10**6)


@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("method", ["HedgedFilter", "HedgedSGD", "nlms", "kalman forgetting"])
def test_a_queue_of_rows_does_the_same(method, delay, model):
    cell = make(method, delay, model)
    check(play(cell), twin(cell), 1e-9)


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("method", ["adam", "schedule-free adamw", "Hedged"])
def test_networks_wait_as_well(method, delay):
    entrant(method)
    cell = make(method, delay, "mlp")
    check(play(cell), twin(cell), 1e-4)


def check(result, steps, tolerance):
    assert result["status"] == "ok", result["message"]
    count = np.arange(1, 61)
    loss, error, regret = np.cumsum(steps, axis=0).T
    near = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(result["loss_curve"], loss / count, **near)
    np.testing.assert_allclose(result["regret_curve"], regret, **near)
    squared = result["error"] ** 2 if result["error"] != error[-1] / 60 else result["error"]
    assert pytest.approx(error[-1] / 60, rel=10 * tolerance) in (squared, result["error"])


@pytest.mark.parametrize("name", LINEAR)
def test_a_forecast_is_what_a_step_returns_and_learns_nothing(name):
    contestant = entrant(name)
    models = [model for model in SPECS if model in contestant.models]
    for model in models:
        source = resolve(SPECS[model], Reading(model=model, batch=BATCH))
        made = (contestant.make("default", Setup(source.make_model(), BATCH, 60, 0)) for _ in "12")
        one, other = made
        for count, batch in enumerate(source.batches(0)):
            forecast = one.forecast(batch.x)
            assert forecast.shape == (BATCH,)
            one.forecast(2.0 * batch.x)  # of other rows, which must not matter either
            scores = one.step(batch.x, batch.y)
            # torch's methods hold float32, whose rounding differs from product to product.
            np.testing.assert_allclose(forecast, scores, rtol=1e-6, atol=1e-7)
            # Schedule-free weights go to and fro between two places, in single precision.
            np.testing.assert_allclose(other.step(batch.x, batch.y), scores, rtol=1e-5, atol=1e-7)
            if count == 15:
                break


@pytest.mark.parametrize("name", NETWORKS)
def test_each_network_waits(name):
    """Nothing is learned before the first label is there: until then scores are the first ones."""
    entrant(name)
    late, never = (play(make(name, delay, "mlp")) for delay in (20 * BATCH, 10**6))
    assert late["status"] == never["status"] == "ok", late["message"]
    assert late["loss_curve"][:20] == never["loss_curve"][:20]
    # Forty steps do not move what starts from next to nothing.
    assert (late["loss_curve"][-1] != never["loss_curve"][-1]) == (name != "trac")


@pytest.mark.parametrize("name", LINEAR)
def test_each_linear_method_waits(name):
    entrant(name)
    late, never = (play(make(name, delay)) for delay in (20 * BATCH, 10**6))
    assert late["status"] == never["status"] == "ok", late["message"]
    assert late["loss_curve"][:20] == never["loss_curve"][:20]
    assert late["loss_curve"][-1] != never["loss_curve"][-1]


@pytest.mark.parametrize("scale", ["plain", "robust"])
def test_the_scale_of_targets_knows_no_label_that_has_not_arrived(scale, tmp_path):
    """The labels after a jump do not move the scale by which the next ones are measured."""
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, 40 * BATCH))
    path = tmp_path / "jump.csv"

    def targets(jump, delay):
        y = noise + np.where(np.arange(40 * BATCH) >= 20 * BATCH, jump, 0.0)
        path.write_text("a,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x, y, strict=True)))
        reading = Reading(target="y", batch=BATCH, delay=delay, scale=scale)
        return np.array([batch.y for batch in resolve(str(path), reading).batches()])

    for delay, steps in ((0, 1), (3 * BATCH, 4), (3 * BATCH + 1, 5)):
        low, high = (targets(jump, delay) for jump in (1.0, 1.1))
        # The first batch is not played. On one scale all rows of a batch differ by the same.
        gaps = np.ptp(high - low, axis=1) > 1e-9
        first = 19 + steps
        assert not gaps[:first].any()
        assert gaps[first:].all()


def test_waiting_costs_on_a_target_that_walks():
    regrets = [play(make("HedgedSGD", delay))["regret"] for delay in (0, 40, 160)]
    assert regrets == sorted(regrets)
    assert regrets[2] > 1.5 * regrets[0]


def test_a_delay_is_part_of_a_cell():
    assert make("adam", 0).key() != make("adam", 1).key()
    assert replace(make("adam", 1), delay=0) == make("adam", 0)


def test_rounds_up_to_whole_batches():
    assert [Waiting(delay, 16).steps for delay in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("delay", [-1, 1.5, True])
def test_refuses_what_is_no_delay(delay):
    with pytest.raises(ConfigError, match="delay must be an integer >= 0"):
        Race([SPEC], delay=delay)


def test_the_page_tells_the_delay(tmp_path):
    settings = Race([SPEC], methods=["HedgedSGD"], grid=False, jobs=1, delay=24)
    race(settings, tmp_path, show=False)
    assert "labels 24 rows late" in (tmp_path / "index.html").read_text()
