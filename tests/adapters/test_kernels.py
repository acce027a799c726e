"""What the kernels of Triton measure, in its interpreter: the readable sums, but for rounding.

`make check` runs them: TRITON_INTERPRET=1 must stand in the environment before Python starts.
On a device they are tested in test_on_gpu.py.
"""

import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from driftrate.adapters.torch import kernel, lead, measure  # noqa: E402
from driftrate.adapters.torch.metric import Weight  # noqa: E402

pytestmark = pytest.mark.skipif(
    not kernel.available or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton, and TRITON_INTERPRET=1 before Python starts",
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# More than one launch looks at.
SHAPES = [(7,), (33, 5), (), (300, 101), (0, 3), (1,), (2048,), (17, 2), (4099,), (3,)]


@pytest.mark.parametrize("good", [True, False, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lead_is_the_readable_one(dtype, good):
    torch.manual_seed(0)
    weights, gradients = ([torch.randn(s).to(dtype) for s in SHAPES] for _ in range(2))
    averages, like = [torch.randn(s) for s in SHAPES], torch.zeros(())
    gradients[1] = None  # its average follows, and nothing else
    if good is False:
        weights[0][2] = float("inf")  # must not reach an average
        gradients[0] = None
    others = [one.clone() for one in averages]
    told = None if good is None else torch.tensor(good)
    found = kernel.looked(weights, averages, gradients, told)
    expected = lead.looked(weights, others, gradients, told, like)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(averages, others, rtol=1e-6, atol=1e-6)
    assert all(bool(one.isfinite().all()) for one in averages)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_squares_are_those_of_the_definition(dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(s).to(dtype) for s in SHAPES]
    expected = sum(float(tensor.double().square().sum()) for tensor in tensors)
    assert float(kernel.squares(tensors)) == pytest.approx(expected, rel=1e-6)
    assert kernel.squares(tensors[4:5]) == 0.0  # nothing in it


@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sums_are_the_readable_ones(dtype, weighed, monkeypatch):
    monkeypatch.setattr(kernel, "_PROGRAMS", 16)  # the interpreter takes one after another
    torch.manual_seed(0)
    names, like = ("square", "product", "apart", "whole"), torch.zeros(())
    new, old = ([torch.randn(s).to(dtype) for s in SHAPES] for _ in range(2))
    moments = [torch.rand(s).to(dtype) for s in SHAPES]
    weights = [Weight(moment, 1e-3, 1.0) if weighed else None for moment in moments]
    table = kernel.sums([*zip(new, old, weights, strict=True)], 0.25).sum(dim=0)
    sums = measure.compared(new, old, like, weights, 0.25, wanted=names)
    scale = float(sums["square"])
    torch.testing.assert_close(table, torch.stack([*sums.values()]), rtol=1e-5, atol=1e-6 * scale)


def test_a_kernel_is_not_told_to_read_past_the_end(monkeypatch):
    """It counts by the new tensor; of a parameter that grew the old one is shorter."""
    monkeypatch.setattr(measure, "kernel", lambda: kernel)
    like = SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    long, short = torch.ones(10), torch.ones(8)
    assert measure._is_quick(long, long, None, like)
    assert not measure._is_quick(long, short, None, like)
    assert not measure._is_quick(long, long, Weight(short, 1e-8, 1.0), like)
