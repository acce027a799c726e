"""Pursuit as a citizen of torch: what it keeps, what it refuses, and what does not disturb it."""

from __future__ import annotations

import copy
import io
import pickle
import statistics

import pytest

torch = pytest.importorskip("torch")

import gloo_ranks  # noqa: E402
from pursued import BATCH, batch, everything, loss_of, network, pursuit, same, train  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import driftrate.torch  # noqa: E402
from driftrate.errors import ConfigError, StateError  # noqa: E402

Pursuit = driftrate.torch.Pursuit


def through_a_file(state):
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_resumed_run_is_an_uninterrupted_one(dtype):
    """Bit by bit, and in single precision, though torch casts a state to its parameter's dtype."""
    net = network(dtype=dtype)
    optimizer = pursuit(net)
    train(net, optimizer, range(20))
    other = network(seed=1, dtype=dtype)
    resumed = pursuit(other)
    other.load_state_dict(through_a_file(net.state_dict()))
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert same(everything(net, optimizer), everything(other, resumed))
    for one, more in ((net, optimizer), (other, resumed)):
        train(one, more, range(20, 40))
    assert same(everything(net, optimizer), everything(other, resumed))
    for p, state in resumed.state.items():
        assert {state[name].dtype for name in ("law", "square", "trail", "lead")} == {torch.float32}
        assert ("rest" in state) == (p.dtype in (torch.bfloat16, torch.float16))


def test_a_state_moves_between_precisions():
    wide = network()
    optimizer = pursuit(wide)
    train(wide, optimizer, range(5))
    short = network(dtype=torch.bfloat16)
    other = pursuit(short)
    other.load_state_dict(optimizer.state_dict())
    train(short, other, range(5, 8))
    back = pursuit(wide)
    back.load_state_dict(other.state_dict())
    assert all("rest" not in state for state in back.state.values())
    train(wide, back, range(8, 10))


def test_short_weights_keep_what_they_drop():
    """Steps below the last bit of a weight add up."""
    p = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = Pursuit([p], lr=1e-3, weight_decay=0.0)
    for _ in range(100):
        p.grad = torch.ones_like(p)
        before = p.detach().clone()
        optimizer.step()
    whole = p.float() + optimizer.state[p]["rest"].float()
    wide = torch.nn.Parameter(torch.ones(4, 4))
    other = Pursuit([wide], lr=1e-3, weight_decay=0.0)
    for _ in range(100):
        wide.grad = torch.ones_like(wide)
        other.step()
    assert torch.equal(p, before)  # one step is too short to be seen
    torch.testing.assert_close(whole, wide, rtol=0.0, atol=0.1 * float((1 - wide).max().detach()))


def test_a_state_of_another_optimizer_is_refused():
    net = network()
    adam = torch.optim.Adam(net.parameters())
    train(net, adam, range(2))
    optimizer = pursuit(net)
    with pytest.raises(StateError, match="parameter 0 is not of Pursuit"):
        optimizer.load_state_dict(adam.state_dict())
    train(net, optimizer, range(2))
    saved = optimizer.state_dict()
    saved["state"][2]["trail"] = torch.zeros(3, 3)
    with pytest.raises(
        StateError, match=r"trail of parameter 2 is of shape \(3, 3\), not \(24, 24\)"
    ):
        pursuit(network()).load_state_dict(saved)


def spoiled(saved, name, value):
    """Return a saved state with another value in one place, None for none."""
    state = copy.deepcopy(saved)
    place = state["param_groups"][0] if name in ("lr", "weight_decay") else state["state"][2]
    if value is None:
        del place[name]
    elif callable(value):
        place[name] = value(place[name])
    else:
        place[name] = value
    return state


def one_of(number, at=1):
    def change(tensor):
        changed = tensor.clone()
        changed.view(-1)[at] = number
        return changed

    return change


