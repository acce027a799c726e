"""Copies of a network with different rates and memories, mixed: each against its definition."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import driftrate.torch
from driftrate.adapters.torch.hedged import APART, MEMBERS, MIXER
from driftrate.adapters.torch.hedged_copies import FRESH, SPIKE, TINY, Copies
from driftrate.errors import ConfigError, SignalError, StateError

Hedged = driftrate.torch.Hedged
ROWS, DIM = 8, 5


def network(out=1, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(DIM, 6), nn.Tanh(), nn.Linear(6, out)
    return nn.Sequential(*layers).to(dtype)


def batch(step, loss="squared", dtype=torch.float64):
    """A batch whose target turns round after 30 steps."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    score = x @ torch.linspace(-1.0, 1.0, DIM, dtype=torch.float64) * (1 if step < 30 else -1)
    score = score + 0.3 * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    if loss == "cross_entropy":
        return x.to(dtype), torch.bucketize(score, torch.tensor([-0.5, 0.5]).double())
    y = (score > 0).to(dtype) if loss == "binary" else score.to(dtype)
    return x.to(dtype), y


def pool_of(loss="squared", dtype=torch.float64, seed=0, **options):
    return Hedged(network(3 if loss == "cross_entropy" else 1, dtype, seed), loss, **options)


def taught(loss="squared", steps=20, **options):
    pool = pool_of(loss, **options)
    for step in range(steps):
        pool.learn(*batch(step, loss))
    return pool


def bits(pool):
    return {name: value.clone() for name, value in pool.state_dict()["tensors"].items()}


def same(a, b, but=()):
    return {n for n in a if not torch.equal(a[n].nan_to_num(-1), b[n].nan_to_num(-1))} <= {*but}


LOSSES = {
    "squared": lambda s, y: functional.mse_loss(s[:, 0], y),
    "binary": lambda s, y: functional.binary_cross_entropy_with_logits(s[:, 0], y),
    "cross_entropy": functional.cross_entropy,
}


@pytest.mark.parametrize("loss", [*LOSSES, "callable"])
def test_the_same_as_copies_trained_one_by_one(loss):
    """Weights, losses and shares are those of plain modules, autograd and the mixer."""
    rule = LOSSES.get(loss, lambda s, y: functional.smooth_l1_loss(s[:, 0], y))
    pool = pool_of(rule if loss == "callable" else loss)
    nets, seconds = [], []
    for row in pool.copies.weights:
        net = network(3 if loss == "cross_entropy" else 1)
        nn.utils.vector_to_parameters(row.clone(), net.parameters())
        net.usual = 0.0
        nets.append(net)
        seconds.append([torch.zeros_like(p) for p in net.parameters()])
    shares = torch.tensor([1 / rate for rate, _ in MEMBERS], dtype=torch.float64)
    shares, level = shares / shares.sum(), 0.0
    for step in range(60):
        x, y = batch(step, loss)
        scores = [net(x) for net in nets]
        losses = [rule(score, y) for score in scores]
        values, kept = torch.stack(scores).detach(), shares
        if loss == "cross_entropy":
            mixed = torch.einsum("k,krc->rc", shares, values.softmax(-1))
            mean = functional.nll_loss(mixed.log(), y)
        elif loss == "binary":
            mixed = torch.einsum("k,krc->rc", shares, values.sigmoid())
            mean = functional.binary_cross_entropy(mixed[:, 0], y)
        else:
            apart = (values - values.median(0).values).square().mean((1, 2))
            kept = torch.where(apart > APART * apart.sort().values[3], 0.0, shares)
            mixed = torch.einsum("k,krc->rc", kept / kept.sum(), values)
            mean = rule(mixed, y)
        assert torch.allclose(pool(x), mixed, rtol=1e-8)
        assert float(pool.learn(x, y)) == pytest.approx(float(mean), rel=1e-8)
        size = min(float(mean), 10 * level) if level else float(mean)
        level += max(0.01, 1 / (step + 1)) * (size - level)
        unit = 1.0 if loss in ("cross_entropy", "binary") else 2 * level
        shares = MIXER.update(
            shares, torch.stack(losses).detach(), mean, trust=MIXER.trust(mean * 0 + unit / ROWS),
            speed=torch.ones(6), prior=torch.full((6,), 1 / 6, dtype=torch.float64),
            jump=torch.tensor(0.0), broken=torch.zeros(6, dtype=bool),
        )  # fmt: skip
        for net, second, one, (rate, keep) in zip(nets, seconds, losses, MEMBERS, strict=True):
            gradients = torch.autograd.grad(one, list(net.parameters()))
            fans = (DIM, DIM, 6, 6)
            norm = torch.cat([g.reshape(-1) for g in gradients]).norm()
            clipped = min(norm, SPIKE * net.usual) if step else norm
            net.usual += (FRESH if step else 1.0) * (clipped - net.usual)
            with torch.no_grad():
                for p, v, g, fan in zip(net.parameters(), second, gradients, fans, strict=True):
                    g.mul_(clipped / norm)
                    v.mul_(keep).add_(g * g)
                    p.sub_(rate / math.sqrt(3 * fan) * g / (v.sqrt() + TINY))
        assert pool.record["shares"] == pytest.approx(shares.tolist(), rel=1e-7)
        assert pool.record["losses"] == pytest.approx([one.item() for one in losses], rel=1e-7)
    assert pool.record["restarts"] == pool.record["skipped"] == 0
    for row, net in zip(pool.copies.weights, nets, strict=True):
        assert torch.allclose(row, nn.utils.parameters_to_vector(net.parameters()), rtol=1e-7)


