"""An attached rate on CUDA: nothing is read back, also in a graph, and nothing else changes.

`make gpu` runs these with the machine's own torch; no other package of a framework is needed.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import driftrate as dr  # noqa: E402
import driftrate.torch  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    # Torch warns of its own ways, differently in each version; a rate that is not compiled is ours.
    pytest.mark.filterwarnings("ignore", "error:.*runs uncompiled"),
]
WIDTHS = (64, 128, 10)
SHAPES = [(3,), (1024, 1025), (), (4096, 4096), (1,), (2048, 16)]
BATCH = 32


def adamw(device="cuda", dtype=torch.float32, **options):
    """Return a maker of an AdamW whose rate is a tensor."""
    return lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(1e-3, device=device, dtype=dtype), **options
    )


class Loop:
    """A classifier on one batch, with an attached rate."""

    def __init__(self, make, mode="sequence", device="cuda", dtype=torch.float32, max_rate=None):
        torch.manual_seed(0)
        place = {"device": device, "dtype": dtype}
        layers = [torch.nn.Linear(WIDTHS[0], WIDTHS[1]), torch.nn.Linear(WIDTHS[1], WIDTHS[2])]
        self.net = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1]).to(**place)
        self.optimizer = make(self.net.parameters())
        self.x = torch.randn(BATCH, WIDTHS[0]).to(**place)
        self.y = torch.randint(WIDTHS[2], (BATCH,)).to(device)
        schedule = dr.MeasuredRate(max_rate=max_rate)
        self.rate = driftrate.torch.attach(self.optimizer, schedule, mode=mode, batch_size=BATCH)

    def draw(self, number):
        """Draw the batch anew, the same on every device."""
        generator = torch.Generator().manual_seed(number)
        self.x.copy_(torch.randn(self.x.shape, generator=generator, dtype=self.x.dtype))

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def __call__(self):
        """Take one whole training step, in the passes that the mode asks for."""
        self.optimizer.zero_grad()
        if self.rate.mode == "parts":
            self.rate.backward(self.loss, self.x, self.y)
        elif self.rate.mode == "accumulation":
            for x, y in zip(self.x.chunk(2), self.y.chunk(2), strict=True):
                (self.loss(x, y) / 2).backward()
        else:
            self.loss(self.x, self.y).backward()
        self.optimizer.step()

    def weights(self):
        return [p.detach().clone() for p in self.net.parameters()]


# Without a largest rate the weights' lead is measured, with one the shift between batches.
most = pytest.mark.parametrize("max_rate", [None, 1.0])


@most
@pytest.mark.parametrize("mode", ["sequence", "parts", "accumulation"])
@pytest.mark.parametrize("kind", ["fused", "capturable"])
def test_nothing_is_read_back(kind, mode, max_rate):
    loop = Loop(adamw(**{kind: True}), mode, max_rate=max_rate)
    for _ in range(3):  # the update is compiled here, which does wait for the device
        loop()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            loop()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loop.rate.steps == 8


@most
@pytest.mark.parametrize("mode", ["sequence", "parts", "accumulation"])
def test_the_trajectory_is_that_of_the_cpu(mode, max_rate):
    """Double precision: sums in another order are all that may differ."""
    outcomes = {}
    for device in ("cpu", "cuda"):
        loop = Loop(lambda p: torch.optim.SGD(p, lr=0.1), mode, device, torch.float64, max_rate)
        rates = []
        for number in range(60):
            loop.draw(number)
            loop()
            rates.append(loop.rate.record["rate"])
        outcomes[device] = rates, [w.cpu() for w in loop.weights()]
    (rates, weights), (others, moved) = outcomes["cpu"], outcomes["cuda"]
    assert others == pytest.approx(rates, rel=1e-9)
    torch.testing.assert_close(moved, weights, rtol=1e-9, atol=1e-9)
    assert len(set(rates)) > 1


@most
@pytest.mark.parametrize("twice", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_its_rate(twice, max_rate):
    loop = Loop(adamw(fused=True), max_rate=max_rate)
    for _ in range(4):
        loop()
    other = twice(loop)
    assert other.rate.optimizer is other.optimizer
    for one in (loop, other):
        for number in range(4):
            one.draw(number)
            one()
    assert all(map(torch.equal, loop.weights(), other.weights()))
    assert other.rate.record == pytest.approx(loop.rate.record, nan_ok=True)
    assert other.rate.steps == 8


@most
def test_a_graph_counts_its_replays(max_rate):
    """20 replays of a captured step are 20 steps."""
    outcomes = []
    for captured in (False, True):
        loop = Loop(adamw(capturable=True, foreach=True), max_rate=max_rate)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                loop()
        torch.cuda.current_stream().wait_stream(stream)
        step = loop
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loop()
            step = graph.replay
        rates = []
        for number in range(20):
            loop.draw(number)
            step()
            rates.append(loop.rate.record["rate"])
        assert loop.rate.steps == 23
        outcomes.append((rates, loop.weights()))
    (rates, weights), (replayed, others) = outcomes
    assert replayed == pytest.approx(rates, rel=1e-3, abs=1e-6)
    torch.testing.assert_close(others, weights, rtol=1e-3, atol=1e-4)
    assert len(set(rates)) > 1


def test_a_step_that_the_loss_scaler_skips_is_not_counted():
    loop = Loop(adamw(fused=True))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    for number in range(8):
        loop.optimizer.zero_grad()
        bad = torch.full((), float("inf") if number == 4 else 1.0, device="cuda")
        scaler.scale(loop.loss(loop.x, loop.y) * bad).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    assert loop.rate.steps == 7
    assert all(bool(p.isfinite().all()) for p in loop.net.parameters())


@most
@pytest.mark.parametrize("mode", ["sequence", "parts"])
def test_a_resumed_run_is_an_uninterrupted_one(mode, max_rate):
    """Bit by bit, 40 steps after the checkpoint."""

    def run(loop, numbers):
        for number in numbers:
            loop.draw(number)
            loop()

    one, other = (Loop(adamw(fused=True), mode, max_rate=max_rate) for _ in range(2))
    run(one, range(20))
    for thing in ("net", "optimizer", "rate"):
        saved = io.BytesIO()
        torch.save(getattr(one, thing).state_dict(), saved)
        saved.seek(0)
        getattr(other, thing).load_state_dict(torch.load(saved, weights_only=True))
    run(one, range(20, 60))
    run(other, range(20, 60))
    assert all(map(torch.equal, one.weights(), other.weights()))
    assert one.rate.record["rate"] == other.rate.record["rate"]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_sums_are_those_of_the_definition(dtype, weighed):
    """Also at odd sizes: within 1e-6 of double precision."""
    from driftrate.adapters.torch.measure import compared
    from driftrate.adapters.torch.metric import Weight

    torch.manual_seed(0)
    like, names = torch.zeros((), device="cuda"), ("square", "product", "apart", "whole")
    shapes = SHAPES
    new, old = ([torch.randn(s, device="cuda", dtype=dtype) for s in shapes] for _ in range(2))
    moments = [torch.rand(shape, device="cuda", dtype=dtype) for shape in shapes]
    weights = [Weight(moment, 1e-3, 0.5) if weighed else None for moment in moments]
    sums = compared(new, old, like, weights, 0.25, wanted=names)
    wide = dict.fromkeys(names, 0.0)
    for ours, theirs, v in zip(new, old, moments, strict=True):
        a, b = ours.double(), theirs.double()
        over = 0.5 / (v.double().sqrt() + 1e-3) if weighed else torch.ones_like(a)
        pairs = ((a, a), (a, b), (a - b / 4, a - b / 4), (a + b, a + b))
        for name, (x, y) in zip(names, pairs, strict=True):
            wide[name] += float((over * x * y).sum())
    for name in names:
        assert float(sums[name]) == pytest.approx(wide[name], abs=1e-6 * wide["square"])


@pytest.mark.parametrize("good", [True, False, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_lead_is_that_of_the_definition(dtype, good):
    """Also at odd sizes: within 1e-6 of double precision, and the averages follow where good."""
    from driftrate.adapters.torch.kernel import takes
    from driftrate.adapters.torch.lead import looked

    torch.manual_seed(0)
    like = torch.zeros((), device="cuda")
    shapes = [*SHAPES, *SHAPES]  # more than one launch looks at
    weights, gradients = (
        [torch.randn(s, device="cuda", dtype=dtype) for s in shapes] for _ in range(2)
    )
    averages = [torch.randn(s, device="cuda") for s in shapes]
    every = [*zip(weights, averages, gradients, strict=True)]
    assert all(takes(one, like.device) for one in (*weights, *averages, *gradients))
    along = sum(float((g.double() * (w.double() - a.double())).sum()) for w, a, g in every)
    size = sum(float(w.double().square().sum()) for w in weights)
    share = 0.02 if good else 0.0
    follow = [torch.lerp(a.double(), w.double(), share).float() for w, a, _ in every]
    told = None if good is None else torch.tensor(good, device="cuda")
    lead, whole = looked(weights, averages, gradients, told, like)
    assert float(lead) == pytest.approx(along, abs=1e-6 * size)
    assert float(whole) == pytest.approx(size, rel=1e-6)
    torch.testing.assert_close(averages, follow, rtol=1e-6, atol=1e-6)


def test_an_update_is_compiled_once_and_changes_nothing():
    from driftrate.adapters.torch.program import Program

    schedule = dr.MeasuredRate(max_rate=1.0, mode="sequence")
    like = torch.zeros((), device="cuda")
    fast, state = Program(schedule, like), schedule.init(like=like)
    torch.manual_seed(0)
    for number in range(100):
        values = 1.0 + torch.rand(2, device="cuda")
        told = dr.Signal(batch_size=64 + number, dim=1e4, grad_sq=values[0], trail=values[1])
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=number > 0):
            fast.update(told)
        expected, state = schedule.update(state, told)
        torch.testing.assert_close(fast.state["rate"], expected, rtol=1e-3, atol=0.0)
    assert fast._compiles


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_a_pool_of_networks_reads_nothing_back(loss):
    """It takes the steps that it takes on the CPU, up to what single precision rounds."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    pools = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)  # the copies draw first weights on their own device
        pools[device] = driftrate.torch.Hedged(net.to(device), loss=loss)
    pools["cuda"].load_state_dict(pools["cpu"].state_dict())
    losses = {device: [] for device in pools}
    for step in range(30):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        y = x[:, :3].argmax(dim=1) if loss == "cross_entropy" else x[:, :3] * x[:, 3:6]
        for device, pool in pools.items():
            batch = x.to(device), y.to(device)
            torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
            losses[device].append(pool.learn(*batch))
            torch.cuda.set_sync_debug_mode("default")
    found, wanted = (torch.stack(losses[device]).cpu() for device in ("cuda", "cpu"))
    assert torch.allclose(found[:10], wanted[:10], rtol=1e-3)
    assert pools["cuda"](x.to("cuda")).device.type == "cuda"
