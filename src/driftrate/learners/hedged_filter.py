"""HedgedFilter: a pool of memories. Forgetting filters and SGD copies, their forecasts mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftrate.errors import ConfigError, SignalError
from driftrate.learners import densities, forgetting
from driftrate.learners.memories import MIXERS, Members, members, stay
from driftrate.learners.mixer import Mixer
from driftrate.schedules import _checks, _codec
from driftrate.schedules.base import State

Floats = NDArray[np.float64]

# Tuned as the members are.
TOP = 0.1  # how much evidence counts between mixers
AFTER = 0.9  # of the shares goes to the member that tracks, where a mixer heeds jumps
NOISE_ROWS = 500.0  # memory of the noise, and of how sure the intervals were
SURE = 4.0  # deviations of a batch's mean square from which on it is a jump
SLOW = 0.01  # weight of the newest curvature, once a hundred were seen
SLACK = 2.0  # times the rate that this batch's curvature alone would allow
STRETCH, SHRINK, SHORTEST = 0.05, 0.99, 5.0  # of the shortest memory, in octaves
HALVES = 4  # how often a step is halved that raised the loss of its own batch
PIECE, NUMBERS = (
    64,
    2_000_000,
)  # rows, and numbers in an array, of one step: more are learned in pieces
_LEAST = 1e-12  # of the chance of a class
_TINY = 1e-300


@dataclass(frozen=True)
class HedgedFilter:
    r"""A pool of linear models that remember for different times; no constants to choose.

    Members are forgetting filters (recursive least squares; for classes their Newton form) and
    SGD copies. They differ in how many rows they remember, per feature, from 2 to all; in how
    strongly weights are held at 0; in whether the intercept, a feature that is constant, has a
    quick memory of its own; and one forgets at once when a batch contradicts it. Each forecasts
    every row, and the pool forecasts

        Σ_j w_j Σ_k p_jk f_k(x),

    with f_k a mean or the chances of the classes, p_j the shares of a mixer j and w those of the
    mixers. The evidence is the log score of each row: of classes log p, of numbers that of
    Student's t with 5 degrees of freedom around the mean, of scale s_k² (1 + xᵀ A_k⁻¹ x), with s_k²
    measured. Mixers differ in how much evidence counts and how much share is dealt out equally a
    step, from 1/t, which fades at rest, to a fifth; they are mixed by the log score of the mixtures
    they make, with a share of 1/t.

    *Guards.* A forecast far outside the targets seen so far is left out of the mean. A step of a
    class filter that raises the loss of its own batch is halved. A member that is not finite starts
    anew. The shortest memory shrinks while it carries more than half of the pool.

    *Size.* With d features a filter has a matrix d x d (classes: (Kd)²). With over 500 weights
    matrices are block diagonal, by classes and then by features, and with over 100,000 there are
    four members in place of fourteen: a state and a step take less than 200 MB up to a
    million weights.

    *Features* should be of similar size, and one of them constant if there is to be an intercept
    (`driftrate.sklearn.ShiftRegressor` does both). States are NumPy arrays in float64.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> pool = HedgedFilter()
        >>> state = pool.init(3)
        >>> for step in range(200):
        ...     x = rng.standard_normal((16, 3))
        ...     y = x @ np.array([1.0, -2.0, 0.5 if step < 100 else 1.5])
        ...     state = pool.update(state, x, y)
        >>> pool.predict(state, np.eye(3)).round(2).tolist()
        [1.0, -2.0, 1.5]

    Reference:
        Åström and Wittenmark (1995), "Adaptive Control", chapter 11; Herbster and Warmuth (1998),
        "Tracking the best expert"; Zhou and Frank (1996), "Strong tracking filtering of nonlinear
        time-varying stochastic systems with coloured noise", for the member that tracks.
    """

    version: ClassVar[int] = 1
    mixer: ClassVar[Mixer] = Mixer(temper=1.0, leak=0.0, share=1.0)

    @property
    def name(self) -> str:
        """The learner's name."""
        return type(self).__name__

    def init(self, dim: int, classes: int | None = None) -> State:
        """Return a pool that knows nothing: it predicts 0, or the same chance for each class.

        Args:
            dim: d, the number of features.
            classes: K, the number of classes, or None for numbers.

        Returns:
            A dictionary of arrays.
        """
        dim = _checks.count("HedgedFilter.init: dim", dim)
        if classes is not None:
            classes = _checks.count("HedgedFilter.init: classes", classes, low=2)
        outputs = classes if classes is not None and classes > 2 else 1
        who, mixers = members(dim * outputs), len(MIXERS.temper)
        state = {
            "weights": np.zeros((who.count, outputs, dim)),
            "info": forgetting.start(dim, outputs, who.prior, joint=outputs > 1),
            "shares": np.full((mixers, who.count), 1.0 / who.count),
            "mixers": np.full(mixers, 1.0 / mixers),
            "noise": np.zeros(who.count),
            "constant": np.full(dim, np.nan),
            "range": np.array([inf, -inf]),
            "sureness": densities.start(NOISE_ROWS / 10.0),
        }
        numbers = ("rows", "steps", "along", "curved", "shorter", "classes")
        return (
            state
            | {name: np.asarray(0.0) for name in numbers}
            | {"classes": np.asarray(float(classes or 0))}
        )

    def predict(self, state: State, x: ArrayLike) -> Floats:
        """Return the forecasts of rows.

        Args:
            state: The pool.
            x: Features (rows, dim).

        Returns:
            Means (rows,), or the chances of the classes (rows, K).
        """
        x = _rows(state, x)
        shares, classes = self.shares(state), int(state["classes"])
        scores = _scores(state["weights"], x)
        if classes:
            mixed: Floats = np.tensordot(shares, _chances(scores, classes), 1)
            return mixed
        return _mean(scores[..., 0], shares, state["range"])

    def interval(self, state: State, x: ArrayLike, coverage: float = 0.9) -> Floats:
        """Return the limits between which the targets of rows will lie.

        They are quantiles of the mixture of densities, at the chances that would have left the
        right part of the last few hundred targets outside.

        Args:
            state: A pool for numbers.
            x: Features (rows, dim).
            coverage: The part of the targets that shall lie inside, in (0, 1).

        Returns:
            Lower and upper limits (2, rows); infinite ones before the first update.
        """
        if int(state["classes"]):
            raise ConfigError("HedgedFilter.interval is for numbers; this pool forecasts classes")
        if not 0.0 < coverage < 1.0:
            raise ConfigError(f"coverage must be between 0 and 1, got {coverage!r}")
        x = _rows(state, x)
        if state["steps"] == 0:
            return np.multiply.outer(np.array([-inf, inf]), np.ones(len(x)))
        tail = 0.5 * densities.outside(state["sureness"], coverage)
        chances = np.array([tail, 1.0 - tail])
        pieces = []
        for part in _pieces(state, len(x)):
            _, inner = forgetting.gains(state["info"], x[part])
            spread = _spread(state, inner)
            centre = _scores(state["weights"], x[part])[..., 0]
            scale = _scale(state["noise"], spread)
            pieces.append(densities.quantiles(centre, scale, self.shares(state), chances))
        return np.concatenate(pieces, axis=1)

    def shares(self, state: State) -> Floats:
        """Return what each member has in the mixture, (members,)."""
        shares: Floats = state["mixers"] @ state["shares"]
        return shares

    def memory(self, state: State) -> float:
        """Return how many past rows the pool believes in now, the mean over members by shares.

        A filter believes in those that it has not forgotten; an SGD copy at a rate of 2^-o of the
        fastest stable one in as many as 2^o batches.
        """
        who, rows = _who(state), float(state["rows"])
        limits = who.memory * state["weights"].shape[-1]
        limits[-1] *= 2.0 ** -float(state["shorter"])
        batch = rows / max(float(state["steps"]), 1.0)
        limits = np.concatenate([limits, batch * 2.0**who.octaves])
        with np.errstate(invalid="ignore"):
            left = np.where(np.isinf(limits), rows, limits * -np.expm1(-rows / limits))
        return float(self.shares(state) @ left)

    def transform(self, state: State, scale: ArrayLike, shift: ArrayLike) -> State:
        """Return the same pool for features that are measured in other units from now on.

        Forecasts stay as they are; weights and information move: z' = Mz, θ' = M⁻ᵀθ, A' = MAMᵀ.

        Args:
            state: The pool.
            scale: z'_i = scale_i z_i + shift_i z_0, (dim,), not 0; 1 for the first feature.
            shift: (dim,); 0 for the first feature, which is the constant one.
        """
        scale, shift = np.asarray(scale, dtype=np.float64), np.asarray(shift, dtype=np.float64)
        dim = state["weights"].shape[-1]
        if scale.shape != (dim,) or shift.shape != (dim,) or not np.all(scale != 0):
            raise ConfigError(f"scale and shift must be {dim} numbers each, no scale of 0")
        if scale[0] != 1 or shift[0] != 0:
            raise ConfigError("the first feature is the constant one: scale 1, shift 0")
        weights = state["weights"] / scale
        weights[..., 0] -= weights @ shift
        info = forgetting.transform(state["info"], scale, shift)
        constant = state["constant"] * scale + shift * state["constant"][0]
        return {**state, "weights": weights, "info": info, "constant": constant}

    def widen(self, state: State, dim: int | None = None, classes: int | None = None) -> State:
        """Return the same pool with more features, which come last, or more classes.

        Forecasts stay as they are but for the chance that a new class takes, which is that of a
        score of 0.

        Args:
            state: The pool; it is not modified.
            dim: How many features there shall be; as many as there are if None.
            classes: How many classes; as many as there are if None.
        """
        known, (_, outputs, wide) = int(state["classes"]), state["weights"].shape
        dim = wide if dim is None else _checks.count("HedgedFilter.widen: dim", dim, low=wide)
        if classes is not None:
            classes = _checks.count("HedgedFilter.widen: classes", classes, low=max(known, 1))
        if known == 0 and classes:
            raise ConfigError("HedgedFilter.widen: a pool for numbers has no classes")
        new = {**state, **self.init(dim, classes or known or None)}
        old, who = _who(state), _who(new)
        kept = list(range(old.count)) if old.count == who.count else stay()
        filters = kept[: len(who.memory)]
        weights = state["weights"][kept]
        if outputs == 1 < new["weights"].shape[1]:
            weights = np.concatenate([-0.5 * weights, 0.5 * weights], axis=1)
        new["weights"][:, : weights.shape[1], :wide] = weights
        sizes = (outputs, wide), new["weights"].shape[1:]
        new["info"] = forgetting.widen(state["info"][filters], *sizes, who.prior)
        shares = state["shares"][:, kept]
        new["shares"] = shares / shares.sum(axis=1, keepdims=True)
        new["noise"] = state["noise"][kept]
        new["constant"] = np.concatenate([state["constant"], np.zeros(dim - wide)])
        same = ("mixers", "range", "sureness", "rows", "steps", "along", "curved", "shorter")
        return new | {name: state[name] for name in same}

    @np.errstate(all="ignore")  # what is not finite is found, and starts anew
    def update(
        self, state: State, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None
    ) -> State:
        """Learn from rows, which come after all those before.

        Args:
            state: The pool; it is not modified.
            x: Features (rows, dim).
            y: Targets (rows,): numbers, or classes 0, ..., K - 1.
            weights: How often each row counts (rows,); once if None.

        Returns:
            The next state.
        """
        x = _rows(state, x)
        y = _targets(state, y, len(x))
        weight = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
        if weight.shape != y.shape or not np.all((weight >= 0) & (weight < inf)):
            raise SignalError(f"weights must be {len(x)} finite numbers >= 0")
        for part in _pieces(state, len(x)):
            if weight[part].sum() > 0:
                state = self._step(state, x[part], y[part], weight[part])
        return state

    def _step(self, state: State, x: Floats, y: Floats, weight: Floats) -> State:
        who, old, filters = _who(state), state["weights"], len(_who(state).memory)
        classes, rows, older = (
            int(state["classes"]),
            float(weight.sum()),
            float(state["steps"]) + 1.0,
        )
        same = np.isnan(state["constant"])
        constant = np.where(same, x[0], state["constant"])
        constant = np.where(np.all(x == constant, axis=0), constant, 0.0)
        new = {**state, "constant": constant, "steps": state["steps"] + 1.0}
        new["rows"] = state["rows"] + rows
        keep = _keep(state, who, constant, rows)
        info = forgetting.forget(state["info"], keep, who.prior)
        scores = _scores(old, x)
        found: Any = (_classes if classes else _numbers)(new, who, info, scores, x, y, weight)
        moved, logs, slope, curve, jump = found
        if classes:
            mixed = np.log(np.maximum(state["shares"] @ np.exp(logs), _LEAST))
        else:
            shares = self.shares(state)
            away = state["shares"] @ scores[..., 0] - y
            mixed = densities.log_density(away, np.sqrt(shares @ new["scale"] ** 2))
            new["sureness"] = _sureness(state, new.pop("scale"), scores[..., 0], shares, y, weight)
        copies = _descend(new, old[filters:], slope[filters:], curve, x, weight, who.octaves, older)
        weights = np.concatenate([moved, copies])
        broken = ~(np.isfinite(weights.sum(axis=(1, 2))) & np.isfinite(logs.sum(axis=1)))
        if broken.any():
            _restart(new, who, weights, broken)
            logs = np.where(broken[:, None], -inf, logs)
        new["weights"] = weights
        self._mix(new, logs, mixed, weight, broken, jump and bool(who.tracks.any()), older)
        carries = self.shares(new)[filters - 1] > 0.5
        shorter = float(state["shorter"])
        shorter = min(shorter + STRETCH, SHORTEST) if carries else SHRINK * shorter
        new["shorter"] = np.asarray(shorter)
        return new

    def _mix(
        self,
        new: State,
        logs: Floats,
        mixed: Floats,
        weight: Floats,
        broken: NDArray[np.bool_],
        jump: bool,
        older: float,
    ) -> None:
        """Move the shares by the log scores of the rows, (members, rows)."""
        shares, mixers = new["shares"], new["mixers"]
        best = logs.max(axis=0)
        best = np.where(np.isfinite(best), best, 0.0)
        logs = np.where(broken[:, None], -inf, logs - best)
        after = np.full(shares.shape[1], 1.0 / shares.shape[1])
        heeds = MIXERS.heeds * 0.0
        if jump:
            tracks = np.flatnonzero(_who(new).tracks)
            after *= 1.0 - AFTER
            after[tracks] += AFTER / len(tracks)
            heeds = MIXERS.heeds
        fade = 1.0 / (older + 1.0)
        new["shares"] = self.mixer.update(
            shares,
            -np.where(broken, 0.0, np.where(broken[:, None], 0.0, logs) @ weight),
            0.0,
            trust=MIXERS.temper,
            speed=np.maximum(MIXERS.share, fade)[:, None],
            prior=after,
            jump=heeds,
            broken=broken,
        )
        new["mixers"] = self.mixer.update(
            mixers,
            -(mixed @ weight),
            0.0,
            trust=np.asarray(TOP),
            speed=np.asarray([fade]),
            prior=mixers,
            jump=np.asarray(0.0),
            broken=np.zeros(len(mixers), dtype=bool),
        )

    def dump(self, state: State) -> dict[str, Any]:
        """Return the state as a JSON-ready dictionary that `load` restores bit by bit."""
        return _codec.dump(cast(Any, self), state)

    def load(self, saved: Mapping[str, Any]) -> State:
        """Restore a state from what `dump` returned, equal bit by bit."""
        return _codec.load(cast(Any, self), saved, None)

    def _start(self) -> State:
        """Return what `load` takes for the keys of a state."""
        return dict.fromkeys(self.init(1), 0.0)