def test_the_model_stays_as_it_is_and_the_first_copy_starts_from_it():
    net = network()
    before = copy.deepcopy(net.state_dict())
    pool = Hedged(net, loss="squared")
    rows = pool.copies.weights.clone()
    assert torch.equal(rows[0], nn.utils.parameters_to_vector(net.parameters()))
    assert len({tuple(row.tolist()) for row in rows}) == len(MEMBERS)
    pool.learn(*batch(0))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    kept = Hedged(net, loss="squared", fresh=False).copies.weights
    assert torch.equal(kept, kept[:1].expand_as(kept))


def test_what_is_frozen_is_shared_and_what_is_tied_stays_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight
            self.head = nn.Linear(4, 1)
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(self.second(self.first(x).tanh()))

    net = Tied()
    pool = Hedged(net, loss="squared")
    assert pool.copies.weights.shape == (len(MEMBERS), 16 + 4)
    x = torch.randn(ROWS, 4)
    assert torch.allclose(pool.copies.scores(x)[0], net(x), atol=1e-6)
    loss = pool.learn(x, x[:, 0])
    for _ in range(40):
        now = pool.learn(x, x[:, 0])
    assert now < 0.2 * loss


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: nn.BatchNorm1d(4), "BatchNorm1d '1' updates running statistics"),
        (lambda: nn.Dropout(0.1), "Dropout '1' draws random numbers"),
        (lambda: nn.AlphaDropout(0.1), "AlphaDropout '1'"),
        (nn.RReLU, "RReLU '1'"),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)), "'1.0'"),
        (lambda: nn.LSTM(4, 4, 2, dropout=0.2), "LSTM '1' draws"),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), "MultiheadAttention '1.self_attn'"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), "_SpectralNorm '1."),
        (lambda: nn.Embedding(3, 4, max_norm=1.0), "Embedding '1' has max_norm"),
        (lambda: nn.Embedding(3, 4, sparse=True), "Embedding '1' has sparse gradients"),
        (lambda: nn.FractionalMaxPool2d(2, 3), "FractionalMaxPool2d '1'"),
        (lambda: nn.LazyLinear(4), "LazyLinear '1' has no weights yet"),
        (lambda: nn.DataParallel(nn.Linear(4, 4)), "DataParallel '1' wraps a model"),
        (lambda: nn.Linear(4, 4).double(), "of one dtype"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_cannot_be_stacked_is_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named):
        Hedged(nn.Sequential(nn.Linear(3, 4), make()), loss="squared")


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(4).eval(),
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.Dropout(0.0),
        lambda: nn.LayerNorm(4),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 4, 2), nn.Flatten()),
        nn.PReLU,
    ],
)
def test_what_can_be_stacked_is_taken(make):
    net = nn.Sequential(nn.Linear(DIM, 4), make(), nn.Linear(4, 1)).double()
    net[1].training = make().training  # `.double()` keeps it, a container's own mode does not
    x, y = batch(0)
    pool = Hedged(net, loss="squared")
    assert torch.allclose(pool.copies.scores(x)[0], net(x))
    assert math.isfinite(pool.learn(x, y))