FIELDS = ["law", "square", "trail", "lead"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("names", "value", "words"),
    [
        (FIELDS, None, "parameter 2 has no {}"),
        (
            [*FIELDS, "rest"],
            one_of(float("nan")),
            "{} of parameter 2 holds a number that is not fin",
        ),
        ([*FIELDS, "rest"], one_of(-float("inf")), "{} of parameter 2 holds a number that is not"),
        (["square", "law"], one_of(-1.0, 2), "{} of parameter 2 holds a number that is .* below 0"),
        (FIELDS, torch.Tensor.double, "{} of parameter 2 is float64, not float32"),
        (FIELDS, torch.Tensor.half, "{} of parameter 2 is float16, not float32"),
        (["rest"], torch.Tensor.float, "rest of parameter 2 is float32, not of 16 bits"),
        ([*FIELDS, "rest"], torch.Tensor.tolist, r"{} of parameter 2 is \[.*, not a tensor"),
        ([*FIELDS, "rest"], lambda t: t[:-1], r"{} of parameter 2 is of shape .*, not \("),
        (["lr", "weight_decay"], None, "{} of group 0 is None"),
        (["lr", "weight_decay"], float("nan"), "{} of group 0 is nan: it must be finite"),
        (["lr", "weight_decay"], torch.tensor(float("inf")), r"{} of group 0 is tensor\(inf\)"),
        (["lr", "weight_decay"], torch.ones(2), r"{} of group 0 is tensor\(\[1"),
        (["lr", "weight_decay"], -1.0, "{} of group 0 is -1.0"),
        (["lr", "weight_decay"], "fast", "{} of group 0 is 'fast'"),
    ],
)
def test_a_damaged_state_is_refused_at_load(names, value, words, dtype):
    net = network(dtype=dtype)
    optimizer = pursuit(net)
    train(net, optimizer, range(3))
    saved, before = optimizer.state_dict(), everything(net, optimizer)
    for name in names:
        if name == "rest" and dtype == torch.float32:
            continue
        with pytest.raises(StateError, match=words.format(name)):
            optimizer.load_state_dict(spoiled(saved, name, value))
        assert same(before, everything(net, optimizer))
    optimizer.load_state_dict(saved)


def test_a_state_tells_its_version():
    net = network()
    optimizer = pursuit(net)
    train(net, optimizer, range(2))
    saved = optimizer.state_dict()
    assert saved["version"] == 1
    with pytest.raises(StateError, match="of version 2; this driftrate reads version 1"):
        optimizer.load_state_dict({**saved, "version": 2})
    del saved["version"]  # as of 0.1.0
    optimizer.load_state_dict(saved)
    with pytest.raises(StateError, match="not of an optimizer"):
        optimizer.load_state_dict(saved["state"])


