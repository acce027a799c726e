"""HedgedFilter: a pool of memories. Forgetting filters and SGD copies, their forecasts mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftrate.errors import ConfigError, SignalError
from driftrate.learners import densities, forgetting
from driftrate.learners import hedged_filter_step as steps
from driftrate.learners.memories import MIXERS, UNIT, Members, members, stay
from driftrate.learners.mixer import Mixer
from driftrate.schedules import _checks, _codec
from driftrate.schedules.base import State

Floats = NDArray[np.float64]

# Tuned as the members are.
TOP = 0.1  # how much evidence counts between mixers
AFTER = 0.9  # of the shares goes to the member that tracks, where a mixer heeds jumps
STRETCH, SHRINK, SHORTEST = 0.05, 0.99, 5.0  # of the shortest memory, in octaves
PIECE = 64  # rows in one step: more are learned in pieces
NUMBERS = 2_000_000  # in one array of a step: pieces are smaller where weights are many
OUTLIER = 1e12  # times the usual square of rows or targets: not trusted the first time


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
    measured. Mixers differ in how much evidence counts and in what is dealt out equally every
    16 rows, from 1/t, which fades at rest, to a fifth; they are mixed, with a share of 1/t, by the
    log score of the chances that each forecasts, or of the mean.

    *Guards.* A forecast far outside the targets seen so far is left out of the mean. A step of a
    class filter that raises the loss of its own batch is halved. A member that is not finite starts
    anew. Rows or targets a million times as large as usual are not learned from the first time. The
    shortest memory shrinks while it carries more than half of the pool.

    *Size.* With d features a filter has a matrix d x d (classes: (Kd)²). With over 500 weights
    matrices are block diagonal, by classes and then by features, and with over 100,000 there are
    four members in place of fourteen: up to 700,000 weights a step takes less than 200 MB.

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
            "weights": np.zeros((who.number, outputs, dim)),
            "info": forgetting.start(dim, outputs, who.prior, joint=outputs > 1),
            "shares": np.full((mixers, who.number), 1.0 / who.number),
            "mixers": np.full(mixers, 1.0 / mixers),
            "noise": np.zeros(who.number),
            "remembered": np.zeros(who.number),
            "constant": np.full(dim, np.nan),
            "range": np.zeros(2) if classes else np.array([inf, -inf]),
            "usual": np.zeros(2),
            "sureness": densities.start(steps.NOISE_ROWS / 10.0),
        }
        numbers = ("rows", "steps", "along", "curved", "shorter", "absurd", "stuck")
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
        scores = steps.scores(state["weights"], x)
        if classes:
            mixed: Floats = np.tensordot(shares, steps.chances(scores, classes), 1)
            return mixed
        return steps.mean(scores[..., 0], shares, state["range"])

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
            return np.tile([[-inf], [inf]], (1, len(x)))
        tail = 0.5 * densities.outside(state["sureness"], coverage)
        chances = np.array([tail, 1.0 - tail])
        pieces = []
        for part in _pieces(state, len(x)):
            _, inner = forgetting.gains(state["info"], x[part])
            spread = steps.spread(state["noise"], inner)
            centre = steps.scores(state["weights"], x[part])[..., 0]
            scale = np.sqrt(state["noise"][:, None] * (1.0 + spread))
            pieces.append(densities.quantiles(centre, scale, self.shares(state), chances))
        return np.concatenate(pieces, axis=1)

    def shares(self, state: State) -> Floats:
        """Return what each member has in the mixture, (members,)."""
        shares: Floats = state["mixers"] @ state["shares"]
        return shares

    def memory(self, state: State) -> float:
        """Return how many past rows the pool believes in now, the mean over members by shares.

        A filter remembers r ← κr + n rows after n more, an SGD copy at a rate of 2^-o of the
        fastest stable one r ← (1 - 2^-o) r + n.
        """
        return float(self.shares(state) @ state["remembered"])

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
        kept = list(range(old.number)) if old.number == who.number else stay()
        filters = kept[: len(who.memory)]
        weights = state["weights"][kept]
        if outputs == 1 < new["weights"].shape[1]:
            weights = np.concatenate([-0.5 * weights, 0.5 * weights], axis=1)
        new["weights"][:, : weights.shape[1], :wide] = weights
        sizes = (outputs, wide), new["weights"].shape[1:]
        new["info"] = forgetting.widen(state["info"][filters], *sizes, who.prior)
        shares = state["shares"][:, kept]
        new["shares"] = shares / shares.sum(axis=1, keepdims=True)
        new["noise"], new["remembered"] = state["noise"][kept], state["remembered"][kept]
        new["constant"] = np.concatenate([state["constant"], np.zeros(dim - wide)])
        same = {*new} - {
            *("weights", "info", "shares", "noise", "remembered", "constant", "classes")
        }
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
            state, kept = _screen(state, x[part], y[part], weight[part])
            if kept.any():
                state = self._step(state, x[part][kept], y[part][kept], weight[part][kept])
        return state

    def _step(self, state: State, x: Floats, y: NDArray[Any], weight: Floats) -> State:
        """Take one step with every member, and mix anew."""
        who, old, classes = _who(state), state["weights"], int(state["classes"])
        filters, rows, older = len(who.memory), float(weight.sum()), float(state["steps"]) + 1.0
        constant = _constant(state["constant"], x)
        keep = _keep(who, constant, rows, float(state["shorter"]))
        info = forgetting.forget(state["info"], keep, who.prior)
        scores, shares = steps.scores(old, x), self.shares(state)
        new = {**state, "constant": constant}
        if classes:
            step = steps.classes(info, old[:filters], scores, x, y, weight, classes)
            mixed = np.log(np.maximum(state["shares"] @ np.exp(step.logs), steps.LEAST))
        else:
            centres = scores[..., 0]
            noise = None if older == 1.0 else state["noise"]
            step = steps.numbers(
                info, noise, float(state["stuck"]), centres, x, y, weight, who, older
            )
            away = state["shares"] @ centres - y
            mixed = densities.log_density(away, np.sqrt(shares @ step.scale**2))
            new["noise"], new["stuck"] = step.noise, np.asarray(step.stuck)
            low, high = state["range"]
            new["range"] = np.array([min(low, y.min()), max(high, y.max())])
            if older > 1.0:
                found = densities.halvings(centres, step.scale, shares, y)
                left = np.exp(-rows / steps.NOISE_ROWS)
                new["sureness"] = left * state["sureness"] + densities.tally(found, weight)
        slope, curvature = step.slope[filters:], (float(state["along"]), float(state["curved"]))
        down, curvature = steps.descend(slope, step.curve, x, weight, curvature, older)
        paces = 2.0**-who.octaves
        copies = old[filters:] - paces[:, None, None] * down
        moved = np.concatenate([old[:filters] - step.moved, copies])
        broken = ~np.isfinite(moved.sum(axis=(1, 2)) + step.logs.sum(axis=1))
        if broken.all():  # the batch is at fault: nothing is learned from it
            return state
        new["weights"], new["info"] = moved, step.info
        kept = np.concatenate([keep.max(axis=1) * step.fade, 1.0 - paces])
        new["remembered"] = kept * state["remembered"] + rows
        if broken.any():
            _restart(new, who, broken)
        tracks = who.tracks if step.fade.min() < 1.0 else None
        self._mix(new, step.logs, mixed, weight, broken, tracks, older)
        carries = self.shares(new)[filters - 1] > 0.5
        shorter = float(state["shorter"])
        shorter = min(shorter + STRETCH, SHORTEST) if carries else SHRINK * shorter
        numbers = {"rows": float(state["rows"]) + rows, "steps": older, "shorter": shorter}
        numbers |= {"along": curvature[0], "curved": curvature[1]}
        return new | {name: np.asarray(value) for name, value in numbers.items()}

    def _mix(
        self,
        new: State,
        logs: Floats,
        mixed: Floats,
        weight: Floats,
        broken: NDArray[np.bool_],
        tracks: NDArray[np.bool_] | None,
        older: float,
    ) -> None:
        """Move the shares by the log scores of members, and the mixers by those of mixtures."""
        rows, seen = float(weight.sum()), float(new["rows"])
        shares, mixers, fade = new["shares"], new["mixers"], rows / (seen + 2.0 * rows)
        after, jump = shares, 0.0 * MIXERS.heeds
        if tracks is not None:
            chosen = np.concatenate([tracks, np.zeros(shares.shape[1] - len(tracks), dtype=bool)])
            after = (1.0 - AFTER) / len(chosen) + AFTER / chosen.sum() * chosen
            jump = MIXERS.heeds
        new["shares"] = self.mixer.update(
            shares,
            -(logs @ weight),
            0.0,
            trust=MIXERS.temper,
            speed=np.maximum(1.0 - (1.0 - MIXERS.share) ** (rows / UNIT), fade)[:, None],
            prior=after,
            jump=jump,
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
            broken=~np.isfinite(mixed.sum(axis=1)),
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


def _screen(
    state: State, x: Floats, y: NDArray[Any], weight: Floats
) -> tuple[State, NDArray[np.bool_]]:
    """Return the state with the usual squares of rows and targets, and the rows to learn from.

    Those a million times as large as usual are left out, unless there were such in the last batch.
    """
    kept, absurd = weight > 0.0, False
    if not kept.any():
        return state, kept
    usual = np.where(state["usual"] > 0.0, state["usual"], inf)
    sums = np.array([np.vdot(x, x), np.vdot(y, y)])
    # Where the sum is not too large no row is.
    if not (sums <= OUTLIER * usual).all():
        squares = np.stack([np.einsum("ni,ni->n", x, x), y * y])
        mild = (squares <= OUTLIER * usual[:, None]).all(axis=0)
        absurd = bool((kept & ~mild).any()) and not state["absurd"]
        kept = kept & mild if absurd else kept
        sums = squares[:, kept].sum(axis=1)
    share = max(1.0 / (float(state["steps"]) + 1.0), steps.SLOW)
    mean = state["usual"] + share * (sums / max(len(y), 1) - state["usual"])
    return {**state, "usual": mean, "absurd": np.asarray(float(absurd))}, kept


def _constant(known: Floats, x: Floats) -> Floats:
    """Return the value of each feature that never varied; 0 of those that did, NaN at first."""
    if not known.any():
        return known
    value = np.where(np.isnan(known), x[0], known)
    constant: Floats = np.where((x == value).all(axis=0), value, 0.0)
    return constant


def _keep(who: Members, constant: Floats, rows: float, shorter: float) -> Floats:
    """Return κ, what each filter keeps of each weight's information over some rows."""
    memory = who.memory * constant.size
    memory[-1] *= 2.0**-shorter
    slow, quick = np.exp(-rows / memory), np.exp(-rows / np.minimum(who.level, memory))
    keep: Floats = np.where(constant != 0.0, quick[:, None], slow[:, None])
    return keep


def _restart(new: State, who: Members, broken: NDArray[np.bool_]) -> None:
    """Let members that are not finite start from their prior, with the usual noise."""
    weights, info = new["weights"], new["info"]
    outputs, dim = weights.shape[1:]
    weights[broken] = new["remembered"][broken] = 0.0
    new["noise"] = np.where(broken, np.median(new["noise"][~broken]), new["noise"])
    begin = forgetting.start(dim, outputs, who.prior, joint=outputs > 1)
    lost = broken[: len(info)].reshape(-1, *(1,) * (info.ndim - 1))
    new["info"] = np.where(lost, begin, info)