class Stray(nn.Module):
    """What no list foresees: state that changes in the pass, or random numbers."""

    def __init__(self, how):
        super().__init__()
        self.how, self.linear = how, nn.Linear(DIM, 1, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        out = self.linear(x)
        if self.how == "in place":
            self.seen.mul_(0.9).add_(out.detach().mean())
        if self.how == "counted":
            self.seen += 1
        if self.how == "assigned":
            self.seen = 0.9 * self.seen + x.mean()
        return functional.dropout(out, 0.5) if self.how == "random" else out


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("in place", "Stray '1' cannot be stacked"),
        ("counted", "'1"),
        ("assigned", "the buffer '1.seen' changes"),
        ("random", "Stray '1' cannot be stacked"),
    ],
)
def test_what_no_list_foresees_is_refused_at_the_first_batch(how, named):
    pool = Hedged(nn.Sequential(nn.Identity(), Stray(how)), loss="squared")
    with pytest.raises(ConfigError, match=named):
        pool.learn(*batch(0))


def test_a_buffer_that_counts_is_refused_by_a_prediction_too():
    pool = Hedged(nn.Sequential(nn.Identity(), Stray("counted")), loss="squared")
    with pytest.raises(ConfigError, match=r"the buffer '1\.seen' changes"):
        pool(batch(0)[0])


def test_an_error_of_the_caller_is_told_as_it_is():
    pool = pool_of()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pool.learn(torch.zeros(4, DIM + 1).double(), torch.zeros(4))
    with pytest.raises(SignalError, match=r"scores are \(8, 1\) and y is \(8, 2\)"):
        pool.learn(batch(0)[0], torch.zeros(ROWS, 2))
    with pytest.raises(SignalError, match="whole numbers y"):
        pool_of("cross_entropy").learn(*batch(0))
    with pytest.raises(SignalError, match="scalar"):
        pool_of(lambda s, y: s[:, 0] - y).learn(*batch(0))
    with pytest.raises(SignalError, match="with rows"):
        pool.learn(torch.zeros(0, DIM), torch.zeros(0))
    with pytest.raises(ConfigError, match="loss must be"):
        Hedged(network(), loss="mse")
    with pytest.raises(ConfigError, match="not a torch module"):
        Hedged([network()], loss="squared")
    with pytest.raises(ConfigError, match="requires_grad"):
        Hedged(network().requires_grad_(False), loss="squared")
    assert math.isfinite(pool.learn(*batch(0)))


@pytest.mark.parametrize("loss", [*LOSSES])
def test_a_copy_that_explodes_leaves_at_once_and_restarts(loss):
    pool, (x, y) = taught(loss), batch(20, loss)
    largest = max(range(6), key=lambda k: pool.record["shares"][k])
    others = [k for k in range(6) if k != largest]
    wanted = taught(loss)
    # Its scores overflow: what it says is not a number.
    pool.copies.weights[largest] = 1e200
    pool.copies.weights[largest, -3:] = -torch.inf
    for k in others:
        assert torch.equal(pool.copies.weights[k], wanted.copies.weights[k])
    mixed = pool(x)
    assert torch.isfinite(mixed).all()
    shares = torch.tensor(pool.record["shares"])
    assert math.isfinite(pool.learn(x, y))
    after = pool.record
    assert after["restarts"] == 1
    assert after["shares"][largest] < 0.01 * float(shares[largest])
    assert sum(after["shares"]) == pytest.approx(1.0)
    best = max(range(6), key=lambda k: after["shares"][k])
    assert torch.equal(pool.copies.weights[largest], pool.copies.weights[best])
    assert torch.equal(pool.copies.second[largest], pool.copies.second[best])
    assert torch.isfinite(pool.copies.weights).all()