@pytest.mark.parametrize("twice", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike(twice):
    net = network()
    optimizer = pursuit(net, sample_every=7)
    train(net, optimizer, range(10))
    both = twice((net, optimizer))
    assert both[1]._every == 7
    train(net, optimizer, range(10, 15))
    train(*both, range(10, 15))
    assert same(everything(net, optimizer), everything(*both))


class NothingIsRead(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read back"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fast", [True, False])
def test_nothing_is_read_back_after_the_first_step(fast, monkeypatch):
    from driftrate.adapters.torch import pursuit_move, pursuit_step

    if not fast:
        monkeypatch.setattr(pursuit_move, "_way", lambda *_: pursuit_step)
    net = network()
    optimizer = pursuit(net, lr=torch.tensor(1.0))
    train(net, optimizer, range(1))
    loss_of(net, 1).backward()
    with NothingIsRead():
        optimizer.step()
        optimizer.record  # noqa: B018
        optimizer.notify_shift()
        with pytest.raises(AssertionError, match="read back"):
            torch.ones(()).item()


def test_a_rate_may_be_a_tensor_and_be_scheduled():
    outcomes = []
    for lr in (0.5, torch.tensor(0.5)):
        net = network()
        optimizer = pursuit(net, lr=lr)
        half = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        for step in range(9):
            train(net, optimizer, [step])
            half.step()
        assert float(optimizer.param_groups[0]["lr"]) == 0.0625
        outcomes.append(everything(net, optimizer))
    assert same(*outcomes)
    still = network()
    before = everything(still, pursuit(still))
    train(still, pursuit(still, lr=0.0), range(3))
    assert same(before, [p.detach() for p in still.parameters()])


def test_a_closure_is_called_once_and_its_loss_returned():
    net, other = network(), network()
    one, two = pursuit(net), pursuit(other)
    calls = []

    def closure():
        one.zero_grad()
        loss = loss_of(net, len(calls))
        loss.backward()
        calls.append(loss.detach())
        return loss

    losses = [float(one.step(closure).detach()) for _ in range(5)]
    assert losses == train(other, two, range(5))
    assert len(calls) == 5
    assert same(everything(net, one), everything(other, two))


def test_a_step_that_the_loss_scaler_skips_leaves_all_as_it_was():
    net = network()
    optimizer = pursuit(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for step in range(6):
        optimizer.zero_grad()
        bad = float("inf") if step == 4 else 1.0
        scaler.scale(loss_of(net, step) * bad).backward()
        before = everything(net, optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert same(before, everything(net, optimizer)) == (step == 4)
    other = network()
    plain = pursuit(other)
    train(other, plain, [0, 1, 2, 3, 5])
    for a, b in zip(everything(net, optimizer), everything(other, plain), strict=True):
        torch.testing.assert_close(a, b)


def test_groups_may_be_added_and_parameters_be_without_gradient():
    net = network()
    optimizer = Pursuit(net[0].parameters())
    train(net, optimizer, range(10))
    scale = {p: float(state["law"][3]) for p, state in optimizer.state.items()}
    optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.5})
    frozen = torch.nn.Parameter(torch.ones(50, 50))
    optimizer.add_param_group({"params": [frozen]})
    train(net, optimizer, range(10, 15))
    steps = [
        [float(optimizer.state[p]["law"][0]) for p in g["params"]] for g in optimizer.param_groups
    ]
    assert steps == [[15.0, 15.0], [5.0, 5.0], [0.0]]
    assert all(float(optimizer.state[p]["law"][3]) == value for p, value in scale.items())
    assert set(optimizer.state[frozen]) == {"law"}  # no memory for what does not move
    assert bool((frozen == 1).all())


def test_a_late_vector_takes_the_size_of_first_weights():
    """Not of what the weights have become."""
    net = network()
    optimizer = Pursuit([net[0].weight, net[2].weight])
    train(net, optimizer, range(3))
    with torch.no_grad():
        net[0].weight.mul_(100.0)
        net[2].weight.mul_(100.0)
    optimizer.add_param_group({"params": [net[0].bias]})
    train(net, optimizer, range(3, 4))
    first = [float(optimizer.state[layer.weight]["law"][3]) for layer in (net[0], net[2])]
    assert float(optimizer.state[net[0].bias]["law"][3]) == min(first)


def test_rows_of_an_embedding_count_their_own_visits():
    """Sparse gradients move as dense ones, and a row that rests is as it was."""
    outcomes = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=sparse)
        optimizer = Pursuit(table.parameters())
        first = table.weight.detach().clone()
        for step in range(30):
            optimizer.zero_grad()
            rows = torch.tensor([0, 0, 1 + step % 2])
            (table(rows) * torch.randn(3, 4)).sum().backward()
            optimizer.step()
        outcomes.append(everything(table, optimizer))
    assert same(*outcomes)
    assert torch.equal(table.weight[3:], first[3:])
    late = table.weight.detach()[9].clone()
    optimizer.zero_grad()
    table(torch.tensor([9, 0])).sum().backward()
    optimizer.step()
    moved = (table.weight.detach()[9] - late).abs()
    _, rate, _, scale, share, *_ = optimizer.state[table.weight]["law"].tolist()
    # The first visit, whenever it is, is a whole step, but for the share of the way back.
    whole = 0.3 * scale * 2.718281828**rate * (1 - share * (1 - 1 / 30))
    assert moved.tolist() == pytest.approx([whole] * 4, rel=0.05)


