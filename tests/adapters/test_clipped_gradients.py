"""Plain SGD whose gradients are all clipped to one norm: a change of units."""

from __future__ import annotations

import io

import numpy as np
import pytest
import small_loop
import torch

import driftrate as dr
import driftrate.torch
from driftrate.adapters.torch.clipping import Clipping

attach = driftrate.torch.attach
DIM, BATCH, STEPS, JUMP = 20, 32, 300, 150


class Run:
    """A regression whose target jumps half way."""

    def __init__(self, clip, mode=None):
        self.clip = clip
        self.w = torch.nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
        self.optimizer = torch.optim.SGD([self.w], lr=0.1)
        self.rate = attach(self.optimizer, dr.MeasuredRate(), mode=mode)

    def loss(self, x, y):
        return (x @ self.w - y).square().mean()

    def steps(self, steps):
        errors = []
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
            noise = 0.5 * torch.randn(BATCH, generator=generator, dtype=torch.float64)
            target = torch.ones(DIM, dtype=torch.float64) * (1.0 if step < JUMP else -2.0)
            errors.append(float((self.w.detach() - target).square().sum()))
            self.optimizer.zero_grad()
            if self.rate.mode == "parts":
                self.rate.backward(self.loss, x, x @ target + noise)
            else:
                self.loss(x, x @ target + noise).backward()
            self.raw = float(self.w.grad.norm())
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_([self.w], self.clip)
            self.optimizer.step()
        return errors


@pytest.mark.parametrize("mode", ["sequence", "parts"])
def test_a_small_norm_is_a_change_of_units(mode):
    free = Run(None, mode)
    clipped = Run(0.1, mode)
    ours, theirs = (run.steps(range(STEPS)) for run in (clipped, free))
    # As it arrives, the clipped gradient leaves an error above 100 to the end: a twentieth of that
    # is the jump's own error of 180 for four steps of 150, as the gradient itself has it for two.
    assert np.mean(ours[JUMP:]) < 5.0
    assert np.mean(theirs[JUMP:]) < 2.5
    assert np.mean(ours[-50:]) < 0.05
    assert not free.rate._clipping.watching  # a loop that does not clip pays nothing
    assert clipped.rate._clipping.watching
    # What is used for the clipped gradient is the rate of the gradient times its length over c.
    norm = clipped.rate.record["rate"] / clipped.rate._state["rate"] * 0.1
    assert norm == pytest.approx(clipped.raw, rel=1e-5)


def test_a_clipped_run_resumes_bit_by_bit():
    for stop in (2, 3, 4, 40):
        one, two = Run(0.1), Run(0.1)
        one.steps(range(stop))
        file = io.BytesIO()
        torch.save([one.w.detach(), one.optimizer.state_dict(), one.rate.state_dict()], file)
        file.seek(0)
        w, optimizer, rate = torch.load(file, weights_only=True)
        two.w.data.copy_(w)
        two.optimizer.load_state_dict(optimizer)
        two.rate.load_state_dict(rate)
        assert one.steps(range(stop, stop + 10)) == two.steps(range(stop, stop + 10))


def test_where_a_rate_was_told_clipping_is_left_alone():
    net = small_loop.model()
    for optimizer, schedule in (
        (torch.optim.Adam(net.parameters()), dr.MeasuredRate()),
        (torch.optim.SGD(net.parameters(), lr=0.1), dr.MeasuredRate(max_rate=0.1)),
        (torch.optim.SGD(net.parameters(), lr=0.1), dr.ConstantRate(0.1)),
    ):
        assert attach(optimizer, schedule)._clipping is None


def test_ranks_that_clip_are_told_so():
    clipping, w = Clipping(torch.zeros(()), alone=False), torch.nn.Parameter(torch.ones(1))
    assert not clipping.begins(0.01, [w])
    assert not clipping.begins(0.01, [w])
    with pytest.warns(UserWarning, match="clip at a larger norm"):
        assert not clipping.begins(0.01, [w])  # nothing is undone
    assert not clipping.begins(0.01, [w])  # and it is said once
    assert not clipping.scale([w], [torch.ones(1)])
    assert not clipping._handles