def test_an_absurd_loss_is_an_explosion_too():
    pool = taught()
    pool.copies.weights[2] *= 1e3
    usual = float(taught().learn(*batch(20)))
    loss = float(pool.learn(*batch(20)))
    assert pool.record["restarts"] == 1
    assert pool.record["shares"][2] < 1e-3
    assert loss < 2 * usual, "the copy was left out of the prediction before it was known"


def test_a_batch_that_is_not_finite_is_left_out():
    pool = taught()
    before = bits(pool)
    x, y = batch(20)
    broken = x.clone()
    broken[3, 1] = torch.nan
    for _ in range(3):
        assert not math.isfinite(pool.learn(broken, y))
        assert not math.isfinite(pool.learn(x, y * torch.inf))
    assert same(before, bits(pool), but=("skipped", "losses", "loss"))
    assert pool.record["skipped"] == 6
    # Rows that are finite are predicted as ever.
    assert torch.isnan(pool(broken)).nonzero().tolist() == [[3, 0]]
    good = [k for k in range(ROWS) if k != 3]
    assert torch.allclose(pool(broken)[good], pool(x)[good])


def test_all_start_again_where_no_copy_is_finite_on_finite_data():
    pool, start = taught(), pool_of()
    pool.copies.weights.fill_(1e200)
    pool.copies.weights[:, -1] = torch.inf
    pool.learn(*batch(20))
    assert pool.record["restarts"] == 0
    pool.learn(*batch(21))
    assert pool.record["restarts"] == len(MEMBERS)
    assert pool.record["shares"] == start.record["shares"]
    assert torch.equal(pool.copies.weights, start.copies.weights[:1].expand(6, -1))
    assert math.isfinite(pool.learn(*batch(22)))


def test_one_gradient_a_million_times_too_long_shortens_no_step_for_long():
    pools = taught(steps=25), taught(steps=25)
    for pool, size in zip(pools, (1.0, 1e6), strict=True):
        x, y = batch(25)
        pool.learn(x, size * y)
        before = pool.copies.weights.clone()
        pool.learn(*batch(26))
        pool.moved = (pool.copies.weights - before).norm(dim=1)
    usual, after = (pool.moved for pool in pools)
    assert (after > 0.2 * usual).all()


@pytest.mark.parametrize("loss", [*LOSSES])
def test_it_resumes_bit_by_bit(loss):
    whole = taught(loss, 40)
    part = taught(loss, 17)
    file = io.BytesIO()
    torch.save(part.state_dict(), file)
    file.seek(0)
    other = pool_of(loss, seed=5)
    other.load_state_dict(torch.load(file, weights_only=True))
    for step in range(17, 40):
        other.learn(*batch(step, loss))
    assert same(bits(whole), bits(other))
    saved = other.state_dict()["model"]
    assert all(
        torch.equal(saved[n], v) for n, v in network(*other_shape(loss)).state_dict().items()
    )


def other_shape(loss):
    return (3,) if loss == "cross_entropy" else (1,)


