"""Every rule of the package on every array library: one trajectory, exact resume, no read-back."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import driftrate as dr
from driftrate.errors import SignalError, StateError
from driftrate.estimate import (
    DebiasedShift,
    Estimated,
    RunningDiameter,
    RunningSmoothness,
    ShiftEMA,
)

STEPS = 300
RULES = {
    "ema": ShiftEMA(),
    "debiased": DebiasedShift(),
    "wrapped": Estimated(dr.LinearRate(dim=16, noise_std=1.0), DebiasedShift()),
    "smoothness": RunningSmoothness(memory=0.99),
    "diameter": RunningDiameter(floor=0.1),
}
every = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def inputs():
    rng = np.random.default_rng(0)
    for t in range(STEPS):
        spread = rng.gamma(8.0, 1.0 / 8.0)
        yield {
            "batch_size": 32.0,
            "step_length": 0.0 if t == 0 else rng.gamma(4.0, 0.1),
            "grad_sq": spread * (1.5 + rng.random()),
            "spread": spread,
        }


def signal_of(rule, row, convert=float):
    """A `Signal`, or the one number that a tracker reads."""
    if not rule.signals:
        return convert(row["grad_sq"])
    return dr.Signal(**{name: convert(row[name]) for name in rule.signals})


def trajectory(rule, state, convert, rows=None):
    values = []
    for row in inputs() if rows is None else rows:
        value, state = rule.update(state, signal_of(rule, row, convert))
        values.append(value)
    return values, state


@every
@pytest.mark.parametrize(("kind", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_the_trajectory_is_the_same_in_every_library(rule, kind, tolerance):
    plain, _ = trajectory(rule, rule.init(), float)
    for like, convert in [
        (np.zeros(2, dtype=kind), lambda x: np.full(2, x, dtype=kind)),
        (
            torch.zeros(2, dtype=getattr(torch, kind)),
            lambda x: torch.full((2,), x, dtype=getattr(torch, kind)),
        ),
        (np.zeros((), dtype=kind), float),
        (torch.zeros((), dtype=getattr(torch, kind)), float),
    ]:
        values, state = trajectory(rule, rule.init(like=like), convert)
        assert values[-1].dtype == like.dtype
        assert state[rule.output].shape == like.shape
        got = np.stack([np.asarray(value) for value in values])
        want = np.reshape(plain, (STEPS, *[1] * like.ndim))
        np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), tolerance, tolerance)


@every
@pytest.mark.parametrize("like", [None, np.zeros(2), np.zeros(2, dtype=np.float32), torch.zeros(2)])
def test_a_run_stopped_and_resumed_is_bitwise_the_same(rule, like):
    rows = list(inputs())[:100]
    whole, end = trajectory(rule, rule.init(like=like), float, rows)
    state, values = rule.init(like=like), []
    for t, row in enumerate(rows):
        if t in (0, 1, 2, 3, 50):
            state = rule.load(json.loads(json.dumps(rule.dump(state))))
        value, state = rule.update(state, signal_of(rule, row))
        values.append(value)
    assert rule.dump(state) == rule.dump(end)
    for a, b in zip(values, whole, strict=True):
        assert type(a) is type(b)
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_a_state_of_another_rule_is_refused():
    saved = RunningDiameter().dump(RunningDiameter().init())
    with pytest.raises(StateError, match="the state is of RunningDiameter, not of ShiftEMA"):
        ShiftEMA().load(saved)


@every
def test_the_state_is_not_modified(rule):
    for like in (None, np.zeros(2)):
        state = rule.init(like=like)
        before = json.dumps(rule.dump(state))
        trajectory(rule, state, float, list(inputs())[:3])
        assert json.dumps(rule.dump(state)) == before


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_bad_tensor_leaves_the_state_as_it_was(rule, bad):
    rows = list(inputs())[:20]
    _, state = trajectory(rule, rule.init(like=torch.zeros(2)), float, rows)

    def convert(x):
        return torch.asarray([x, bad])

    _, state_after = trajectory(rule, state, convert, rows[:1])
    _, clean = trajectory(rule, state, float, rows[:1])

    def check(after, before, good):
        for key, leaf in after.items():
            if isinstance(leaf, dict):
                check(leaf, before[key], good[key])
            else:
                assert leaf[1] == before[key][1]
                assert leaf[0] == good[key][0]

    check(state_after, state, clean)


@every
def test_a_bad_number_or_array_is_refused(rule):
    with pytest.raises(SignalError, match="must be a finite number"):
        rule.update(rule.init(), signal_of(rule, next(inputs()), lambda x: -1.0))
    with pytest.raises(SignalError, match="must be a finite number"):
        rule.update(
            rule.init(like=np.zeros(2)),
            signal_of(rule, next(inputs()), lambda x: np.array([x, np.nan])),
        )


@every
def test_nothing_is_read_back_from_a_device(rule):
    # A meta tensor has no values: reading one fails.
    def convert(x):
        return torch.zeros(2, device="meta")

    values, _ = trajectory(rule, rule.init(like=convert(0.0)), convert, list(inputs())[:5])
    assert values[-1].device.type == "meta"


def test_under_jit_one_trace_and_the_same_trajectory(tmp_path):
    """In a process of its own: 64-bit numbers are a switch for the whole process."""
    rows = list(inputs())[:100]
    want = {name: trajectory(rule, rule.init(), float, rows)[0] for name, rule in RULES.items()}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"rows": rows, "want": want}))
    code = """
        import json, sys
        import jax, jax.numpy as jnp, numpy as np
        jax.config.update("jax_enable_x64", True)
        import driftrate as dr
        from driftrate.estimate import *
        given = json.loads(open(sys.argv[1]).read())
        rules = {
            "ema": ShiftEMA(),
            "debiased": DebiasedShift(),
            "wrapped": Estimated(dr.LinearRate(dim=16, noise_std=1.0), DebiasedShift()),
            "smoothness": RunningSmoothness(memory=0.99),
            "diameter": RunningDiameter(floor=0.1),
        }
        for name, rule in rules.items():
            for dtype, tolerance in ((jnp.float64, 1e-12), (jnp.float32, 1e-5)):
                traces = 0
                def step(state, row):
                    global traces
                    traces += 1
                    fields = {k: row[k] for k in rule.signals}
                    return rule.update(state, dr.Signal(**fields) if fields else row["grad_sq"])
                jitted, state, got = jax.jit(step), rule.init(like=jnp.zeros((), dtype)), []
                for row in given["rows"]:
                    value, state = jitted(state, {k: jnp.asarray(v, dtype) for k, v in row.items()})
                    got.append(float(value))
                assert value.dtype == dtype, (name, value.dtype)
                assert traces == 1, (name, traces)
                np.testing.assert_allclose(got, given["want"][name], tolerance, tolerance)
                saved = json.loads(json.dumps(rule.dump(state)))
                again = rule.load(saved)
                assert rule.dump(again) == saved
        parts = np.random.default_rng(0).standard_normal((3, 4, 5))
        ours, theirs = from_parts(parts), jax.jit(lambda g: from_parts(g).cross)(jnp.asarray(parts))
        np.testing.assert_allclose(theirs, ours.cross, 1e-12)
        assert from_parts(jnp.ones((2, 4), jnp.bfloat16)).cross.dtype == jnp.float32
        x = parts[0]
        lipschitz = linear_smoothness(jnp.asarray(x), 9)
        np.testing.assert_allclose(lipschitz, linear_smoothness(x, 9), 1e-10)
        print("same")
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.stdout.strip() == "same", out.stderr[-2000:]