@pytest.mark.parametrize(
    ("params", "options", "words"),
    [
        (
            [torch.zeros(2), torch.zeros(3, 2, dtype=torch.complex64)],
            {},
            r"parameter 1 of shape \(3, 2\) is complex64",
        ),
        ([torch.zeros(4, dtype=torch.int64)], {}, r"parameter 0 of shape \(4,\) is int64"),
        ([torch.zeros(2)], {"lr": -1.0}, "lr must be finite and not negative, got -1.0"),
        ([torch.zeros(2)], {"lr": float("nan")}, "lr must be finite"),
        ([torch.zeros(2)], {"lr": torch.ones(2)}, r"tensor of shape \(2,\)"),
        ([torch.zeros(2)], {"weight_decay": -0.1}, "weight_decay must be finite and not negative"),
        ([torch.zeros(2)], {"sample_every": 0}, "sample_every must be None or at least 1, got 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(params, options, words):
    with pytest.raises(ConfigError, match=words):
        Pursuit(params, **options)


def test_a_refused_group_leaves_the_others():
    optimizer = Pursuit([torch.zeros(2), torch.zeros(2)])
    with pytest.raises(ConfigError, match=r"parameter 2 .* is int32"):
        optimizer.add_param_group({"params": [torch.zeros(1, dtype=torch.int32)]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match="maximize"):
        Pursuit([torch.zeros(2)], maximize=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_changed_from_outside_stay_changed(dtype):
    net = network(dtype=dtype)
    optimizer = pursuit(net)
    train(net, optimizer, range(50))
    with torch.no_grad():
        net[2].weight[3] = 0.0
        net[2].bias[3] = 7.0
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert bool((net[2].weight[3] == 0).all())
    assert float(net[2].bias[3].detach()) == 7.0


def late_loss(seed, factor=1.0):
    """Return the mean loss of steps 230 to 300, the gradient of step 60 taken so many times."""

    def spoil(step, net):
        if step == 60:
            for p in net.parameters():
                p.grad.mul_(factor)

    net = network(seed)
    return statistics.mean(train(net, pursuit(net), range(300), seed, spoil)[230:])


@pytest.fixture(scope="module")
def undisturbed():
    return [late_loss(seed) for seed in range(3)]


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e6])
def test_one_bad_gradient_freezes_nothing(factor, undisturbed):
    """200 steps later the loss is within 1.2 of the undisturbed run's."""
    ratios = [late_loss(seed, factor) / loss for seed, loss in enumerate(undisturbed)]
    assert statistics.geometric_mean(ratios) < 1.2
    assert max(ratios) < 1.5


def test_coordinates_that_are_not_finite_are_skipped():
    net = network()
    optimizer = pursuit(net)
    train(net, optimizer, range(5))
    loss_of(net, 5).backward()
    weight = net[2].weight
    weight.grad[0, 0], weight.grad[0, 1], weight.grad[0, 2] = float("nan"), float("inf"), 1e30
    before = [weight.detach().clone(), optimizer.state[weight]["square"].clone()]
    optimizer.step()
    for old, new in zip(before, (weight, optimizer.state[weight]["square"]), strict=True):
        assert torch.equal(new[0, :3], old[0, :3])
        assert bool((new[1:] != old[1:]).any())
    assert all(bool(t.isfinite().all()) for t in everything(net, optimizer))


def test_vanishing_gradients_make_no_leaps():
    """The square of 1e-25 is 0 in single precision."""
    p = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = Pursuit([p], weight_decay=0.0)
    for size in (1e-25, 1e-21, 1e-18, 1e-30):
        p.grad = torch.full_like(p, size)
        optimizer.step()
    assert float((p - 1).abs().max().detach()) < 0.3


def falls(net, steps=range(200), make=pursuit, loss=loss_of):
    losses = []
    optimizer = make(net)
    for step in steps:
        optimizer.zero_grad()
        one = loss(net, step)
        one.backward()
        optimizer.step()
        losses.append(float(one.detach()))
    return statistics.mean(losses[-30:]) / statistics.mean(losses[:30])


def test_zero_matrices_move():
    """As LoRA's: the product of a drawn and a zero matrix, beside frozen weights."""

    class Lowered(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.base = torch.nn.Linear(6, 1)
            self.base.requires_grad_(False)
            self.down = torch.nn.Parameter(torch.randn(3, 6) * 6**-0.5)
            self.up = torch.nn.Parameter(torch.zeros(1, 3))

        def forward(self, x):
            return self.base(x) + x @ self.down.T @ self.up.T

    def loss(net, step):
        x, _ = batch(step)
        return torch.nn.functional.mse_loss(net(x), x[:, :1] - x[:, 2:3])

    net = Lowered()
    start = net.base.weight.clone()
    assert falls(net, range(300), loss=loss) < 0.2
    assert torch.equal(net.base.weight, start)


def test_normalised_batches_serve():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU()
    assert falls(torch.nn.Sequential(*layers, torch.nn.Linear(32, 1)), range(300)) < 0.6


def test_the_batch_size_may_change_midway():
    def loss(net, step):
        return loss_of(net, step, size=4 if step < 100 else 256)

    assert falls(network(), range(300), loss=loss) < 0.35


def test_it_serves_from_pretrained_weights():
    """Nothing that was learnt is lost at the start: the loss stays near what it was."""
    net = network()
    train(net, pursuit(net), range(600))
    rested = statistics.mean(train(net, pursuit(net, lr=0.0), range(600, 640)))
    tuned = train(net, pursuit(net), range(600, 900))
    assert statistics.mean(tuned[:60]) < 3 * rested
    assert statistics.mean(tuned[-60:]) < 1.2 * rested


def test_weight_decay_is_by_the_length_of_a_step():
    p, v = (torch.nn.Parameter(torch.ones(4, 4)[:n].squeeze(0)) for n in (4, 1))
    bare = copy.deepcopy([p, v])
    for params, decay in (([p, v], 0.5), (bare, 0.0)):
        for one in params:
            one.grad = torch.ones_like(one)
        Pursuit(params, weight_decay=decay).step()
    torch.testing.assert_close((bare[0] - p).detach(), torch.full((4, 4), 0.5 * 0.3 * 0.1))
    assert torch.equal(v, bare[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_has_no_gradient_stays_as_it_is(dtype):
    """Bit by bit: no decay, no momentum and no bet moves it, nor what a short float dropped."""
    torch.manual_seed(0)
    table, other = (torch.nn.Parameter(torch.randn(512, 32).to(dtype)) for _ in range(2))
    optimizer = Pursuit([table, other], weight_decay=0.5)

    def steps(size, others=True):
        for _ in range(20):
            table.grad, other.grad = torch.zeros_like(table), None
            table.grad[:size] = torch.randn(size, 32)
            if others:
                other.grad = torch.randn_like(other)
            optimizer.step()

    steps(512)
    for state in optimizer.state.values():
        state["law"][4:6] = 0.7
    first = table.detach().clone()
    before = optimizer.state[table]["lead"].clone(), other.detach().clone()
    steps(4, others=False)
    assert bool((table[:4] != first[:4]).all())
    assert torch.equal(table[4:], first[4:])
    assert torch.equal(optimizer.state[table]["lead"][4:], before[0][4:])
    assert torch.equal(other, before[1])
    optimizer.state[table]["law"][4:6] = 0.7
    first = table.detach().clone()
    steps(0, others=False)
    assert torch.equal(table, first)


def test_a_shift_that_is_told_lets_rates_rise():
    net = network()
    optimizer = pursuit(net)
    train(net, optimizer, range(50))
    states = list(optimizer.state.values())
    for state, log in zip(states, (-1.0, 0.5, -0.2, 0.0, -0.1, 0.3), strict=True):
        state["law"][1] = log
    scales = [float(state["law"][3]) for state in states]
    kept = everything(net, optimizer)
    optimizer.notify_shift("keep")
    assert same(kept, everything(net, optimizer))
    optimizer.notify_shift()
    assert [state["law"].tolist() for state in states] == [
        [0.0, pytest.approx(max(log, 0.0)), 0.0, scale, 0.0, 0.0, 0.0]
        for log, scale in zip((-1.0, 0.5, -0.2, 0.0, -0.1, 0.3), scales, strict=True)
    ]
    assert not any(bool(state[name].any()) for state in states for name in ("trail", "lead"))
    assert all(bool(state["square"].any()) for state in states)
    with pytest.raises(ConfigError, match='policy must be "keep" or "reset", got \'decay\''):
        optimizer.notify_shift("decay")


@pytest.mark.parametrize("seed", range(3))
def test_a_shift_that_is_told_is_followed_faster(seed):
    """After a long rest on one linear function another one is to be learned."""
    found = []
    for told in (False, True):
        draw = torch.Generator().manual_seed(seed)
        net = network(seed)
        optimizer = pursuit(net)
        losses = []
        for step in range(1100):
            if step in (0, 1000):
                target = torch.randn(6, 1, generator=draw)
            if step == 1000 and told:
                optimizer.notify_shift()
            x = torch.randn(BATCH, 6, generator=draw)
            y = x @ target + 0.5 * torch.randn(BATCH, 1, generator=draw)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        found.append(statistics.mean(losses[1000:]))
    assert found[1] < 0.8 * found[0]


@pytest.mark.parametrize(("dtype", "bytes_a_weight"), [(torch.float32, 12), (torch.bfloat16, 14)])
def test_the_state_is_as_small_as_told(dtype, bytes_a_weight):
    net = torch.nn.Linear(64, 64, bias=False, dtype=dtype)
    optimizer = pursuit(net)
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    (state,) = optimizer.state.values()
    kept = sum(value.nbytes for name, value in state.items() if name != "law")
    assert kept == bytes_a_weight * net.weight.numel()
    assert state["law"].numel() == 7


def test_the_record_has_a_mean_of_each_group():
    net = network()
    optimizer = Pursuit([{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    assert bool(optimizer.record["rate"].isnan().all())
    train(net, optimizer, range(3))
    for p, log in zip(net[0].parameters(), (0.2, -0.4), strict=True):
        optimizer.state[p]["law"][1] = log
        optimizer.state[p]["law"][4] = 0.5 - log
    record = optimizer.record
    assert float(record["share"][0]) == pytest.approx(0.6)
    assert float(record["rate"][0]) == pytest.approx(2.718281828**-0.1)
    assert float(record["memory"][0]) == pytest.approx(100 * 2.718281828**0.2)
    assert record["rate"].shape == record["memory"].shape == (2,)
    assert bool(record["learning"].isnan())
    assert not any(value.requires_grad for value in record.values())


def test_the_rate_of_learning_is_that_of_the_line():
    """On ½(w - 1)² a step of δ has ρ = δ/(1 - w); gradients and random numbers stay."""
    p = torch.nn.Parameter(torch.zeros(1, 1))
    optimizer = Pursuit([p], weight_decay=0.0, sample_every=2)
    calls = []

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = 0.5 * (p - 1).square().sum()
        loss.backward()
        calls.append(float(torch.rand(())))
        return loss

    for step in range(4):
        before, grad = float(p.detach()), float(p.detach()) - 1
        optimizer.step(closure)
        assert float(p.grad) == pytest.approx(grad)
        if step % 2 == 0:
            wanted = (float(p.detach()) - before) / (1 - before)
            assert float(optimizer.record["learning"]) == pytest.approx(wanted, rel=1e-4)
            assert calls.pop() == calls[-1]  # the same random numbers
    assert len(calls) == 4
    torch.manual_seed(0)
    draws = [float(torch.rand(())) for _ in range(4)]
    torch.manual_seed(0)
    calls.clear()
    for _ in range(4):
        optimizer.step(closure)
    assert calls[::3][0] == draws[0]
    assert sorted(set(calls)) == sorted(draws)


def test_a_sampled_step_is_the_step():
    outcomes = []
    for every in (None, 3):
        net = network()
        optimizer = pursuit(net, sample_every=every)
        for step in range(10):

            def closure(step=step, net=net, optimizer=optimizer):
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                return loss

            optimizer.step(closure)
        outcomes.append(everything(net, optimizer))
        learning = float(optimizer.record["learning"])
    assert same(*outcomes)
    assert 0 < learning < 5


def test_ranks_agree(tmp_path):
    """Bit by bit, and with one process that sees the whole batch but for rounding."""
    ended = gloo_ranks.start("pursued_child.py", tmp_path, 2, 20)
    assert [one.code for one in ended] == [0, 0], gloo_ranks.report(ended)
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert same(one, other)
    net = network()
    train(net, pursuit(net), range(20))
    for p, q in zip(net.parameters(), one, strict=False):
        torch.testing.assert_close(q, p.detach(), rtol=1e-3, atol=1e-4)
