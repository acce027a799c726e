"""Playing a cell: the numbers, and every way in which it can end."""

import importlib
import json
import time

import numpy as np
import pytest

from driftrate.errors import MissingDependency, SignalError
from driftrate.race import CURVE_POINTS, Cell, Reading, contestants, play, resolve, sources
from driftrate.race.code import code_of
from driftrate.race.contestants import Contestant
from driftrate.race.models import losses

SPEC = "synthetic:walk,dim=3,steps=300,noise=0.5"
module = importlib.import_module("driftrate.race.play")


def make(method="HedgedSGD", spec=SPEC, model="linear", seed=0, fingerprint=None, code=""):
    played = (method, "default", seed, fingerprint or spec, code)
    return Cell(spec, *played, model=model, batch=8)


class Toy:
    """A player that predicts a constant, and does something at the tenth step."""

    def __init__(self, at_ten=lambda scores: scores, value=0.25):
        self.at_ten, self.value, self.count, self.rate = at_ten, value, 0, 0.5

    def step(self, x, y):
        self.count += 1
        scores = np.full(len(y), self.value)
        return self.at_ten(scores) if self.count == 10 else scores


@pytest.fixture
def enter(monkeypatch):
    def enter(**options):
        toy = Contestant("toy", "toy", lambda setup: Toy(**options))
        monkeypatch.setattr(module, "contestants", lambda: {"toy": toy})

    return enter


def test_the_numbers_are_those_of_the_batches(enter):
    enter()
    result = play(make("toy"))
    batches = list(resolve(SPEC, Reading(batch=8)).batches(0))
    scores = np.full(8, 0.25)
    by_step = np.array([losses("regression", scores, b.y).mean() for b in batches])
    squares = np.array([((scores - b.y) ** 2).mean() for b in batches])
    regrets = np.array([0.5 * ((scores - b.oracle) ** 2).mean() for b in batches])
    assert result["status"] == "ok"
    assert result["message"] == ""
    assert result["loss"] == pytest.approx(by_step.mean())
    assert result["error"] == pytest.approx(squares.mean() ** 0.5)
    assert result["regret"] == pytest.approx(regrets.sum())
    places = np.array(result["curve_steps"])
    assert len(places) == CURVE_POINTS
    assert (places[0], places[-1]) == (1, 300)
    run = np.cumsum(by_step) / np.arange(1, 301)
    np.testing.assert_allclose(result["loss_curve"], run[places - 1])
    np.testing.assert_allclose(result["regret_curve"], np.cumsum(regrets)[places - 1])
    assert result["rate_curve"] == [0.5] * CURVE_POINTS
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_stream_without_an_oracle_and_a_method_without_a_rate(tmp_path):
    path = tmp_path / "a.csv"
    rng = np.random.default_rng(0)
    path.write_text("a,y\n" + "".join(f"{v},{int(v > 0)}\n" for v in rng.normal(size=80)))
    reading = Reading(target="y", model="logistic", batch=8)
    found_as = resolve(str(path), reading).fingerprint
    found = Cell(str(path), "kalman forgetting", "default", 0, found_as, **vars(reading))
    result = play(found)
    assert result["status"] == "ok"
    assert result["regret"] is None
    assert result["regret_curve"] == []
    assert result["rate_curve"] == []
    assert len(result["loss_curve"]) == result["steps"] == 9
    path.write_text("a,y\n" + "".join(f"{v},{int(v > 0)}\n" for v in rng.normal(size=80)))
    changed = play(found)
    assert changed["status"] == "not played"
    assert "has changed since the race began" in changed["message"]


def test_a_contestant_that_raises(enter):
    def fall(_):
        raise ArithmeticError("it fell\nover")

    enter(at_ten=fall)
    result = play(make("toy"))
    assert (result["status"], result["message"]) == ("failed", "ArithmeticError: it fell")
    assert (result["loss"], result["steps"]) == (None, 9)
    assert 3 < len(result["loss_curve"]) == len(result["curve_steps"]) <= 9


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OverflowError("math range error"), "diverged"),
        (FloatingPointError("overflow encountered in multiply"), "diverged"),
        (np.linalg.LinAlgError("Array must not contain infs or NaNs"), "diverged"),
        (SignalError("Signal.loss must be a finite number, got inf"), "diverged"),
        (SignalError("Signal.loss must be a finite number >= 0, got -3.0"), "failed"),
        (ValueError("no information in this batch"), "failed"),
        (MemoryError("Unable to allocate 74.5 GiB"), "not played"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not played"),
        (FileNotFoundError(2, "No such file or directory"), "not played"),
        (MissingDependency("this needs nothing"), "not played"),
    ],
)
def test_whose_fault_it_is(enter, error, status):
    def fall(_):
        raise error

    enter(at_ten=fall)
    result = play(make("toy"))
    assert (result["status"], result["loss"], result["steps"]) == (status, None, 9)
    assert result["message"].startswith(type(error).__name__)


@pytest.mark.parametrize(("cap", "model"), [(1.0, "linear"), (3.0, "linear"), (3.0, "mlp")])
def test_a_rate_without_a_sensible_cap_diverges(cap, model):
    pytest.importorskip("torch", reason="it is attached to torch's SGD")
    spec = "synthetic:standstill,dim=40,steps=300"
    setting = f'{{"max_rate":{cap}}}'
    result = play(Cell(spec, "MeasuredRate", setting, 0, spec, model=model, batch=16))
    assert result["status"] == "diverged"


