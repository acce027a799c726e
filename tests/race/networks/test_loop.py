"""The loop of a network: what it scores, learns from and leaves alone."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from driftrate.errors import ConfigError
from driftrate.race import Cell, Reading, contestants, resolve
from driftrate.race import play as play_cell
from driftrate.race.contestants import Setup
from driftrate.race.networks import Phase, play
from driftrate.race.networks.network import Network, Transformer, widths
from driftrate.race.networks.play import batches
from driftrate.race.networks.tabular import tabular

torch = pytest.importorskip("torch", reason="networks are torch's")
NETWORK = Network("classes", 4, 3, hidden=(8,))


def rows(count, name="a", learn=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 4)).astype(np.float32)
    return Phase(name, x, x[:, :3].argmax(axis=1), learn)


def learner(name="sgd", seed=0, **options):
    setup = Setup(NETWORK, batch=16, steps=10, seed=seed)
    setting = json.dumps(options) if options else "default"
    return contestants()[name].make(setting, setup)


def test_losses_are_those_of_a_plain_loop():
    phase = rows(2000)
    played = play(learner(lr=0.1), "classes", iter([phase]))
    net = NETWORK.module(seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, errors = [], []
    for start in range(0, 2000, 16):
        x = torch.from_numpy(phase.x[start : start + 16])
        y = torch.from_numpy(phase.y[start : start + 16])
        scores = net(x)
        loss = torch.nn.functional.cross_entropy(scores, y)
        losses.append(float(loss.detach()))
        errors.append(float((scores.argmax(dim=1) != y).float().mean()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(played.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(played.error, errors)
    assert played.mean() == pytest.approx(np.mean(losses), rel=1e-6)
    assert played.mean("a", "error") == pytest.approx(np.mean(errors))


def test_first_weights_are_torchs_and_leave_its_generator_alone():
    before = torch.get_rng_state()
    one, again, other = (NETWORK.module(seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    torch.manual_seed(1)
    assert torch.equal(torch.nn.Linear(4, 8).weight, one)
    torch.set_rng_state(before)


def test_rows_over_go_to_the_next_phase_of_that_name():
    phases = [rows(20, seed=1), rows(20, seed=2), rows(20, "b", seed=3)]
    found = list(batches(iter(phases), 16))
    assert [(phase.name, len(x)) for phase, x, _ in found] == [("a", 1), ("a", 1), ("b", 1)]
    np.testing.assert_array_equal(found[1][1][0, :4], phases[0].x[16:])
    np.testing.assert_array_equal(found[1][2][0, 4:], phases[1].y[:12])
    np.testing.assert_array_equal(found[2][1][0], phases[2].x[:16])


def test_what_is_held_out_is_scored_and_not_learned_from():
    phases = [rows(64), rows(64, "held out", learn=False, seed=1), rows(64, seed=2)]
    with_it = play(learner(lr=0.5), "classes", iter(phases))
    without = play(learner(lr=0.5), "classes", iter([phases[0], phases[2]]))
    np.testing.assert_array_equal(with_it.loss[with_it.learned], without.loss)
    assert with_it.mean() == without.mean()
    assert with_it.spans["held out"] == [slice(4, 8)]
    assert with_it.mean("held out") != with_it.mean("a")


def test_a_loss_that_is_not_finite_ends_it():
    phase = rows(1600)
    phase.x[160:176] = np.inf
    played = play(learner(), "classes", iter([phase]))
    assert (played.status, len(played.loss)) == ("diverged", 10)
    assert np.isfinite(played.loss).all()


def test_time_is_up():
    played = play(learner(), "classes", iter([rows(160)]), deadline=time.monotonic())
    assert (played.status, len(played.loss)) == ("timeout", 0)


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2)) * [1.0, 50.0]
    lines = [f"{a},{b},{a * b / 50 + 3:.6f}\n" for a, b in x]
    (tmp_path / "small.csv").write_text("a,b,y\n" + "".join(lines))
    return tmp_path / "small.csv"


def test_a_file_is_raced_with_a_network(file):
    reading = Reading(target="y", model="mlp", hidden="12,6")
    source = resolve(str(file), reading)
    assert source.make_model() == Network("regression", 2, 1, hidden=(12, 6))
    result = play_cell(Cell(str(file), "adam", "default", 1, source.fingerprint, **vars(reading)))
    assert result["status"] == "ok", result["message"]
    player = contestants()["adam"].make("default", Setup(source.make_model(), 16, 24, 1))
    by_hand = []
    for batch in source.batches():
        x = torch.from_numpy(batch.x[:, :-1].astype(np.float32))
        assert (batch.x[:, -1] == 1.0).all()
        scores = player.learn(x, torch.from_numpy(batch.y.astype(np.float32)))
        by_hand.append(0.5 * float(((scores[:, 0].numpy() - batch.y) ** 2).mean()))
    assert result["loss"] == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert result["steps"] == len(by_hand) == 24
    assert result["error"] == pytest.approx(np.sqrt(2 * np.mean(by_hand)), rel=1e-5)
    assert result["loss_curve"][-1] == pytest.approx(result["loss"])
    assert result["rate_curve"] == [0.001] * 24
    json.dumps(result, allow_nan=False)


def test_a_drawn_stream_has_its_regret():
    spec = "synthetic:standstill,dim=3,steps=200,noise=0.5"
    reading = Reading(model="mlp", batch=8)
    result = play_cell(Cell(spec, "adam", "default", 0, spec, **vars(reading)))
    source = resolve(spec, reading)
    assert source.make_model().features == 3  # no column of ones
    noise = np.mean([0.5 * ((b.y - b.oracle) ** 2).mean() for b in source.batches(0)])
    # 1,600 rows of noise 0.5 times an error of about 0.3.
    assert result["regret"] / 200 == pytest.approx(result["loss"] - noise, abs=0.01)
    assert result["regret"] > 5.0


@pytest.mark.parametrize(
    ("error", "status"), [(OverflowError("math range error"), "diverged"), (KeyError("w"), None)]
)
def test_a_method_that_refuses_what_is_not_finite(error, status):
    """The steps before are kept, in the middle of a block; any other error is the caller's."""
    whole = play(learner(lr=0.1), "classes", iter([rows(16 * 70)]))
    falls = learner(lr=0.1)
    learn, steps = falls.learn, []

    def fall(x, y):
        steps.append(1)
        if len(steps) == 61:
            raise error
        return learn(x, y)

    falls.learn = fall
    if status is None:
        with pytest.raises(KeyError):
            play(falls, "classes", iter([rows(16 * 70)]))
        return
    played = play(falls, "classes", iter([rows(16 * 70)]))
    assert (played.status, played.message) == (status, "OverflowError: math range error")
    np.testing.assert_array_equal(played.loss, whole.loss[:60])


