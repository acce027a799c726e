"""A step of Pursuit moves only what fits: shapes, layouts, types, devices, shared memory."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pursued import everything, network, pursuit, same, train  # noqa: E402

import driftrate.torch  # noqa: E402
from driftrate.adapters.torch import (  # noqa: E402
    pursuit_fast,
    pursuit_kernel,
    pursuit_move,
    pursuit_step,
)
from driftrate.errors import StateError  # noqa: E402

Pursuit = driftrate.torch.Pursuit
NAMES = ("square", "trail", "lead")


def table(rows=10, dtype=torch.float32):
    """Return a small vector and a table, and their optimizer after three steps."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in ((5,), (rows, 16))]
    optimizer = Pursuit([{"params": [p]} for p in params])
    for _ in range(3):
        again(params, optimizer)
    return params, optimizer


def again(params, optimizer):
    for p in params:
        p.grad = torch.randn(p.shape).to(p)
    optimizer.step()


def grow(p, rows=4):
    p.data = torch.cat([p.data, torch.ones(rows, 16, dtype=p.dtype)])


def kept(params, optimizer):
    return copy.deepcopy([[p.detach() for p in params], [{**optimizer.state[p]} for p in params]])


def equal(one, other):
    flat = [[*params, *(t for s in states for t in s.values())] for params, states in (one, other)]
    return len(flat[0]) == len(flat[1]) and all(map(torch.equal, *flat))


def refused(params, optimizer, words):
    before = kept(params, optimizer)
    with pytest.raises(StateError, match=words):
        optimizer.step()
    assert equal(before, kept(params, optimizer))


@pytest.mark.parametrize("rows", [4, 4000])
def test_a_table_that_grew_is_refused_and_told_how_to_grow(rows):
    params, optimizer = table()
    grow(params[1], rows)
    for p in params:
        p.grad = torch.ones_like(p)
    words = (
        rf"square of parameter 1 is of shape \(10, 16\), not \({10 + rows}, 16\).*resize\(param\)"
    )
    refused(params, optimizer, words)
    optimizer.resize(params[1])
    again(params, optimizer)


