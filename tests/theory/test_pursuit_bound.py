"""docs/pursuit_bound.md: the regret of the optimizer as it is shipped, on convex streams."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from driftrate import theory
from driftrate.adapters import _pursuit as law
from driftrate.errors import ConfigError
from driftrate.optax import pursuit

DIM, BATCH, STEPS, SEEDS, LR = 6, 8, 1500, 4, 0.7
CONSTANTS = {"keep": law.KEEP, "spike": law.SPIKE}


def targets(kind, rng):
    """Weights and offset that the labels are made with, (seeds, steps, DIM + 1)."""
    if kind == "jumps":
        path = rng.standard_normal((SEEDS, STEPS // 250, DIM + 1))
        return np.repeat(path, 250, axis=1)
    walk = 0.05 * rng.standard_normal((SEEDS, STEPS, DIM + 1))
    walk[:, 0] = rng.standard_normal((SEEDS, DIM + 1))
    return np.cumsum(walk, axis=1)


def losses(kind):
    def squared(w, x, y):
        return jnp.mean((x @ w["kernel"][0] + w["bias"] - y) ** 2) / 2

    def logistic(w, x, y):
        out = x @ w["kernel"][0] + w["bias"]
        return jnp.mean(jax.nn.softplus(out) - y * out)

    def linear(w, x, y):
        """Nothing to learn, and equality in the definition of convexity."""
        return jnp.mean(x @ w["kernel"][0] * y)

    return {"squared": squared, "logistic": logistic, "linear": linear}[kind]


def play(loss, kind, *, decay=law.WEIGHT_DECAY, twist=1.0, spikes=True):
    """Train; return all that the bounds ask for, seeds and coordinates first and steps last.

    Args:
        loss: By name.
        kind: Of the path of the targets.
        decay: The optimizer's.
        twist: What its updates are multiplied with: 1 as it is shipped.
        spikes: Whether the inputs of some batches are 30 times larger.
    """
    rng, value = np.random.default_rng(11), losses(loss)
    path = targets(kind, rng)
    x = rng.standard_normal((SEEDS, STEPS, BATCH, DIM))
    if spikes:
        x[:, 100::400] *= 30.0
    out = np.einsum("stbd,std->stb", x, path[..., :-1]) + path[..., -1:]
    y = rng.standard_normal(out.shape)
    y = {"squared": out + y, "logistic": 1.0 * (out + y > 0), "linear": y}[loss]
    optimizer = pursuit(LR, decay)

    def one(x, y, path):
        def split(row):
            return {"kernel": row[None, :-1], "bias": row[-1]}

        def flat(tree):
            return jnp.append(tree["kernel"][0], tree["bias"])

        def step(carry, now):
            w, state = carry
            x, y, u = now
            found, grads = jax.value_and_grad(value)(w, x, y)
            regret = found - value(split(u), x, y)
            updates, after = optimizer.update(grads, state, w)
            # Rows are those of the bias and of the kernel.
            rows = jnp.array([1] * DIM + [0])
            lengths = LR * law.FIRST * (state.law[:, 3] * jnp.exp(state.law[:, 1]))[rows]
            lost = LR * decay * law.decay(jnp, law.Law(*state.law.T))[1]
            moved = optax.apply_updates(w, jax.tree.map(lambda d: twist * d, updates))
            kept = jnp.append(jnp.full(DIM, lost), 0.0)
            lags = [law.Law(*one.law.T).share[rows] * flat(one.lead) for one in (state, after)]
            fast = flat(w) + lags[0], flat(moved) + lags[1]
            return (moved, after), (fast[0], flat(grads), lengths, kept, regret, fast[1], lags[0])

        first = {"kernel": 0.1 * jnp.ones((1, DIM)), "bias": jnp.zeros(())}
        return jax.lax.scan(step, (first, optimizer.init(first)), (x, y, path))[1]

    numbers = [jnp.asarray(a, jnp.float32) for a in (x, y, path)]
    w, g, lengths, kept, regret, after, lags = (
        np.asarray(a, np.float64) for a in jax.jit(jax.vmap(one))(*numbers)
    )
    turn = {name: np.swapaxes(a, 1, 2) for name, a in (("w", w), ("g", g), ("u", path))}
    every = np.concatenate([turn["w"], np.swapaxes(after[:, -1:], 1, 2)], axis=-1)
    return {
        "regret": regret,
        "gradients": turn["g"],
        "lengths": np.swapaxes(lengths, 1, 2),
        "decays": np.swapaxes(kept, 1, 2),
        "weights": every,
        "behind": np.swapaxes(lags, 1, 2),
        "comparators": np.float32(turn["u"]).astype(np.float64),
    }


def by_path(run):
    names = ("gradients", "lengths", "weights", "comparators", "decays")
    grads, lengths, weights, comparators, decays = (run[name] for name in names)
    aims = {"weights": weights, "comparators": comparators, "behind": run["behind"]}
    return theory.pursuit_path(grads, lengths, decays=decays, **aims, **CONSTANTS)


def by_diameter(run):
    u = run["comparators"]
    return theory.pursuit_bound(
        run["gradients"],
        run["lengths"],
        shifts=np.abs(np.diff(u, axis=-1, append=u[..., -1:])),
        diameter=far(run),
        decays=run["decays"],
        reach=np.abs(u - run["behind"]).max(-1),
        behind=run["behind"],
        **CONSTANTS,
    )


def at(run):
    """The weights at which the gradients were taken."""
    return run["weights"][..., :-1] - run["behind"]


def sums(bound):
    """Over coordinates, up to every step."""
    return np.cumsum(bound.per_step.sum(1), axis=-1)


CASES = [(loss, kind) for loss in ("squared", "logistic") for kind in ("jumps", "walk")]


@pytest.fixture(scope="module")
def runs():
    return {case: play(*case) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_regret_is_below_both_bounds_at_every_step(runs, case):
    run = runs[case]
    regret = np.cumsum(run["regret"], axis=-1)
    path, wide = sums(by_path(run)), sums(by_diameter(run))
    near = 1e-4 * np.cumsum(np.abs(run["gradients"] * at(run)).sum(1), axis=-1)
    assert regret[:, -1].min() > 0.0
    assert np.all(regret <= path + near)
    assert np.all(path <= wide + near)


@pytest.mark.parametrize("case", CASES)
def test_the_streams_ask_for_every_term(runs, case):
    path, wide = by_path(runs[case]), by_diameter(runs[case])
    assert all(np.abs(term).sum() > 0.0 for term in (*path, *wide))


@pytest.mark.parametrize("case", CASES)
def test_with_the_weights_it_is_close(runs, case):
    """What decay costs is all that it has above the sum that it bounds."""
    run = runs[case]
    found = run["gradients"] * (at(run) - run["comparators"])
    assert by_path(run).total.sum() <= 1.1 * found.sum()


def test_with_distances_alone_it_says_something_of_jumps_and_nothing_of_walks():
    """Σ D|g| is a bound for whatever stays within D."""
    jumps, walk = (play("squared", kind, spikes=False) for kind in ("jumps", "walk"))
    assert by_diameter(jumps).total.sum() < trivial(jumps)
    assert by_diameter(walk).total.sum() > 2 * trivial(walk)


def trivial(run):
    return np.sum(far(run)[..., None] * np.abs(run["gradients"]))


@pytest.mark.parametrize("case", CASES)
def test_the_ceiling_is_above_the_bound(runs, case):
    run, wide = runs[case], by_diameter(runs[case])
    u, rate = run["comparators"], run["lengths"] / (LR * law.FIRST)
    for place in np.ndindex(u.shape[:2]):
        first, c = rate[(*place, 0)], rate[place] / rate[(*place, 0)]
        ceiling = theory.pursuit_ceiling(
            STEPS,
            gradient=np.abs(run["gradients"][place]).max(),
            least=np.abs(run["gradients"][place][0]),
            length=LR * law.FIRST * first,
            low=c.min(),
            high=c.max(),
            rises=np.maximum(1 - c[:-1] / c[1:], 0).sum(),
            shift=np.abs(np.diff(u[place])).sum(),
            diameter=far(run)[place],
            decay=run["decays"][place].max(),
            reach=np.abs(u[place] - run["behind"][place]).max(),
            behind=np.abs(run["behind"][place]).max(),
            **CONSTANTS,
        )
        assert ceiling >= wide.total[place]


def far(run):
    w, u = run["weights"], run["comparators"]
    return np.maximum(np.abs(w[..., :-1] - u), np.abs(w[..., 1:] - u)).max(-1)


def test_the_rates_stay_in_the_range_that_the_page_names(runs):
    low = ((1 - law.KEEP) * law.REST) ** -0.5
    for run in runs.values():
        c = run["lengths"] / run["lengths"][..., :1]
        assert low * (1 - 1e-5) <= c.min() < c.max() <= law.HIGH * (1 + 1e-5)
        pace = np.maximum(law.PACE, law.FIRST_PACE / np.sqrt(np.arange(1, STEPS)))
        assert np.all(np.abs(np.diff(np.log(c))) <= law.LOUDEST * pace + 1e-5)


def test_without_decay_it_is_an_equality():
    run = play("linear", "walk", decay=0.0)
    found = (run["gradients"] * (at(run) - run["comparators"])).sum(1)
    bound = by_path(run)
    size = np.cumsum(sum(np.abs(term) for term in bound).sum(1), axis=-1)
    assert np.all(np.abs(sums(bound) - np.cumsum(found, axis=-1)) < 1e-4 * size)


@pytest.mark.parametrize(("twist", "loss"), [(-1.0, "squared"), (2.0, "linear")])
def test_another_recursion_breaks_it(twist, loss):
    """The wrong sign; and steps twice as long as they are said to be, where no step is right."""
    run = play(loss, "walk", decay=0.0, twist=twist, spikes=False)
    steps = slice(0, 30)  # the wrong sign runs to infinity
    regret = (run["gradients"] * (at(run) - run["comparators"])).sum(1)
    bound = by_path(run).per_step.sum(1)
    assert np.all(bound[:, steps].sum(-1) < 0.9 * regret[:, steps].sum(-1))


def test_what_stands_still_breaks_the_bound_with_distances_alone():
    """w = 0 and u = -1 under f(w) = w, and no step is taken."""
    steep = np.ones(4000)
    bound = theory.pursuit_bound(steep, 0.01, shifts=0.0, diameter=1.0, **CONSTANTS)
    assert steep.sum() > bound.total


def test_at_rest_with_the_smallest_rate_it_grows_as_the_root_of_the_steps():
    def total(steps):
        t = np.arange(1, steps + 1)
        g = np.random.default_rng(0).choice([-1.0, 1.0], (3, steps))
        c = ((1 - law.KEEP) * np.maximum(law.REST, t / 10)) ** -0.5
        none = np.zeros(steps)
        return theory.pursuit_bound(g, 0.1 * c, shifts=none, diameter=0.5, **CONSTANTS).total

    short, long = total(20_000), total(80_000)
    np.testing.assert_allclose(long / short, 2.0, rtol=0.15)


def test_a_step_without_gradient_costs_nothing():
    """It does not decay either, whatever `decays` says of the others."""
    still = {"weights": [1.0, 0.4, 0.4], "comparators": 0.0}
    bounds = (
        theory.pursuit_path([1.0, 0.0], 0.5, decays=0.1, **still, **CONSTANTS),
        theory.pursuit_bound(
            [1.0, 0.0], 0.5, shifts=0.0, diameter=1.0, decays=0.1, reach=1.0, **CONSTANTS
        ),
    )
    assert [bound.per_step[1] for bound in bounds] == [0.0, 0.0]


def test_a_spike_costs_what_was_clipped_and_no_more():
    grads = np.ones(200)
    grads[100] = 1e6
    terms = theory.pursuit_bound(grads, 0.1, shifts=0 * grads, diameter=2.0, **CONSTANTS)
    usual = np.sqrt(1 - law.KEEP**100)
    np.testing.assert_allclose(terms.clipped[100], 2.0 * (1e6 - law.SPIKE * usual))
    assert np.count_nonzero(terms.clipped) == 1
    plain = theory.pursuit_bound(np.ones(200), 0.1, shifts=0 * grads, diameter=2.0, **CONSTANTS)
    assert (terms.total - terms.clipped.sum()) < 4 * plain.total


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"keep": 1.0}, "keep must be below 1"),
        ({"decays": 1.0}, "decays must be below 1"),
        ({"diameter": -1.0}, "diameter must be"),
    ],
)
def test_bad_inputs(change, told):
    good = {"shifts": 0.0, "diameter": 1.0, **CONSTANTS}
    with pytest.raises(ConfigError, match=told):
        theory.pursuit_bound([1.0], 1.0, **{**good, **change})
    with pytest.raises(ConfigError, match="one entry more"):
        theory.pursuit_path([1.0], 1.0, weights=[1.0], comparators=0.0, **CONSTANTS)
