"""Figure 6: the stacked networks against readable twins, and verdicts that follow the runs."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import driftrate as dr  # noqa: E402
import driftrate.torch  # noqa: E402
from driftrate.data.cytometry import (  # noqa: E402
    CLASSES,
    CellStream,
    Phase,
    load_cells,
    simulate_cells,
)
from driftrate.paper.base import Context, table  # noqa: E402
from driftrate.paper.figure6 import cells as figure6_cells  # noqa: E402
from driftrate.paper.figure6 import figure as figure6  # noqa: E402
from driftrate.paper.figure6.adam import Adam, Setting, Trial, train  # noqa: E402
from driftrate.paper.figure6.claims import CLAIMS  # noqa: E402
from driftrate.paper.figure6.descent import descend, measure_constants  # noqa: E402
from driftrate.paper.figure6.halves import backward_halves  # noqa: E402
from driftrate.paper.figure6.networks import Networks  # noqa: E402
from driftrate.paper.figure6.protocols import (  # noqa: E402
    DESIGNS,
    RATES,
    RESETS,
    adam_name,
    measured_name,
)

HERE = Path(os.environ.get("DRIFTRATE_DATA", Path(__file__).parents[3] / "shared" / "data"))
CSV = HERE / "pancreas10.csv.gz"
CELLS = simulate_cells()
SHORT = (Phase((0.0, 0.0, 0.0, 1.0), 4), Phase((0.3, 0.5, 0.1, 0.1), 4))


def short(penalty=1e-4, activated=False):
    return Trial(CellStream(CELLS, phases=SHORT), penalty, activated)


class Twin(torch.nn.Module):
    """One network as anyone would write it, in double precision."""

    def __init__(self, networks, slot):
        super().__init__()
        self.activated, self.penalty = networks.activated, networks.penalty
        parts = [part[slot].double() for part in (*networks.kernels, *networks.biases)]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(part) for part in parts])

    def forward(self, x, label):
        kernels, biases = self.weights[:5], self.weights[5:]
        value = x.double()
        for layer, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
            value = value @ kernel + bias
            if layer < 4 or self.activated:
                value = torch.nn.functional.elu(value)
        entropy = torch.nn.functional.cross_entropy(value, label)
        return entropy + self.penalty * sum((kernel**2).sum() for kernel in kernels)


def batch(seeds):
    stream = CellStream(CELLS, phases=SHORT[1:])
    return [torch.from_numpy(part.copy()) for part in next(stream.batches(seeds))]


@pytest.mark.parametrize(("penalty", "activated"), [(1e-4, False), (0.0, True), (0.1, True)])
def test_gradient_is_that_of_autograd(penalty, activated):
    seeds = [3, 4, 5]
    networks = Networks(seeds, penalty, activated)
    x, label = batch(seeds)
    losses = networks.backward(x, label)
    total = (losses.entropy + losses.penalty).double()
    np.testing.assert_allclose(total, sum(networks.forward(x, label)), rtol=1e-6)
    rows = networks.rows(networks.gradient)
    for slot in range(len(seeds)):
        twin = Twin(networks, slot)
        loss = twin(x[slot], label[slot])
        loss.backward()
        expected = torch.cat([part.grad.flatten() for part in twin.weights])
        np.testing.assert_allclose(total[slot], loss.item(), rtol=1e-5)
        np.testing.assert_allclose(
            rows[slot], expected, rtol=2e-3, atol=1e-4 * expected.abs().max()
        )


@pytest.mark.parametrize("resets", [(), (5,), (0, 4)])
def test_training_is_that_of_one_network_with_torchs_adam(resets):
    trial, seeds, rate = short(), [1, 2], 1e-3
    curves = train(trial, [Setting(0.3), Setting(rate, resets)], seeds)
    for slot in range(len(seeds)):
        twin = Twin(Networks(seeds, trial.penalty, trial.activated), slot)
        for step, (x, label) in enumerate(trial.stream.batches(seeds)):
            if step == 0 or step in resets:
                adam = torch.optim.Adam(twin.parameters(), lr=rate, eps=1e-9)
            loss = twin(torch.from_numpy(x[slot].copy()), torch.from_numpy(label[slot].copy()))
            adam.zero_grad()
            loss.backward()
            adam.step()
            ours = curves.entropy[1, slot, step] + curves.penalty[1, slot, step]
            assert ours == pytest.approx(loss.item(), rel=0.01)


@pytest.mark.parametrize("mode", ["parts", "sequence"])
def test_a_factor_is_that_of_attach_on_one_network(mode, monkeypatch):
    # Keras and torch place ε differently: it must be too small to matter; and the penalty keeps
    # every gradient well above rounding.
    monkeypatch.setattr(Adam, "epsilon", 1e-10)
    phases = tuple(Phase(phase.shares, 15) for phase in SHORT)
    trial, seeds, base = Trial(CellStream(CELLS, phases=phases), penalty=0.01), [1, 2], 1e-3
    factor = dr.MeasuredRate(relative=True)
    curves = train(trial, [Setting(0.1), Setting(base)], seeds, factor, mode)
    for slot in range(len(seeds)):
        twin = Twin(Networks(seeds, trial.penalty, trial.activated), slot)
        adam = torch.optim.Adam(twin.parameters(), lr=base, eps=1e-10)
        rate = driftrate.torch.attach(adam, factor, mode=mode)
        for step, part in enumerate(trial.stream.batches(seeds)):
            x, label = (torch.from_numpy(values[slot].copy()) for values in part)
            adam.zero_grad()
            if mode == "parts":
                loss = rate.backward(twin, x, label)
            else:
                loss = twin(x, label)
                loss.backward()
            adam.step()
            ours = curves.entropy[1, slot, step] + curves.penalty[1, slot, step]
            assert ours == pytest.approx(loss.item(), rel=5e-4)
            expected = adam.param_groups[0]["lr"]
            assert curves.rate[1, slot, step] == pytest.approx(expected, rel=2e-3)


def test_two_halves_make_a_batch():
    networks, (x, label) = Networks([3, 4], 1e-4, False), batch([3, 4])
    whole = networks.backward(x, label)
    gradient = networks.rows(networks.gradient)
    losses, gap = backward_halves(networks, x, label)
    np.testing.assert_allclose(losses.entropy, whole.entropy, rtol=1e-5)
    np.testing.assert_array_equal(losses.penalty, whole.penalty)
    np.testing.assert_allclose(
        networks.rows(networks.gradient), gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max()
    )
    networks.backward(x[:, :32], label[:, :32])
    np.testing.assert_allclose(
        networks.rows(networks.gradient - gap),
        gradient,
        rtol=1e-3,
        atol=1e-5 * gradient.abs().max(),
    )


def test_a_diverged_network_keeps_its_last_factor():
    curves = train(short(), [Setting(1e30), Setting(0.01)], [0], dr.MeasuredRate())
    assert not np.isfinite(curves.entropy[0]).all()
    assert np.isfinite(curves.rate).all()
    assert np.isfinite(curves.entropy[1]).all()


def test_a_run_does_not_depend_on_its_company():
    alone = train(short(), [Setting(0.01)], [40])
    many = train(short(), [Setting(0.1), Setting(0.01), Setting(0.01, (4,))], range(41))
    np.testing.assert_allclose(alone.entropy[0, 0], many.entropy[1, 40], rtol=1e-4)
    np.testing.assert_array_equal(many.entropy[1, :, :5], many.entropy[2, :, :5])
    assert (many.entropy[1, :, 5:] != many.entropy[2, :, 5:]).any()


def test_training_leaves_the_number_of_threads():
    before = torch.get_num_threads()
    train(short(), [Setting(0.01)], [0])
    assert torch.get_num_threads() == before


def test_constants_are_curvature_and_deviation():
    networks = Networks([0, 1], 1e-4, False)
    before = networks.weights.clone()
    x, label = batch([0, 1])
    found = measure_constants(networks, x, label)
    np.testing.assert_array_equal(networks.weights, before)
    twin = Twin(networks, 1)
    weights = list(twin.parameters())
    slopes = torch.autograd.grad(twin(x[1], label[1]), weights, create_graph=True)
    vector = [slope.detach() for slope in slopes]
    for _ in range(60):
        length = torch.sqrt(sum((part**2).sum() for part in vector))
        product = sum((s * v / length).sum() for s, v in zip(slopes, vector, strict=True))
        vector = torch.autograd.grad(product, weights, retain_graph=True)
    curvature = torch.sqrt(sum((part**2).sum() for part in vector)).item()
    assert found[1].smoothness == pytest.approx(curvature, rel=0.1)
    singles = []
    for place in range(64):
        loss = twin(x[1, place : place + 1], label[1, place : place + 1])
        grads = torch.autograd.grad(loss, weights)
        singles.append(torch.cat([part.flatten() for part in grads]))
    deviation = torch.stack(singles).var(dim=0).sum().sqrt().item()
    assert found[1].noise_std == pytest.approx(deviation, rel=1e-3)


def test_descent_is_sgd():
    found = descend(short(), lambda *constants: dr.ConstantRate(1e-4), [0])
    twin = Twin(Networks([0], 1e-4, False), 0)
    sgd = torch.optim.SGD(twin.parameters(), lr=1e-4)
    for step, (x, label) in enumerate(short().stream.batches([0])):
        loss = twin(torch.from_numpy(x[0].copy()), torch.from_numpy(label[0].copy()))
        ours = found.entropy[0, step] + found.penalty[0, step]
        assert ours == pytest.approx(loss.item(), rel=2e-3)
        sgd.zero_grad()
        loss.backward()
        sgd.step()


def test_the_papers_rule_rises_at_the_shift():
    trial = Trial(CellStream(CELLS, phases=(Phase(SHORT[0].shares, 60), Phase(SHORT[1].shares, 2))))
    found = descend(trial, dr.NonconvexRate, range(8))
    networks = Networks(range(8), 1e-4, False)
    x, label = (torch.from_numpy(part.copy()) for part in next(trial.stream.batches(range(8))))
    limits = [1 / constants.smoothness for constants in measure_constants(networks, x, label)]
    assert (found.rate <= np.array(limits)[:, None] * 1.001).all()
    assert (found.rate[:, 60] >= found.rate[:, 50:60].mean(axis=1)).all()


def test_a_diverged_network_keeps_its_last_rate():
    found = descend(short(), lambda *constants: dr.ConstantRate(1e3), [0])
    assert not np.isfinite(found.entropy).all()
    assert (found.rate == 1e3).all()


@pytest.mark.skipif(not CSV.is_file(), reason="no cells: DRIFTRATE_DATA has no pancreas10.csv.gz")
def test_medians_on_the_real_cells():
    trial = Trial(CellStream(load_cells(CSV)))
    curves = train(trial, [Setting(0.01), Setting(0.01, RESETS["shifts"])], range(24))
    total = np.median(curves.entropy.sum(axis=-1), axis=1)
    np.testing.assert_allclose(total, [220, 178], rtol=0.15)


def test_accuracy_uses_measured_cells_alone(monkeypatch):
    monkeypatch.setattr(figure6_cells, "REPEATS", 1)
    few = np.flatnonzero(np.arange(len(CELLS.label)) % 6 == 0)
    cells = replace(
        CELLS, expression=CELLS.expression[few], label=CELLS.label[few], simulated=False
    )
    known = np.arange(len(few)) % 2 == 0
    found = figure6_cells.accuracy(replace(cells, measured=known)).to_pydict()
    counts = dict(zip(found["genes"], found["cells"], strict=True))
    assert counts == {"ten genes": known.sum(), "nine genes": len(few)}
    assert 0.6 < np.mean(found["accuracy"]) < 1
    whole = replace(cells, measured=np.ones(len(few), dtype=bool))
    assert set(figure6_cells.accuracy(whole)["genes"].to_pylist()) == {"ten genes"}
    assert figure6_cells.embed(whole).num_rows == len(few)


SEEDS, STEPS = 8, 600


def adam_tables(level):
    """Make up runs: `level(design, resets, rate)` is the loss of each step."""
    noise = np.random.default_rng(0).uniform(0.99, 1.01, (SEEDS, 1))
    tables = {}
    for design, chosen in DESIGNS.items():
        for rate in RATES:
            entropy = [
                np.broadcast_to(level(design, kind, rate) * noise, (SEEDS, STEPS))
                for kind in chosen.resets
            ]
            tables[adam_name(design, rate)] = table(
                resets=np.array(chosen.resets)[:, None, None],
                rate=rate,
                seed=np.arange(SEEDS)[:, None],
                step=np.arange(1, STEPS + 1),
                entropy=np.array(entropy),
                penalty=0.01,
            )
    return tables


LEVELS = dict(zip(RATES, (0.5, 0.4, 0.3, 0.9, 20.0), strict=True))


def as_claimed(design, kind, rate):
    return LEVELS[rate] * (1.0 if kind == "none" else 0.8)


def scores(value, simulated=False):
    return {
        "accuracy": table(
            genes="ten genes",
            cells=100,
            classifier="any",
            accuracy=value + np.linspace(-0.001, 0.001, 5),
            simulated=simulated,
        )
    }


GOOD = adam_tables(as_claimed) | scores(0.999)


def broken_in(design, change):
    return adam_tables(
        lambda d, kind, rate: as_claimed(d, kind, rate) * (change(kind, rate) if d == design else 1)
    )


CHANGES = {
    "cells-diverge": lambda kind, rate: 0.01 if rate == 0.1 else 1,
    "cells-best-rate": lambda kind, rate: 10 if rate == 0.01 else 1,
    "cells-resets": lambda kind, rate: 1 if kind == "none" else 1.3,
    "cells-stuck": lambda kind, rate: 1.3 if kind != "none" and rate == 0.03 else 1,
}


def verdict(name, tables):
    claim = next(claim for claim in CLAIMS if claim.name == name)
    return claim.rule(tables)[0]


@pytest.mark.parametrize("name", CHANGES)
def test_a_broken_run_flips_the_verdict(name):
    assert verdict(name, GOOD) == "holds"
    part = broken_in("text", CHANGES[name])
    assert verdict(name, part) == "holds in part"
    everywhere = {k: v for k, v in broken_in("program", CHANGES[name]).items() if "program" in k}
    assert verdict(name, part | everywhere) == "does not hold"
    single = {k: v.filter(v["seed"].to_numpy() == 0) for k, v in GOOD.items() if k != "accuracy"}
    assert verdict(name, single) == "cannot be judged"


def test_genes_verdict_follows_the_accuracy():
    assert verdict("genes", scores(0.999)) == "holds"
    assert verdict("genes", scores(0.96)) == "holds in part"
    assert verdict("genes", scores(0.88)) == "does not hold"
    assert verdict("genes", scores(0.999, simulated=True)) == "cannot be judged"


def test_a_diverged_run_is_infinite_not_missing():
    entropy = GOOD[adam_name("program", 0.1)]["entropy"].to_numpy().copy()
    entropy[::2] = np.nan
    rows = GOOD[adam_name("program", 0.1)]
    rows = rows.set_column(rows.column_names.index("entropy"), "entropy", [entropy])
    assert verdict("cells-diverge", GOOD | {adam_name("program", 0.1): rows}) == "holds"


def test_pieces_are_named_keyed_and_portable(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTRATE_DATA", str(tmp_path))
    monkeypatch.setattr(figure6, "load_cells", lambda path: CELLS)
    found = figure6.pieces(Context(seeds=4))
    assert len({piece.name for piece in found}) == len(found)
    assert all(CELLS.fingerprint in piece.key for piece in found)
    names = {piece.name for piece in found}
    assert {"source", "embedding", "accuracy", "descent-the-papers-rule"} <= names
    assert {measured_name(rate) for rate in RATES} <= names
    more = {piece.name: piece.key for piece in figure6.pieces(Context(seeds=5))}
    assert more[adam_name("text", 0.1)] != {p.name: p.key for p in found}[adam_name("text", 0.1)]
    pickle.loads(pickle.dumps(found))


def test_pieces_compute_tables(monkeypatch):
    monkeypatch.setattr(figure6, "load_cells", lambda path: CELLS)
    monkeypatch.setattr(figure6, "CellStream", partial(CellStream, phases=SHORT))
    listed = {piece.name: piece for piece in figure6.pieces(Context(seeds=2))}
    rows = {"source": 4, adam_name("text", 0.01): 32, measured_name(0.01): 16}
    for name, count in (rows | {"descent-the-papers-rule": 16}).items():
        assert listed[name].compute().num_rows == count


def test_the_picture_names_its_cells():
    rng = np.random.default_rng(0)
    steps = np.arange(1, STEPS + 1)
    tables = GOOD | {
        "source": table(source="12 made-up cells", note="because", type=np.array(CLASSES)),
        "embedding": table(
            x=rng.normal(size=12), y=rng.normal(size=12), type=np.array(CLASSES * 3)
        ),
        "descent-the-papers-rule": table(
            method="the paper's rule",
            seed=np.arange(2)[:, None],
            step=steps,
            entropy=0.3,
            rate=0.01 + 0.0 * steps,
        ),
    }
    tables |= {
        measured_name(rate): table(
            seed=np.arange(2)[:, None], step=steps, entropy=0.3, rate=rate / steps
        )
        for rate in RATES
    }
    picture = figure6.draw(tables)
    buffer = BytesIO()
    picture.savefig(buffer, format="svg")
    drawn = " ".join(text.get_text() for axes in picture.axes for text in axes.texts)
    drawn += " ".join(axes.get_xlabel() + axes.get_title("left") for axes in picture.axes)
    assert "12 made-up cells" in drawn
    lines = [label for axes in picture.axes for label in axes.get_legend_handles_labels()[1]]
    assert {"none, times the measured factor", "Adam 0.01 times the measured factor"} <= {*lines}
    assert "because" in drawn
    for name in ("as written", "as run", "as it should be"):
        assert name in drawn