@pytest.mark.parametrize("change", ["gone", "grown"])
def test_a_file_that_changes_while_it_is_played(enter, tmp_path, change):
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{v},{v / 3}\n" for v in range(200)))
    reading = Reading(target="y", model="linear", batch=8)
    found_as = resolve(str(path), reading).fingerprint

    def meddle(scores):
        if change == "gone":
            path.unlink()
        else:
            with path.open("a") as file:
                file.write("1,2\n")
        return scores

    enter(at_ten=meddle)
    result = play(Cell(str(path), "toy", "default", 0, found_as, **vars(reading)))
    assert (result["status"], result["loss"]) == ("not played", None)
    said = {"gone": "no file at", "grown": "has changed since the race began"}[change]
    assert said in result["message"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_contestant_that_diverges(enter, value):
    enter(at_ten=lambda scores: scores + value)
    result = play(make("toy"))
    assert (result["status"], result["loss"], result["steps"]) == ("diverged", None, 9)
    assert result["message"] == "the loss of step 10 is not finite"
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("spec", "model"), [(SPEC, "linear"), (SPEC + ",loss=logistic", "logistic")]
)
def test_a_finite_loss_may_be_absurd(enter, spec, model):
    """A thousand times the loss of predicting nothing is the mark, on either side of it."""
    task = "regression" if model == "linear" else "binary"
    labels = np.concatenate([b.y for b in resolve(spec, Reading(model=model, batch=8)).batches(0)])
    nothing = losses(task, np.zeros_like(labels), labels).mean()
    # The score at which a constant costs a thousand times as much.
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        above = losses(task, np.full_like(labels, middle), labels).mean() > 1000 * nothing
        low, high = (low, middle) if above else (middle, high)
    enter(value=0.99 * low)
    assert play(make("toy", spec, model))["status"] == "ok"
    for value in (1.01 * low, 1e30):
        enter(value=value)
        result = play(make("toy", spec, model))
        assert (result["status"], result["loss"], result["error"]) == ("diverged", None, None)
        assert "over 1,000 times the" in result["message"]
        assert result["steps"] == 300


def test_one_bad_step_is_not_divergence(enter):
    enter(at_ten=lambda scores: scores + 100.0)
    result = play(make("toy"))
    assert result["status"] == "ok"
    assert result["loss"] > 10.0


def test_a_target_that_is_nothing_tells_no_divergence(enter, monkeypatch):
    enter()
    monkeypatch.setattr(module, "losses", lambda task, scores, y: scores**2)
    assert play(make("toy"))["status"] == "ok"


def test_a_contestant_that_is_late(enter):
    def wait(scores):
        time.sleep(0.3)
        return scores

    enter(at_ten=wait)
    play(make("toy"))  # so that the batches are at hand
    result = play(make("toy"), deadline=time.monotonic() + 0.2)
    assert (result["status"], result["loss"], result["steps"]) == ("timeout", None, 10)
    assert result["message"] == "out of time after 10 of 300 steps"
    assert play(make("toy"), deadline=time.monotonic())["steps"] == 0
    assert play(make("toy"), deadline=time.monotonic() + 60)["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "nobody"}, "method must be one of sgd"),
        ({"spec": "synthetic:zigzag"}, "kind must be one of"),
        ({"model": "softmax"}, "does not fit a target of numbers"),
        ({"fingerprint": "other"}, "has changed"),
        ({"code": "other"}, "HedgedSGD or a package that it needs is not the one"),
    ],
)
def test_a_cell_that_cannot_be_played(options, says):
    result = play(make(**options))
    assert (result["status"], result["steps"], result["curve_steps"]) == ("not played", 0, [])
    assert says in result["message"]
    assert "\n" not in result["message"]


def test_warnings_and_threads_are_left_as_they_were():
    torch = pytest.importorskip("torch", reason="its threads are counted")
    before = torch.get_num_threads()
    with np.errstate(all="raise"):
        assert play(make("sgd"))["status"] == "ok"
        with pytest.raises(FloatingPointError):
            np.float64(1e308) * 10
    assert torch.get_num_threads() == before


def test_a_cell_of_this_code_is_played():
    assert play(make(code=code_of(contestants()["HedgedSGD"])))["status"] == "ok"


def test_a_played_stream_is_kept_for_the_next():
    sources._cache.clear()
    play(make())
    assert len(sources._cache) == 1


def test_a_key_changes_with_everything_that_determines_a_result():
    base = make()
    others = [
        make(method="sgd"), make(spec=SPEC + ",size=0.1"), make(model="mlp"), make(seed=1),
        make(fingerprint="x"), make(code="x"),
    ]  # fmt: skip
    keys = {base.key(), *(other.key() for other in others)}
    assert len(keys) == len(others) + 1
    assert make().key() == base.key()


def test_tracking_beats_standing_still():
    """On a target that walks, following it has a fraction of the regret of predicting nothing."""
    spec = "synthetic:walk,dim=3,steps=600,size=0.1,noise=0.5"
    nothing = sum(
        0.5 * float((b.oracle**2).mean()) for b in resolve(spec, Reading(batch=8)).batches(0)
    )
    for name in ("HedgedSGD", "kalman forgetting", "ConvexRate"):
        assert name in contestants()
        assert play(make(name, spec))["regret"] < 0.2 * nothing
