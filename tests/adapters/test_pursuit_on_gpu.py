"""Pursuit on CUDA: the kernel is the readable step, nothing is read back, also in a graph."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import driftrate.torch  # noqa: E402
from driftrate.adapters import _pursuit as law  # noqa: E402
from driftrate.adapters.torch import pursuit_kernel, pursuit_move, pursuit_step  # noqa: E402
from driftrate.errors import StateError  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Loop:
    """A regression on one batch that is drawn anew."""

    def __init__(self, dtype=torch.float32, device="cuda", **options):
        torch.manual_seed(0)
        layers = torch.nn.Linear(64, 301), torch.nn.ReLU(), torch.nn.Linear(301, 10)
        self.net = torch.nn.Sequential(*layers).to(device=device, dtype=dtype)
        self.optimizer = driftrate.torch.Pursuit(self.net.parameters(), **options)
        self.x = torch.zeros(32, 64, device=device, dtype=dtype)

    def draw(self, number):
        generator = torch.Generator().manual_seed(number)
        self.x.copy_(torch.randn(self.x.shape, generator=generator))

    def __call__(self):
        self.optimizer.zero_grad()
        (self.net(self.x).float() - self.x[:, :10].float()).square().mean().backward()
        self.optimizer.step()

    def everything(self):
        kept = [t for state in self.optimizer.state.values() for t in state.values()]
        return [t.detach().clone() for t in (*self.net.parameters(), *kept)]


def run(loop, numbers):
    for number in numbers:
        loop.draw(number)
        loop()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_is_the_readable_step(dtype):
    """Also at odd sizes, and with all that a gradient should not be."""
    outcomes = []
    for way in (pursuit_step, pursuit_kernel):
        torch.manual_seed(0)
        shapes = [(7,), (33, 5), (4, 3, 2, 2), (), (1500, 1001), (2048, 4096)]
        params = [torch.randn(s).to(dtype).cuda() for s in shapes]
        grads = [torch.randn(s).to(dtype) for s in shapes]
        for grad in grads[4:]:
            values = [0.0, float("nan"), float("inf"), -1e30, 1e-25, 1e4, -float("inf")]
            grad.view(-1)[5:12] = torch.tensor(values).to(dtype)
        grads = [grad.cuda() for grad in grads]
        states = []
        for p in params:
            state = {
                "square": torch.rand(p.shape).square().cuda(),
                "trail": torch.rand(p.shape).cuda(),
                "lead": torch.rand(p.shape).cuda(),
            }
            state["square"].view(-1)[:1] = 0.0
            if dtype != torch.float32:
                state["rest"] = 1e-3 * torch.rand_like(p)
            states.append(state)
        factors = torch.rand(len(shapes), 6).cuda() * 0.1 + 0.5
        firsts = [p.clone() for p in params]
        decays = [p.dim() > 1 for p in params]
        for _ in range(3):
            signals = way.move(params, grads, states, factors, decays)
        for first, p, grad in zip(firsts, params, grads, strict=True):
            still = ~((grad.abs() >= law.SMALLEST) & (grad.abs() <= law.LARGEST))
            assert torch.equal(p[still], first[still])
        outcomes.append((params, states, signals))
    (params, states, signals), (others, own, found) = outcomes
    torch.testing.assert_close(found, signals, rtol=1e-4, atol=1e-2)
    for p, q, mine, theirs in zip(params, others, states, own, strict=True):
        for name in ("square", "trail", "lead"):
            torch.testing.assert_close(theirs[name], mine[name], rtol=1e-5, atol=1e-5)
        if "rest" in mine:
            p, q = p.float() + mine["rest"].float(), q.float() + theirs["rest"].float()  # noqa: PLW2901
        torch.testing.assert_close(q, p, rtol=1e-5, atol=2e-5)
        assert bool(q.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_is_chosen_and_repeats_itself(dtype):
    """Bit by bit: no sum depends on which program ends first."""
    one, other = Loop(dtype), Loop(dtype)
    run(one, range(20))
    run(other, range(20))
    assert all(map(torch.equal, one.everything(), other.everything()))
    p = one.net[0].weight
    assert pursuit_move._way(p, p.grad, one.optimizer.state[p]) is pursuit_kernel


def test_nothing_is_read_back():
    loop = Loop()
    run(loop, range(3))
    loop.draw(3)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            loop()
            loop.optimizer.record  # noqa: B018
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_trajectory_is_that_of_the_cpu():
    outcomes = {}
    for device in ("cpu", "cuda"):
        loop = Loop(device=device)
        run(loop, range(30))
        outcomes[device] = [p.detach().cpu() for p in loop.net.parameters()]
    torch.testing.assert_close(outcomes["cuda"], outcomes["cpu"], rtol=1e-2, atol=1e-3)


def test_a_graph_replays_the_step():
    outcomes = []
    for captured in (False, True):
        loop = Loop(lr=torch.tensor(1.0, device="cuda"))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(loop, range(3))
        torch.cuda.current_stream().wait_stream(stream)
        step = loop
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loop()
            step = graph.replay
        for number in range(20):
            loop.draw(number)
            step()
        outcomes.append(loop.everything())
    laws = [state["law"] for state in loop.optimizer.state.values()]
    assert [float(numbers[0]) for numbers in laws] == [23.0] * 4
    torch.testing.assert_close(*outcomes, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_resumed_run_is_an_uninterrupted_one(dtype):
    one, other = Loop(dtype), Loop(dtype)
    run(one, range(20))
    for thing in ("net", "optimizer"):
        saved = io.BytesIO()
        torch.save(getattr(one, thing).state_dict(), saved)
        saved.seek(0)
        getattr(other, thing).load_state_dict(torch.load(saved, weights_only=True))
    run(one, range(20, 40))
    run(other, range(20, 40))
    assert all(map(torch.equal, one.everything(), other.everything()))


def test_a_step_that_the_loss_scaler_skips_leaves_all_as_it_was():
    loop = Loop()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    for number in range(6):
        loop.draw(number)
        loop.optimizer.zero_grad()
        bad = torch.full((), float("inf") if number == 4 else 1.0, device="cuda")
        scaler.scale(loop.net(loop.x).square().mean() * bad).backward()
        before = loop.everything()
        scaler.step(loop.optimizer)
        scaler.update()
        after = loop.everything()
        kept = len(before) == len(after) and all(map(torch.equal, before, after))
        assert kept == (number == 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_that_grew_is_refused_until_its_state_is_resized(dtype):
    """The kernel would write past the end of the state."""
    p = torch.nn.Parameter(torch.randn(10, 16, dtype=dtype, device="cuda"))
    optimizer = driftrate.torch.Pursuit([p])
    for rows in (10, 4010, 7):
        p.grad = None
        p.data = torch.randn(rows, 16, dtype=dtype, device="cuda")
        p.grad = torch.randn_like(p)
        if rows != 10:
            before = [t.clone() for t in (p.detach(), *optimizer.state[p].values())]
            with pytest.raises(StateError, match=r"square of parameter 0 is of shape .*resize"):
                optimizer.step()
            assert all(map(torch.equal, before, (p.detach(), *optimizer.state[p].values())))
            optimizer.resize(p)
        optimizer.step()
        assert pursuit_move._way(p, p.grad, optimizer.state[p]) is pursuit_kernel
    p.data = p.data.cpu()
    p.grad = torch.ones_like(p)
    with pytest.raises(StateError, match="law of parameter 0 is on cuda:0, not cpu"):
        optimizer.step()
    optimizer.resize(p)
    optimizer.step()
    assert bool(p.isfinite().all())


def test_memory_that_is_shared_goes_the_written_way():
    memory = torch.randn(101, device="cuda")
    p = torch.nn.Parameter(memory[1:])
    state = {name: torch.zeros(100, device="cuda") for name in ("square", "trail", "lead")}
    assert pursuit_move._way(p, memory[:-1], state) is pursuit_step
    assert pursuit_move._way(p, memory[:-1].clone(), state) is pursuit_kernel


CHILD = """
import torch, driftrate.torch
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
optimizer = driftrate.torch.Pursuit([p])
p.grad = torch.ones_like(p)
for _ in range(2):
    optimizer.step()
assert bool((p < 1).all())
"""


def test_where_triton_cannot_compile_the_written_way_is_taken(tmp_path):
    """As in a read-only container; it is told once."""
    (tmp_path / "file").touch()
    nowhere = {name: str(tmp_path / "file" / "cache") for name in ("HOME", "TRITON_CACHE_DIR")}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Pursuit takes the step as written on cuda:0") == 1, ended.stderr