def test_a_state_of_another_pool_is_refused():
    pool = taught(steps=1)
    saved = pool.state_dict()
    with pytest.raises(StateError, match="version 9"):
        pool.load_state_dict({**saved, "version": 9})
    with pytest.raises(StateError, match="'binary'"):
        pool.load_state_dict({**saved, "loss": "binary"})
    with pytest.raises(StateError, match="another model"):
        Hedged(network(2), loss="squared").load_state_dict(saved)
    with pytest.raises(StateError, match=r"another model: .* of torch.float64"):
        pool_of(dtype=torch.float32).load_state_dict(saved)
    with pytest.raises(StateError, match="state_dict"):
        pool.load_state_dict({"weights": 1})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype_follows_the_model(dtype):
    pool = pool_of(dtype=dtype)
    losses = [float(pool.learn(*batch(step, dtype=dtype))) for step in range(30)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert pool.copies.weights.dtype == pool(batch(0, dtype=dtype)[0]).dtype == wide
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_rows_of_sequences_and_ignored_labels():
    """Scores (rows, classes, places): labels marked -100 count for nothing, as in torch."""
    net = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    pool = Hedged(net, loss="cross_entropy")
    x = torch.randn(ROWS, 4)
    y = torch.stack([x[:, 0] > 0, x[:, 1] > 0], dim=1).long()
    y[:4, 1] = -100
    chances = pool(x)
    assert chances.shape == (ROWS, 3, 2)
    assert torch.allclose(chances.sum(1), torch.ones(ROWS, 2))
    want = functional.nll_loss(chances.log(), y)
    assert float(pool.learn(x, y)) == pytest.approx(float(want), rel=1e-5)
    assert float(pool.learn(x, torch.full_like(y, -100))) == 0.0
    assert pool.record["restarts"] == pool.record["skipped"] == 0


def test_the_record_and_the_notice_of_a_shift():
    pool = taught(steps=29)
    record = pool.record
    keeps = [keep for _, keep in MEMBERS]
    memory = sum(p / (1 - k) for p, k in zip(record["shares"], keeps, strict=True))
    assert record["memory"] == pytest.approx(memory)
    assert record["rate"] == pytest.approx(
        sum(p * r for p, (r, _) in zip(record["shares"], MEMBERS, strict=True))
    )
    assert (record["steps"], record["skipped"], record["restarts"]) == (29, 0, 0)
    before = bits(pool)
    pool.notify_shift("decay", decay=0.25)
    after = [0.25 * p + 0.75 / 6 for p in record["shares"]]
    assert pool.record["shares"] == pytest.approx(after)
    pool.notify_shift()
    assert pool.record["shares"] == pytest.approx([1 / 6] * 6)
    assert same(before, bits(pool), but=("shares",))
    pool.notify_shift("keep", moments="decay")
    assert torch.equal(pool.copies.second, 0.5 * before["second"])
    with pytest.raises(ConfigError, match="policy must be"):
        pool.notify_shift("forget")


class Unread(TorchDispatchMode):
    """Fails where a tensor's number is read on the host, as a busy accelerator would wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss", [*LOSSES])
def test_nothing_is_read_back_on_an_accelerator(loss, monkeypatch):
    """Where asking is not free the step takes another way, to the same weights."""
    known = taught(loss, 40)
    monkeypatch.setattr(Copies, "_knows", lambda self, certain: False)
    pool = taught(loss, 2)
    with Unread():
        for step in range(2, 40):
            pool.learn(*batch(step, loss))
    assert same(bits(known), bits(pool))


def test_it_beats_as_many_coin_bettors_averaged():
    """Six COCOBs with other first weights are an ensemble too: their loss is 1.1 times the pool's
    at least, on a target that is drawn anew every 50 steps."""
    from parameterfree import COCOB

    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in MEMBERS]
    optimizers = [COCOB(net.parameters()) for net in nets]
    pool = Hedged(nets[0], loss="squared")
    target, ours, theirs = torch.zeros(10), 0.0, 0.0
    for step in range(200):
        target = torch.randn(10) if step % 50 == 0 else target
        x = torch.randn(16, 10)
        y = (x @ target).tanh() + 0.1 * torch.randn(16)
        scores = [net(x)[:, 0] for net in nets]
        theirs += functional.mse_loss(torch.stack(scores).mean(0), y).item()
        for score, optimizer in zip(scores, optimizers, strict=True):
            optimizer.zero_grad()
            functional.mse_loss(score, y).backward()
            optimizer.step()
        ours += pool.learn(x, y).item()
    assert 1.1 * ours < theirs