def _who(state: State) -> Members:
    return members(state["weights"][0].size)


def _pieces(state: State, rows: int) -> list[slice]:
    """Return slices of rows that one step can hold."""
    most = max(1, min(PIECE, NUMBERS // state["weights"].size))
    return [slice(start, start + most) for start in range(0, rows, most)]


def _rows(state: State, x: ArrayLike) -> Floats:
    rows, dim = np.asarray(x, dtype=np.float64), state["weights"].shape[-1]
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise SignalError(f"HedgedFilter needs rows (rows, {dim}), got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise SignalError("HedgedFilter needs finite features, got NaN or infinity")
    return rows


def _targets(state: State, y: ArrayLike, rows: int) -> NDArray[Any]:
    targets, classes = np.asarray(y), int(state["classes"])
    if targets.shape != (rows,):
        raise SignalError(f"HedgedFilter needs {rows} targets, got shape {targets.shape}")
    numbers = targets.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise SignalError("HedgedFilter needs finite targets, got NaN or infinity")
    if not classes:
        return numbers
    labels = numbers.astype(np.int64)
    if not np.all((labels == numbers) & (labels >= 0) & (labels < classes)):
        raise SignalError(f"HedgedFilter needs classes 0 to {classes - 1}, got {targets[:5]!r}")
    return labels


def _scores(weights: Floats, x: Floats) -> Floats:
    """Return the scores of all members, (members, rows, outputs)."""
    count, outputs, dim = weights.shape
    flat = (x @ weights.reshape(-1, dim).T).reshape(len(x), count, outputs)
    scores: Floats = flat.swapaxes(0, 1)
    return scores


def _chances(scores: Floats, classes: int) -> Floats:
    """Return the chances of the classes, (..., rows, classes); all the same where not finite."""
    if classes == 2:
        one = 0.5 * (1.0 + np.tanh(0.5 * scores))
        chances = np.concatenate([1.0 - one, one], axis=-1)
    else:
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
    return np.where(np.isfinite(chances), chances, 1.0 / classes)


def _mean(scores: Floats, shares: Floats, limits: Floats) -> Floats:
    """Return the mixture of forecasts, without those further out than targets ever were."""
    low, high = 2.0 * limits - limits[::-1]
    if not low <= high:  # nothing was seen
        return np.zeros(scores.shape[1])
    inside = (scores >= low) & (scores <= high)
    if inside.all():
        mean: Floats = shares @ scores
        return mean
    kept = np.where(inside, shares[:, None], 0.0)
    total = kept.sum(axis=0)
    mean = np.einsum("kn,kn->n", kept, np.where(inside, scores, 0.0)) / np.where(
        total > 0, total, 1.0
    )
    return np.where(total > 0, mean, np.clip(np.nan_to_num(scores[0]), low, high))


def _keep(state: State, who: Members, constant: Floats, rows: float) -> Floats:
    """Return κ, what each filter keeps of each weight's information over some rows."""
    memory = who.memory * constant.size
    memory[-1] *= 2.0 ** -float(state["shorter"])
    slow, quick = np.exp(-rows / memory), np.exp(-rows / np.minimum(who.level, memory))
    keep: Floats = np.where(constant != 0.0, quick[:, None], slow[:, None])
    return keep


def _spread(state: State, inner: Floats) -> Floats:
    """Return the variance of each member's score, in units of the noise; that of copies is 0."""
    spread = np.zeros((len(state["noise"]), inner.shape[-1]))
    spread[: len(inner)] = np.einsum("...ii->...i", inner)[:, 0]
    return spread


def _scale(noise: Floats, spread: Floats) -> Floats:
    """Return the scale of Student's t, (members, rows)."""
    scale: Floats = np.sqrt(noise[:, None] * (1.0 + spread))
    return scale


def _numbers(new, who, info, scores, x, y, weight):  # type: ignore[no-untyped-def]
    residual, filters = scores[..., 0] - y, len(info)
    first, rows = float(new["steps"]) == 1.0, float(weight.sum())
    found = forgetting.gains(info, x)
    spread = _spread(new, found[1])
    square, within = residual**2, spread
    noise = (square / (1.0 + spread)) @ weight / rows if first else new["noise"]
    # A target that can be foretold without an error leaves noise of rounding.
    noise = np.maximum(noise, _LEAST * np.abs(y).max() ** 2 + _TINY)
    jump = False
    if not first:
        usual = 1.0 + spread[:filters] @ weight / rows
        sizes = square[:filters] / noise[:filters, None]
        told = densities.surprise(sizes / usual[:, None]) @ weight / rows
        leaps = who.tracks & (told > 1.0 + SURE / sqrt(rows))
        jump = bool(leaps.any())
        if jump:
            # With A divided by (above - 1)/(usual - 1) the batch would be as usual.
            above = sizes @ weight / rows
            fade = np.where(leaps, np.minimum((usual - 1.0) / (above - 1.0), 1.0), 1.0)
            fade = np.broadcast_to(fade[:, None], (filters, x.shape[1]))
            info = forgetting.forget(info, fade, who.prior)
            found = forgetting.gains(info, x)
            within = _spread(new, found[1])
    steps, new["info"] = forgetting.step(
        info, x, (residual[:filters] * weight)[:, None], weight, found
    )
    new["scale"] = _scale(noise, spread)
    logs = densities.log_density(residual, new["scale"])
    share = max(1.0 / float(new["steps"]), min(rows / NOISE_ROWS, 1.0))
    told = densities.surprise(square / (noise[:, None] * (1.0 + within))) @ weight / rows
    new["noise"] = noise * (1.0 + share * (told - 1.0))
    limits = new["range"]
    new["range"] = np.array([min(limits[0], y.min()), max(limits[1], y.max())])
    return new["weights"][:filters] - steps, logs, residual[..., None], np.ones((len(x), 1)), jump


def _sureness(
    state: State, scale: Floats, centre: Floats, shares: Floats, y: Floats, weight: Floats
) -> Floats:
    """Return the tally of how far out targets were."""
    if state["steps"] == 0:
        return cast(Floats, state["sureness"])
    left = np.exp(-weight.sum() / NOISE_ROWS)
    found = densities.halvings(centre, scale, shares, y)
    tally: Floats = left * state["sureness"] + densities.tally(found, weight)
    return tally


def _classes(new, who, info, scores, x, y, weight):  # type: ignore[no-untyped-def]
    classes, filters, index = int(new["classes"]), len(info), np.arange(len(y))
    chances = _chances(scores, classes)
    logs = np.log(np.maximum(chances[:, index, y], _LEAST))
    slope = chances[..., 1:] - y[:, None] if classes == 2 else chances - np.eye(classes)[y]
    curve = chances[..., -slope.shape[2] :] * (1.0 - chances[..., -slope.shape[2] :])
    pulled = slope[:filters].swapaxes(1, 2) * weight
    if forgetting.joint(info):
        steps, new["info"] = forgetting.step_joint(info, x, pulled, chances[:filters], weight)
    else:
        held = np.maximum(curve[:filters], forgetting.LEAST * (1.0 - forgetting.LEAST))
        held = held.swapaxes(1, 2) * weight
        steps, new["info"] = forgetting.step(info, x, pulled, held, forgetting.gains(info, x))
    before = logs[:filters] @ weight
    for _ in range(HALVES):
        after = _chances(_scores(new["weights"][:filters] - steps, x), classes)[:, index, y]
        worse = np.log(np.maximum(after, _LEAST)) @ weight < before
        if not worse.any():
            break
        steps = np.where(worse[:, None, None], 0.5 * steps, steps)
    return new["weights"][:filters] - steps, logs, slope, curve[filters], False


def _descend(new, copies, slope, curve, x, weight, octaves, older):  # type: ignore[no-untyped-def]
    rows = weight.sum()
    gradients = (slope.swapaxes(1, 2) * weight) @ x / rows
    u = gradients[0]
    bent = ((x @ u.T) * curve * weight[:, None]).T @ x / rows
    length = float(np.vdot(u, u))
    along, curved = float(np.vdot(bent, u)), float(np.vdot(bent, bent))
    share = max(1.0 / older, SLOW)
    if along > 0 and np.isfinite(curved):
        new["along"] = new["along"] + share * (along / length - new["along"])
        new["curved"] = new["curved"] + share * (curved / length - new["curved"])
    rate = float(new["along"]) / max(float(new["curved"]), _TINY)
    if along > 0:
        rate = min(rate, SLACK * along / curved)
    return copies - rate * 2.0 ** -octaves[:, None, None] * gradients


def _restart(new: State, who: Members, weights: Floats, broken: NDArray[np.bool_]) -> None:
    """Let members that are not finite start from the prior."""
    filters = len(who.memory)
    weights[broken] = 0.0
    new["noise"] = np.where(
        broken, np.median(new["noise"][~broken]) if (~broken).any() else 0.0, new["noise"]
    )
    begin = forgetting.start(
        weights.shape[2], weights.shape[1], who.prior, joint=forgetting.joint(new["info"])
    )
    lost = broken[:filters].reshape(-1, *(1,) * (begin.ndim - 1))
    new["info"] = np.where(lost, begin, new["info"])
