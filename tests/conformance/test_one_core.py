"""One core on every framework: the same trajectory, the same state after a journey."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import torch

import driftrate as dr
from driftrate.errors import MissingSignal, SignalError, StateError

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
# A recursive filter carries single rounding on: up to 5.6e-5 was seen in these 1,000 steps.
FILTERED = {"float64": 1e-12, "float32": 2e-4}


def tolerance(rate, dtype):
    return (FILTERED if isinstance(rate, dr.MeasuredRate) else TOLERANCE)[dtype]


def leaves(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def run(rate, state, rows, convert=float):
    rates = []
    for row in rows:
        signal = dr.Signal(**{key: convert(value) for key, value in row.items()})
        eta, state = rate.update(state, signal)
        rates.append(eta)
    return rates, state


@pytest.fixture
def plain(case, rate, rows, floats):
    if case not in floats:
        floats[case] = np.array(run(rate, rate.init(), rows)[0])
    return floats[case]


def bits(value):
    if type(value) in (float, int):
        return type(value), np.float64(value).tobytes()
    return str(value.dtype), tuple(value.shape), np.asarray(value).tobytes()


def all_bits(state):
    return [bits(leaf) for leaf in leaves(state)]


class TestTrajectory:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_numpy_equals_floats(self, rate, rows, plain, dtype):
        rates, state = run(rate, rate.init(like=np.zeros((), dtype)), rows)
        np.testing.assert_allclose(rates, plain, rtol=tolerance(rate, dtype), atol=0)
        assert all(np.asarray(leaf).dtype.name in (dtype, "int64") for leaf in leaves(state))

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_tensors_equal_floats(self, rate, rows, plain, dtype):
        kind = getattr(torch, dtype)
        rates, state = run(rate, rate.init(like=torch.zeros((), dtype=kind)), rows)
        assert all(eta.dtype == kind for eta in rates)
        assert all(leaf.dtype in (kind, torch.int64) for leaf in leaves(state))
        rates = torch.stack(rates).double().numpy()
        np.testing.assert_allclose(rates, plain, rtol=tolerance(rate, dtype), atol=0)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_jitted_equals_floats(self, case, rate, jitted, plain, dtype):
        rates = jitted[f"{case}/{dtype}"]
        np.testing.assert_allclose(rates, plain, rtol=tolerance(rate, dtype), atol=0)

    def test_an_axis_of_seeds_is_each_seed_alone(self, rate, rows):
        scale = np.array([0.5, 1.0, 2.0])
        together, _ = run(rate, rate.init(like=scale), rows[:200], lambda value: scale * value)
        for seed, factor in enumerate(scale):
            alone, _ = run(rate, rate.init(), rows[:200], lambda value, f=factor: float(f * value))
            np.testing.assert_allclose(np.array(together)[:, seed], alone, rtol=1e-12)

    def test_nothing_is_read_back(self, rate, rows):
        """A tensor on the meta device has no values: reading one raises."""
        state = rate.init(like=torch.zeros(4, device="meta"))
        for row in rows[:3]:
            signal = dr.Signal(**{k: torch.full((4,), v, device="meta") for k, v in row.items()})
            eta, state = rate.update(state, signal)
        assert eta.device.type == "meta"
        assert eta.shape == (4,)


class TestState:
    def test_update_is_pure(self, rate, rows):
        _, state = run(rate, rate.init(), rows[:3])
        before = copy.deepcopy(state)
        eta, first = rate.update(state, dr.Signal(**rows[3]))
        assert all_bits(state) == all_bits(before)
        again, second = rate.update(state, dr.Signal(**rows[3]))
        assert (again, all_bits(second)) == (eta, all_bits(first))

    @pytest.mark.parametrize(
        "like",
        [None, np.zeros(()), np.zeros(3, np.float32), torch.zeros(3), torch.zeros(2).double()],
        ids=["floats", "numpy", "numpy32", "tensor32", "tensor64"],
    )
    def test_json_journey_is_bitwise(self, rate, rows, like):
        _, state = run(rate, rate.init(like=like), rows[:70])
        text = json.dumps(rate.dump(state), allow_nan=False)
        loaded = rate.load(json.loads(text))
        assert all_bits(loaded) == all_bits(state)

    @pytest.mark.parametrize("stop", [0, 1, 61, 199])
    def test_resumed_run_is_identical(self, rate, rows, stop):
        _, state = run(rate, rate.init(), rows[:stop])
        loaded = rate.load(json.loads(json.dumps(rate.dump(state))))
        rates, end = run(rate, state, rows[stop:200])
        again, other = run(rate, loaded, rows[stop:200])
        assert (again, all_bits(other)) == (rates, all_bits(end))

    def test_half_precision_journey(self, rate):
        state = rate.init(like=torch.zeros(2, dtype=torch.bfloat16))
        loaded = rate.load(json.loads(json.dumps(rate.dump(state))))
        assert all(torch.equal(a, b) for a, b in zip(leaves(loaded), leaves(state), strict=True))

    def test_a_state_can_move_to_another_library(self, rate, rows):
        _, state = run(rate, rate.init(), rows[:50])
        moved = rate.load(rate.dump(state), like=torch.zeros((), dtype=torch.float64))
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves(moved))
        for there, here in zip(leaves(moved), leaves(state), strict=True):
            np.testing.assert_array_equal(there.numpy(), here)
        back = rate.load(rate.dump(moved), like=0.0)
        assert all_bits(back) == all_bits(state)

    def test_torch_saves_it_without_pickled_classes(self, rate, rows, tmp_path):
        _, state = run(rate, rate.init(like=torch.zeros(2)), rows[:20])
        torch.save(state, tmp_path / "state.pt")
        loaded = torch.load(tmp_path / "state.pt", weights_only=True)
        assert all(torch.equal(a, b) for a, b in zip(leaves(loaded), leaves(state), strict=True))

    def test_unknown_version_is_refused(self, rate):
        saved = {**rate.dump(rate.init()), "version": 999}
        with pytest.raises(StateError, match="version 999"):
            rate.load(saved)

    def test_another_schedule_is_refused(self, rate):
        saved = {**rate.dump(rate.init()), "schedule": "OtherRate"}
        with pytest.raises(StateError, match=r"state is of OtherRate, not of"):
            rate.load(saved)

    @pytest.mark.parametrize("damage", ["", [], {}, {"schedule": 1}, None])
    def test_not_a_state_is_refused(self, rate, damage):
        with pytest.raises(StateError):
            rate.load(damage)

    def test_missing_and_damaged_leaves_are_refused(self, rate):
        saved = rate.dump(rate.init())
        with pytest.raises(StateError, match="must hold"):
            rate.load({**saved, "state": {}})
        with pytest.raises(StateError, match=r"state\.rate"):
            rate.load({**saved, "state": {**saved["state"], "rate": "soon"}})
        vectors = [name for name, leaf in rate.init().items() if np.ndim(leaf)]
        for name, node in [(n, saved["state"][n]) for n in vectors]:
            for short in (node["data"][1:], node["data"][0]):
                cut = {**saved["state"], name: {**node, "data": short}}
                with pytest.raises(StateError, match=rf"state\.{name}.*a vector of 8"):
                    rate.load({**saved, "state": cut})
        foreign = {"library": "evil", "dtype": "float64", "device": "cpu", "data": 0.0}
        with pytest.raises(StateError, match="evil"):
            rate.load({**saved, "state": {**saved["state"], "rate": foreign}})


class TestConfiguration:
    def test_frozen_and_hashable(self, rate):
        assert {rate: 1}[copy.deepcopy(rate)] == 1
        assert pickle.loads(pickle.dumps(rate)) == rate
        with pytest.raises(AttributeError):
            rate.extra = 1

    def test_every_schedule_is_documented(self, rate):
        text = type(rate).__doc__
        assert ">>>" in text
        assert "Args:" in text


class TestBadSignals:
    def test_missing(self, rate, rows):
        for name in set(rate.signals) - rate.optional:
            row = {k: v for k, v in rows[0].items() if k != name}
            with pytest.raises(MissingSignal, match=rf"needs Signal\({name}="):
                rate.update(rate.init(), dr.Signal(**row))
            with pytest.raises(MissingSignal, match=name):
                rate.update(rate.init(like=np.zeros(2)), dr.Signal(**row))

    def test_optional_fields_may_be_missing(self, rate, rows):
        for name in rate.optional:
            short = [{k: v for k, v in row.items() if k != name} for row in rows[:20]]
            alone, _ = run(rate, rate.init(), short)
            together, _ = run(rate, rate.init(like=np.zeros(2)), short)
            np.testing.assert_allclose(np.array(together)[:, 1], alone, rtol=1e-12)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, "1", True, None, [1.0]])
    def test_out_of_range(self, rate, rows, signed, bad):
        for name in rate.signals:
            if (bad == -1.0 and name in signed) or (bad is None and name in rate.optional):
                continue
            signal = dr.Signal(**{**rows[0], name: bad})
            with pytest.raises(SignalError, match=name) as caught:
                rate.update(rate.init(), signal)
            assert "\n" not in str(caught.value)
            if bad is not None:
                assert repr(bad) in str(caught.value)

    def test_zero_batch(self, rate, rows):
        if "batch_size" in rate.signals:
            with pytest.raises(SignalError, match=r"batch_size must be .* > 0, got 0"):
                rate.update(rate.init(), dr.Signal(**{**rows[0], "batch_size": 0}))

    def test_numpy_arrays_are_checked(self, rate, rows):
        for name in rate.signals:
            row = {k: np.array([v, v]) for k, v in rows[0].items()}
            row[name][1] = np.nan
            with pytest.raises(SignalError, match=f"{name} must be a finite number.*nan"):
                rate.update(rate.init(like=np.zeros(2)), dr.Signal(**row))

    def test_tensors_need_a_state_of_tensors(self, rate, rows):
        for name in rate.signals:
            signal = dr.Signal(**{**rows[0], name: torch.tensor(1.0)})
            with pytest.raises(SignalError, match=r"init\(like=array\)"):
                rate.update(rate.init(), signal)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
    def test_tensors_keep_the_last_good_rate(self, rate, rows, signed, bad):
        """Seed 1 gets the bad value: it alone stays as it was."""
        _, state = run(rate, rate.init(like=torch.zeros(2)), rows[:10])
        good = rate.update(state, dr.Signal(**rows[10]))
        for name in set(rate.signals) - (signed if bad == -1.0 else set()):
            row = {**rows[10], name: torch.tensor([rows[10][name], bad])}
            eta, after = rate.update(state, dr.Signal(**row))
            assert eta[0] == good[0][0]
            assert eta[1] == state["rate"][1]
            pairs = zip(leaves(after), leaves(state), leaves(good[1]), strict=True)
            for new, old, advanced in pairs:
                assert torch.equal(new[..., 1], old[..., 1])
                assert torch.equal(new[..., 0], advanced[..., 0])
