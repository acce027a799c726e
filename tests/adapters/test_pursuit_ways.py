"""The fast ways of Pursuit's step are the readable one, but for rounding."""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
import time

import pytest

torch = pytest.importorskip("torch")

from driftrate.adapters import _pursuit as law  # noqa: E402
from driftrate.adapters.torch import (  # noqa: E402
    pursuit_fast,
    pursuit_kernel,
    pursuit_move,
    pursuit_step,
)

SHAPES = [(7,), (33, 5), (4, 3, 2, 2), (), (300, 1001), (0, 3)]
compiled = pytest.mark.skipif(pursuit_fast.compiled() is None, reason="no C compiler here")
interpreted = pytest.mark.skipif(
    not pursuit_kernel.available or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)


def problem(dtype=torch.float32, device="cpu", seed=0):
    """Return tensors with states in the midst of a run, and rows of factors."""
    torch.manual_seed(seed)
    params = [torch.randn(shape).to(dtype) for shape in SHAPES]
    states = [
        {
            "square": torch.rand(s).square(),
            "trail": 0.1 * torch.randn(s),
            "lead": 0.1 * torch.randn(s),
        }
        | ({"rest": (1e-3 * torch.randn(s)).to(dtype)} if dtype != torch.float32 else {})
        for s in SHAPES
    ]
    for state in states[:2]:
        state["square"].view(-1)[:3] = 0.0  # never visited
    factors = torch.rand(len(SHAPES), 6) * 0.1 + torch.tensor([0.0, 0.9, 0.9, 0.5, -0.3, 0.9])
    grads = [strange(torch.randn(s)).to(dtype) for s in SHAPES]
    return (
        [p.to(device) for p in params],
        [g.to(device) for g in grads],
        [{name: t.to(device) for name, t in state.items()} for state in states],
        factors.to(device),
        [p.dim() > 1 for p in params],
    )


def strange(grad):
    """Put in all that a gradient should not be."""
    values = [0.0, float("nan"), float("inf"), -1e30, 1e-25, 1e5, -float("inf")]
    flat = grad.view(-1)
    if len(flat) > 20:
        flat[5 : 5 + len(values)] = torch.tensor(values)
    return grad


def compare(way, dtype=torch.float32, device="cpu", rtol=2e-6, slack=2e-5):
    one, other = problem(dtype, device), problem(dtype, device)
    for _ in range(3):
        signals, others = pursuit_step.move(*one), way.move(*other)
        torch.testing.assert_close(others, signals, rtol=1e-4, atol=1e-4)
    short = dtype != torch.float32
    firsts = problem(dtype, device)[0]
    for first, p, q, grad in zip(firsts, one[0], other[0], one[1], strict=True):
        still = ~((grad.abs() >= law.SMALLEST) & (grad.abs() <= law.LARGEST))
        assert torch.equal(p[still], first[still])
        assert torch.equal(q[still], first[still])
    for p, q, mine, own in zip(one[0], other[0], one[2], other[2], strict=True):
        # Half a bit more or less of a short weight is found in its rest.
        whole, others = (x + s["rest"].float() if short else x for x, s in ((p, mine), (q, own)))
        torch.testing.assert_close(others, whole, rtol=rtol, atol=slack if short else 1e-6)
        assert bool(whole.isfinite().all())
        for name in ("square", "trail", "lead"):
            torch.testing.assert_close(own[name], mine[name], rtol=rtol, atol=1e-6)


@compiled
def test_the_compiled_step_is_the_readable_one():
    compare(pursuit_fast)


@compiled
def test_the_number_of_threads_changes_nothing():
    outcomes = []
    threads = torch.get_num_threads()
    for count in (1, 3):
        torch.manual_seed(0)
        p, g, v, h, u = (torch.rand(1 << 20) for _ in range(5))
        factors = torch.tensor([[0.01, 0.9, 0.9, 0.5, -0.3, 0.9]])
        state = {"square": v, "trail": h, "lead": u}
        try:
            torch.set_num_threads(count)
            signal = pursuit_fast.move([p], [g], [state], factors, [True])
        finally:
            torch.set_num_threads(threads)
        outcomes.append([signal, p, v, h, u])
    assert all(map(torch.equal, *outcomes))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_is_the_readable_step(dtype):
    # The interpreter cuts a bfloat16 off where a device rounds it: of weights below 4 the rest is
    # below 2^-6, and each of three steps may lose 2^-8 of it.
    compare(pursuit_kernel, dtype, slack=3 * 2**-14 if dtype == torch.bfloat16 else 2e-5)


def test_chunks_are_the_whole():
    """A tensor in chunks is the same tensor at once, but for the order of a sum."""
    outcomes = []
    for chunk in (1 << 10, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pursuit_step, "_CHUNK", chunk)
            every = problem()
            signals = pursuit_step.move(*every)
        outcomes.append([*every[0], *(s[name] for s in every[2] for name in ("trail", "lead"))])
        outcomes[-1].append(signals.round(decimals=3))
    assert all(map(torch.equal, *outcomes))


def way_of(p, grad=None):
    names = ("square", "trail", "lead")
    state = {name: torch.zeros_like(p, dtype=torch.float32) for name in names}
    return pursuit_move._way(p, p.clone() if grad is None else grad, state)