def test_diverged_and_late_say_so(file):
    reading = Reading(target="y", model="mlp")
    mark = resolve(str(file), reading).fingerprint
    wild = Cell(str(file), "sgd", '{"lr":1e9}', 0, mark, **vars(reading))
    result = play_cell(wild)
    assert (result["status"], result["loss"]) == ("diverged", None)
    assert "is not finite" in result["message"]
    late = play_cell(wild, deadline=time.monotonic())
    assert (late["status"], late["message"]) == ("timeout", "out of time after 0 of 24 steps")


def test_a_table_is_standardised_once(file, tmp_path, monkeypatch):
    first = tabular(file, tmp_path / "kept")
    (phase,) = resolve(str(file), Reading(target="y", model="mlp", scale="plain")).phases()
    (kept,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr("driftrate.race.networks.tabular.resolve", None)
    again = tabular(file, tmp_path / "kept")
    assert first.model == again.model == Network("regression", 2, 1)
    for found in (first, again):
        (whole,) = found.draw(0)
        np.testing.assert_array_equal(whole.x, phase.x)
        np.testing.assert_array_equal(whole.y, phase.y)
    assert np.abs(phase.x).max() <= 5.0
    assert kept.suffix == ".npz"


@pytest.mark.parametrize("cut", [0, 30, -30, None])
def test_a_table_that_is_kept_and_damaged_is_standardised_anew(file, tmp_path, cut):
    (first,) = tabular(file, tmp_path / "kept").draw(0)
    (kept,) = (tmp_path / "kept").iterdir()
    whole = kept.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    kept.write_bytes(flipped if cut is None else whole[:cut])
    (again,) = tabular(file, tmp_path / "kept").draw(0)
    np.testing.assert_array_equal(again.x, first.x)
    assert kept.read_bytes() == whole


def test_a_transformer_learns_what_repeats():
    model = Transformer(width=24, layers=1, heads=2, context=32)
    setup = Setup(model, batch=4, steps=60, seed=0)
    text = np.tile(np.frombuffer(b"abcdefgh", np.uint8), 4 * 60 * 32 // 8 + 1)
    x = text[: 4 * 60 * 32].reshape(-1, 32)
    y = text[1 : 4 * 60 * 32 + 1].reshape(-1, 32).astype(np.int64)
    player = contestants()["adamw"].make('{"lr":0.01}', setup)
    played = play(player, "classes", iter([Phase("text", x, y)]), batch=4)
    assert played.loss[0] == pytest.approx(np.log(256), rel=0.2)
    assert played.loss[-1] < 0.2


def test_a_transformer_does_not_look_ahead():
    net = Transformer(width=24, layers=2, heads=2, context=16).module(0)
    x = torch.arange(16)[None]
    other = x.clone()
    other[0, 9:] = 200
    before, after = net(x), net(other)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.equal(before[0, 9], after[0, 9])


def test_the_transformer_has_the_size_that_is_told():
    count = sum(w.numel() for w in Transformer().module(0).parameters())
    assert 1.85e6 < count < 1.95e6


@pytest.mark.parametrize("text", ["", "128,", "a", "0", "64,-1"])
def test_widths_are_whole_numbers(text):
    with pytest.raises(ConfigError, match="hidden must be whole numbers from 1 on"):
        widths(text)
