"""Equal seeds give equal runs, bit by bit; other seeds give others."""

from __future__ import annotations

import numpy as np
import pytest

import driftrate as dr


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_simulate(method):
    def run(seed):
        path = dr.streams.spiral(dim=4, steps=60, hold=8)
        stream = dr.streams.LinearStream(path, batch_size=8, noise_std=0.1)
        rate = dr.MeasuredRate(max_rate=0.1)
        found = dr.simulate(stream, [rate, dr.HedgedSGD()], seeds=3, seed=seed, method=method)
        return [(one.regret, one.rates, one.final_weights) for one in found]

    first, again, other = run(1), run(1), run(2)
    for ours, theirs in zip(first, again, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0][0], other[0][0])


@pytest.mark.parametrize("name", ["HedgedSGD", "ader", "adam"])
def test_a_cell_of_the_race(name):
    from driftrate.race import Cell, play

    def run(seed):
        stream = "synthetic:walk,dim=2,steps=50"
        cell = Cell(stream, name, "default", seed, stream, model="linear", batch=16)
        result = dict(play(cell))
        assert result.pop("status") == "ok"
        del result["seconds_per_step"]
        return result

    first = run(1)
    assert first == run(1)
    assert first["loss"] != run(2)["loss"]


@pytest.mark.parametrize("mode", ["sequence", "parts"])
def test_a_torch_loop_with_an_attached_rate(mode):
    torch = pytest.importorskip("torch")
    import driftrate.torch

    def run(seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        rate = driftrate.torch.attach(optimizer, dr.MeasuredRate(), mode=mode)
        rates = []
        for _ in range(40):
            x = torch.randn(16, 4)
            y = x.sum(1, keepdim=True)
            optimizer.zero_grad()
            if mode == "parts":
                rate.backward(lambda x, y: (net(x) - y).square().mean(), x, y)
            else:
                (net(x) - y).square().mean().backward()
            optimizer.step()
            rates.append(rate.record["rate"])
        return rates, [p.detach().clone() for p in net.parameters()]

    (rates, weights), (again, same), (others, _) = run(1), run(1), run(2)
    assert rates == again
    assert all(map(torch.equal, weights, same))
    assert rates != others