@compiled
def test_the_fast_way_is_chosen_where_it_is_right():
    dense = torch.zeros(4, 3, 5, 5)
    assert way_of(dense) is pursuit_fast
    by_channel = dense.to(memory_format=torch.channels_last)
    assert way_of(by_channel) is pursuit_fast
    assert way_of(by_channel, dense) is pursuit_step
    assert way_of(dense.double()) is pursuit_step
    assert way_of(dense.bfloat16()) is pursuit_step
    assert way_of(torch.zeros(4, 6)[:, ::2], torch.zeros(4, 3)) is pursuit_step


@compiled
def test_weights_in_any_layout_and_precision_move_together():
    """Different ways in one step, each tensor with its own signal."""
    torch.manual_seed(0)
    start = [torch.randn(4, 3, 5, 5), torch.randn(8, 6), torch.randn(9).double()]
    start += [torch.randn(8, 6).bfloat16(), torch.randn(6, 8).T]
    outcomes = []
    for only in (None, pursuit_step):
        params = [p.detach().clone() for p in start]
        params[0] = params[0].to(memory_format=torch.channels_last)
        states = []
        for p in params:
            p.grad = torch.full_like(p, 0.5)
            zeros = [torch.zeros_like(p, dtype=torch.float32) for _ in range(3)]
            states.append({"square": zeros[0], "trail": zeros[1] + 1.0, "lead": zeros[2] - 2.0})
        states[3]["rest"] = torch.zeros_like(params[3])
        factors = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
        grads = [p.grad for p in params]
        ways = [
            only or pursuit_move._way(*every) for every in zip(params, grads, states, strict=True)
        ]
        signals = pursuit_move.move(ways, params, grads, states, factors, True)
        outcomes.append([signals, *params])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other)
    assert outcomes[0][0].tolist() == [[p.numel() / 2, -float(p.numel())] for p in start]


@compiled
def test_a_step_tells_autograd_that_weights_changed():
    p = torch.nn.Parameter(torch.ones(3))
    product = (p * p).sum()
    p.grad = torch.ones(3)
    with torch.no_grad():
        state = {name: torch.zeros(3) for name in ("square", "trail", "lead")}
        pursuit_move.move([pursuit_fast], [p], [p.grad], [state], torch.ones(1, 6), False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.fixture
def anew(monkeypatch, caplog):
    """Return a function that compiles anew and returns what was found and what was logged."""

    def anew():
        pursuit_fast.compiled.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.INFO, "driftrate"):
            found = [pursuit_fast.compiled() for _ in range(2)]
            assert way_of(torch.zeros(3)) is (pursuit_fast if found[1] else pursuit_step)
        (said,) = caplog.records  # once
        return found[0], said.levelname, said.getMessage()

    yield anew
    monkeypatch.undo()
    pursuit_fast.compiled.cache_clear()


def script(folder, *lines):
    path = folder / "my compiler"
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return shlex.quote(str(path))


def test_without_a_compiler_the_readable_step_is_taken(anew, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    found, level, said = anew()
    assert (found, level) == (None, "WARNING")
    assert "as written" in said
    assert "no C compiler 'no-such-compiler'" in said


@compiled
def test_a_compiler_with_words_of_its_own_is_taken(anew, monkeypatch, tmp_path):
    """As `ccache gcc`."""
    cc, wrapper = os.environ.get("CC") or "cc", script(tmp_path, 'exec "$@"')
    monkeypatch.setenv("CC", f"{wrapper} {cc}")
    found, level, said = anew()
    assert found is not None
    assert level == "INFO"
    assert said.endswith(f"{cc} has compiled")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["sleep 60 & sleep 60"], "has not ended after 1 s"),  # it, and what it has started
        (["cat"], "pursuit.so"),  # it would wait for what nobody types
        (["exit 3"], "exit status 3"),
    ],
)
def test_a_compiler_that_fails_is_told_of_once(anew, monkeypatch, tmp_path, lines, words):
    monkeypatch.setenv("CC", script(tmp_path, *lines))
    monkeypatch.setattr(pursuit_fast, "_LIMIT", 1.0)
    start = time.monotonic()
    found, level, said = anew()
    assert (found, level) == (None, "WARNING")
    assert words in said
    assert time.monotonic() - start < 10


@compiled
def test_a_library_without_the_step_is_told_of_once(anew, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -Dpursuit_move=another")
    found, level, said = anew()
    assert (found, level) == (None, "WARNING")
    assert "pursuit_move" in said


def test_without_a_folder_to_write_to_the_readable_step_is_taken(anew, monkeypatch):
    """As in a read-only container."""

    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "_get_default_tempdir", none)
    monkeypatch.setattr(tempfile, "tempdir", None)
    found, level, said = anew()
    assert (found, level) == (None, "WARNING")
    assert "No usable temporary directory" in said


def test_the_constants_are_the_laws():
    """The numbers of the law reach the fast ways by name, not by copy."""
    for way in ("pursuit_fast.c", "pursuit_fast.py", "pursuit_kernel.py"):
        folder = pursuit_fast._SOURCE.parent
        text = (folder / way).read_text()
        for name in ("KEEP", "SPIKE", "LARGEST", "SMALLEST"):
            assert name in text
            assert repr(getattr(law, name)) not in text