@pytest.mark.parametrize("way", ["as chosen", "as written"])
@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        (
            "trail",
            torch.zeros(9, 16),
            r"trail of parameter 1 is of shape \(9, 16\), not \(10, 16\)",
        ),
        ("trail", torch.zeros(16, 10), r"trail of parameter 1 is of shape \(16, 10\)"),
        ("lead", torch.zeros(16), r"lead of parameter 1 is of shape \(16,\)"),
        ("square", torch.zeros(10, 16).half(), "square of parameter 1 is float16, not float32"),
        ("lead", torch.zeros(10, 16).double(), "lead of parameter 1 is float64, not float32"),
        ("lead", torch.zeros(10, 16, device="meta"), "lead of parameter 1 is on meta, not cpu"),
        ("lead", torch.zeros(1, 16).expand(10, 16), "lead of parameter 1 holds one number twice"),
        ("law", torch.zeros(6), r"law of parameter 1 is of shape \(6,\), not \(7,\)"),
        ("square", None, "parameter 1 has no square"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(name, wrong, words, way, monkeypatch):
    if way == "as written":
        monkeypatch.setattr(pursuit_move, "_way", lambda *_: pursuit_step)
    params, optimizer = table()
    for p in params:
        p.grad = torch.ones_like(p)
    if wrong is None:
        del optimizer.state[params[1]][name]
    else:
        optimizer.state[params[1]][name] = wrong
    before = kept(params, optimizer)
    with pytest.raises(StateError, match=words):
        optimizer.step()
    if wrong is None or not wrong.is_meta:
        assert equal(before, kept(params, optimizer))


def test_a_gradient_of_before_the_table_grew_is_refused():
    params, optimizer = table()
    grow(params[1])
    optimizer.resize(params[1])
    refused(
        params,
        optimizer,
        r"gradient of parameter 1 is of shape \(10, 16\), not \(14, 16\).*zero_grad",
    )


def test_weights_of_another_type_than_their_state_are_refused():
    params, optimizer = table()
    params[1].grad = None
    params[1].data = params[1].data.bfloat16()
    params[1].grad = torch.ones_like(params[1])
    refused(params, optimizer, "parameter 1 is bfloat16 and has no rest.*resize")
    optimizer.resize(params[1])
    assert optimizer.state[params[1]]["rest"].dtype == torch.bfloat16
    again(params, optimizer)
    params[1].grad = None
    params[1].data = params[1].data.half()
    params[1].grad = torch.ones_like(params[1])
    refused(params, optimizer, "rest of parameter 1 is bfloat16, not float16")


@pytest.mark.parametrize(
    "shared", [torch.ones(1, 16).expand(10, 16), torch.ones(40).as_strided((10, 16), (2, 1))]
)
def test_weights_that_share_memory_with_themselves_are_refused(shared):
    for steps in (0, 1):
        params, optimizer = table()
        if not steps:
            optimizer = Pursuit([{"params": [p]} for p in params])
        params[1].data = (
            shared.clone(memory_format=torch.preserve_format).as_strided(
                shared.shape, shared.stride()
            )
            if shared.stride()[0]
            else shared
        )
        for p in params:
            p.grad = torch.ones(p.shape)
        refused(params, optimizer, "parameter 1 holds one number twice.*contiguous")


def test_a_resized_state_keeps_its_rows_and_its_law():
    params, optimizer = table()
    old = copy.deepcopy(optimizer.state[params[1]])
    grow(params[1])
    optimizer.resize(params[1])
    new = optimizer.state[params[1]]
    assert torch.equal(new["law"], old["law"])
    for name in NAMES:
        assert torch.equal(new[name][:10], old[name])
        assert not new[name][10:].any()
    params[1].data = params[1].data[:3, :7].clone()
    optimizer.resize(params[1])
    for name in NAMES:
        assert torch.equal(optimizer.state[params[1]][name], old[name][:3, :7])
    again(params, optimizer)


def test_a_row_that_is_new_moves_as_at_a_first_visit():
    """And the old ones as if nothing had grown."""
    (_, one), optimizer = table()
    (_, other), plain = table()
    grow(one)
    optimizer.resize(one)
    draw = torch.randn(10, 16)
    other.grad, one.grad = draw, torch.cat([draw, draw[:4]])
    before = one.detach().clone()
    for p, its in ((one, optimizer), (other, plain)):
        its.param_groups[0]["params"][0].grad = None
        its.step()
        assert p.grad is not None
    torch.testing.assert_close(one[:10], other)
    assert bool((one[10:] != before[10:]).all())
    state = optimizer.state[one]
    torch.testing.assert_close(state["square"][10:], draw[:4].square())


def test_what_cannot_be_resized_is_refused():
    params, optimizer = table()
    with pytest.raises(StateError, match="not a parameter of this optimizer"):
        optimizer.resize(torch.zeros(3))
    optimizer.resize(params[0])  # fits as it is
    params[1].data = params[1].data.view(2, 5, 16)
    with pytest.raises(StateError, match=r"parameter 1 has 3 dimensions, its state 2"):
        optimizer.resize(params[1])
    fresh = Pursuit(params)
    fresh.resize(params[1])  # nothing is kept yet
    assert not fresh.state


def test_a_model_that_changes_its_layout_goes_on():
    torch.manual_seed(0)
    net = torch.nn.Conv2d(3, 4, 3)
    optimizer = Pursuit(net.parameters())
    for step in range(4):
        if step == 2:
            net.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        net(torch.randn(2, 3, 5, 5)).square().mean().backward()
        optimizer.step()
    optimizer.resize(net.weight)
    assert optimizer.state[net.weight]["trail"].stride() == net.weight.stride()


def test_a_decay_in_double_precision_is_one_in_single():
    """A number of NumPy made the factors double: the compiled step read half a number each."""
    outcomes = []
    for number in (float, np.float64):
        net = network()
        optimizer = pursuit(net, weight_decay=number(0.01))
        train(net, optimizer, range(3))
        outcomes.append(everything(net, optimizer))
    assert same(*outcomes)


def test_a_negated_gradient_is_read_as_it_is():
    """That of an imaginary part is a view of a conjugate, whose sign is not in memory."""
    outcomes = []
    for lazy in (True, False):
        p = torch.nn.Parameter(torch.ones(1))
        optimizer = Pursuit([p])
        grad = torch.complex(torch.zeros(1), torch.ones(1)).conj().imag
        assert grad.is_neg()
        assert grad.is_contiguous()
        p.grad = grad if lazy else grad.resolve_neg()
        optimizer.step()
        outcomes.append(p.detach())
    assert torch.equal(*outcomes)


@pytest.mark.skipif(pursuit_fast.compiled() is None, reason="no C compiler here")
def test_threads_do_not_move_what_shares_memory(monkeypatch):
    threads, pools = torch.get_num_threads(), []
    start = pursuit_fast._threads
    monkeypatch.setattr(pursuit_fast, "_threads", lambda n: pools.append(n) or start(n))
    try:
        torch.set_num_threads(3)
        for second, used in ((600_000, [3]), (599_000, [])):
            memory = torch.randn(1_200_000)
            params = [torch.nn.Parameter(one) for one in (memory[:600_000], memory[second:])]
            pools.clear()
            again(params, Pursuit(params))
            assert pools == used
    finally:
        torch.set_num_threads(threads)


SHAPES = [(), (0, 3), (7,), (5, 4), (1, 6), (2, 3, 4), (3, 2, 4, 4), (300, 250)]
LAYOUTS = ["plain", "turned", "every other", "by channel", "expanded", "sliding"]
ODD = [None] * 9 + ["shorter", "longer", "turned"] * 2 + ["double", "half", "meta", "gone"]


def laid(shape, layout, seed, dtype=torch.float32):
    """Return numbers above 0 of this shape in this layout, or plainly where it has none such."""
    draw = torch.Generator().manual_seed(seed)
    if layout == "turned" and len(shape) > 1:
        return laid(shape[::-1], "plain", seed, dtype).permute(*range(len(shape))[::-1])
    if layout == "every other" and shape:
        return laid((*shape[:-1], 2 * shape[-1]), "plain", seed, dtype)[..., ::2]
    if layout == "expanded" and shape:
        return laid((1, *shape[1:]), "plain", seed, dtype).expand(shape)
    if layout == "sliding" and len(shape) == 2:
        return laid((sum(shape),), "plain", seed, dtype).as_strided(shape, (1, 1))
    made = (torch.rand(shape, generator=draw) + 0.1).to(dtype)
    return (
        made.to(memory_format=torch.channels_last)
        if layout == "by channel" and len(shape) == 4
        else made
    )


def odd(value, how):
    """Return a tensor that is not what it should be, or may not be."""
    if how in ("shorter", "longer") and value.dim():
        rows = max(len(value) + (1 if how == "longer" else -1), 0)
        return laid((rows, *value.shape[1:]), "plain", 9)
    turned = value.mT.contiguous() if value.dim() > 1 else value
    kinds = {"double": value.double(), "half": value.half(), "meta": value.to("meta")}
    return {None: value, "gone": None, "turned": turned, **kinds}.get(how, value)


@st.composite
def cases(draw):
    """What makes up a parameter: shape, type, layouts, what its memory is shared with, a fault."""
    pick = lambda some: draw(st.sampled_from(some))  # noqa: E731
    return {
        "shape": pick(SHAPES),
        "dtype": pick([torch.float32] * 3 + [torch.float64, torch.bfloat16, torch.float16]),
        "layouts": [pick(LAYOUTS[:1] * 20 + LAYOUTS) for _ in range(5)],
        "odd": (pick([*NAMES, "rest", "law"]), pick(ODD)),
        "grad": pick(["dense"] * 9 + ["sparse", "weights", "beside", "state", "stale"]),
        "shared": pick([None] * 4 + [("lead", "trail"), ("square", "lead")]),
        "moved": pick([None] * 4 + ["transposed weights of the first"]),
    }


def made(case, seed, before):
    """Return a parameter of such a case, with its gradient and state."""
    shape, kind, (own, *others) = case["shape"], case["dtype"], case["layouts"]
    p = torch.nn.Parameter(torch.zeros(shape, dtype=kind))
    size = p.numel()
    memory = laid((2 * size + 1,), "plain", seed, kind)
    p.data = laid(shape, own, seed, kind)
    if case["moved"] and before and before[0].dim() == 2 and kind == before[0].dtype:
        p.data = before[0].data.mT
    if case["grad"] == "beside":  # half of the weights are the gradient of others
        p.data, p.grad = memory[1 : size + 1].view(shape), memory[:size].view(shape)
    elif case["grad"] == "weights":
        p.grad = p.data
    elif case["grad"] == "sparse":
        p.grad = laid(p.shape, "plain", seed + 1, kind).to_sparse()
    else:
        p.grad = laid(p.shape, others[0], seed + 1, kind)
    state = {"law": torch.tensor([3.0, 0.1, 0.01, 0.05, 0.1, 0.2, 0.01])}
    for i, name in enumerate(NAMES):
        state[name] = laid(p.shape, others[i + 1], seed + 2 + i)
    if kind in (torch.bfloat16, torch.float16):
        state["rest"] = torch.zeros(p.shape, dtype=kind)
    if case["shared"]:
        one, other = case["shared"]
        state[one] = state[other]
    if case["grad"] == "state" and kind == torch.float32:
        p.grad = state["trail"]
    name, how = case["odd"]
    if name in state:
        state[name] = odd(state[name], how)
        if state[name] is None:
            del state[name]
    if case["grad"] == "stale" and p.dim():
        p.data = laid((p.shape[0] + 2, *p.shape[1:]), own, seed, kind)
    return p, state


def outcome(some, seed, way):
    """Return all after two steps; or the error, and whether that left all as it was."""
    params, states = [], []
    for i, case in enumerate(some):
        p, state = made(case, seed + 100 * i, params)
        params.append(p)
        states.append(state)
    # So large a decay that the order counts in which weights in shared memory move.
    optimizer = Pursuit(params, weight_decay=3.0)
    for p, state in zip(params, states, strict=True):
        optimizer.state[p] = state
    before = kept(params, optimizer)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if way is not None:
                patch.setattr(pursuit_move, "_way", lambda *_: way)
            for _ in range(2):
                optimizer.step()
    except StateError as error:
        return str(error), same_but_for_meta(before, kept(params, optimizer))
    return None, [t for part in kept(params, optimizer) for one in part for t in values(one)]


def values(one):
    return [one] if isinstance(one, torch.Tensor) else [*one.values()]


def same_but_for_meta(one, other):
    flat = [[t for part in some for x in part for t in values(x)] for some in (one, other)]
    assert len(flat[0]) == len(flat[1])
    return all(a.is_meta or torch.equal(a, b) for a, b in zip(*flat, strict=True))


def agrees(some, seed, **near):
    """Whether the way that is chosen does as the written one: with all, or not at all."""
    (told, found), (words, wanted) = (outcome(some, seed, way) for way in (None, pursuit_step))
    assert told == words
    if told is not None:
        assert found
        assert wanted
        return
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **near)


@settings(max_examples=400)
@given(some=st.lists(cases(), min_size=1, max_size=2), seed=st.integers(0, 5))
def test_whatever_it_is_given_it_moves_as_written_or_refuses(some, seed):
    """Shapes, layouts, types, devices and shared memory, right and wrong."""
    agrees(some, seed, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    not pursuit_kernel.available or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
@settings(max_examples=150)
@given(some=st.lists(cases(), min_size=1, max_size=2), seed=st.integers(0, 5))
def test_so_does_the_kernel(some, seed):
    def takes(p, grad):  # the interpreter cuts a bfloat16 off where a device rounds it
        kinds = {p.dtype, grad.dtype}
        return p.is_cpu and kinds <= {torch.float32, torch.float16}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pursuit_fast, "takes", lambda *_: False)
        patch.setattr(pursuit_kernel, "takes", takes)
        agrees(some, seed, rtol=1e-3, atol=2e-3)
