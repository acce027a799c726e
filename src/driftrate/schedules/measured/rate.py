"""A rate that needs no constants: it measures signal and noise and follows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from driftrate.errors import ConfigError
from driftrate.schedules import _checks, _scalars
from driftrate.schedules.base import TRAIL, Array, Schedule, Signal, State, counted, real, register
from driftrate.schedules.measured.filter import MODELS, Bank

# Beyond these, squares would leave single precision.
_SMALLEST, _LARGEST = 1e-15, 1e15
_OUTLIER = 1e6  # times the expected square: such a batch is not believed the first time
_SATURATED = 1e12  # the same for a network, which a shift finds with next to no gradient left
_CREDIT = 60.0  # batches that the true dimension is worth, where it is told
_MANY = 512.0  # coordinates, beyond which the true dimension counts for less
_UNKNOWN = 128.0  # the dimension before anything was seen, where it is not
_MOST = 4.0  # times the dimension that would make all noise a multiple of the signal: no more
_KEEP = 0.995  # the share of the past that the effective dimension keeps a step
_SHARE = 0.2  # of a batch's freedom: what its square weighs against the expected one
_FLOOR, _UNIT = 0.03, 0.06  # how fast the additive noise and the unit of drift are forgotten
_RECENT, _SURE = 0.25, 3.0  # the noise of the last batches, and how many deviations it is sure by
_VAGUE = 0.25  # of a mean's square: what may be wrong with a product foretold, beyond its error
_CURVED = 1.6  # L before it was measured, with a deviation of as much
_PRIOR = 1.0 / _CURVED**2
_FAR = 5.0  # deviations, beyond which a larger L makes that guess give way
_FLAT = 0.2  # the least L; without parts 1.6, for noise that persists would hide it
_STEADY = 0.999  # the share of the past that the measurement of L keeps a step
_CAREFUL = 0.125  # of ζ/L: the first step
_USUAL = 4.0  # times the expected square: the longest that a step is while L is not measured
_LOUD = 10.0  # times the noise expected now: products of such a batch may not lower L
# Half the lower degrees of freedom of squares that are not regular, and where a product of parts
# vouches for what they say: without it, too sure a square would confirm what was believed.
_HEAVY, _VOUCHED = 6.0, 12.0
_REGULAR = 0.01  # the belief that squares have a thin tail, before anything was seen
_FADE = 0.01  # a step, its return there
_CALM = 0.05  # a step, the return of trust in the dimension's measurement after a jump


@register
@dataclass(frozen=True)
class MeasuredRate(Schedule):
    r"""The optimal rate, from what the gradients themselves show of signal and noise.

    For a loss of curvature L the step that brings the weights nearest to the optimum is

        η = ζ/L,    ζ = v/(v + N),    v = ‖∇‖²,    N = E‖ξ‖²,

    ∇ the expected gradient and ξ the noise of the batch's. Products of gradients with independent
    noise measure v without bias: `cross` those of parts of a batch; `trail` that of the batch with
    the trail of those before it, h ← 0.9 h + g, whose mean c = ⟨∇, h⟩ follows from v by

        c ← 0.9 c + v - ηL ⟨g, 0.9 h + g⟩,    v ← (1 - ηL)² v + (ηL)² N + q.

    A bank of hypotheses on the drift q (a target that rests, that drifts at one of six speeds, or
    that has just jumped) corrects (v, c) as Kalman filters do, and is believed by how well it
    foretold each product and the gradient's square. The noise is N = κv + s, κ = (D + 1)/B as for
    normal covariates, s that of each hypothesis, D the effective dimension, measured by what was
    not foretold of the products, from batch to batch. Drift and jumps are expected less the
    longer the target rests. The rate acts on this very batch; `lagged` uses the batches before
    alone, as the theorems ask.

    Reads `Signal(batch_size=, dim=, parts=, cross=, spread=, trail=)`; without the parts, in mode
    "sequence", `Signal(batch_size=, dim=, grad_sq=, trail=)`. All but cross and spread, or
    grad_sq, may be left out: the rate then makes do with less.

    Args:
        max_rate: 1/L, the rate at which a gradient without noise would lead straight to the
            optimum; or None to measure L, by how far the product with the trail falls on the way
            of one step. The measurement starts from L = 1.6, as for standardised features, and the
            first step is an eighth of what that says.
        mode: `"parts"`, or `"sequence"` for whole gradients alone.
        lagged: Whether the rate depends on the past alone; its first rate is then 0.
        relative: Whether the rate is a factor on another one, such as Adam's: L is then measured in
            its units and is never below 1, so that the factor is at most 1: a rate that is too
            high is lowered, one that is too low stays so.

    Example:
        >>> import driftrate as dr
        >>> rate = dr.MeasuredRate(max_rate=1.0)
        >>> state = rate.init()
        >>> signal = dr.Signal(batch_size=64, dim=10, parts=2, cross=0.5, spread=0.5)
        >>> for _ in range(20):
        ...     eta, state = rate.update(state, signal)
        >>> 0.3 < eta < 0.7  # half of the gradient's square is signal
        True

    Reference:
        Extends Algorithm 1 of Fahrbach, Javanmard, Mirrokni and Worah (2023) to unknown shift and
        noise; the bank is the interacting multiple model of Blom and Bar-Shalom (1988), IEEE
        Transactions on Automatic Control 33(8).
    """

    max_rate: float | None = None
    mode: Literal["parts", "sequence"] = "parts"
    lagged: bool = False
    relative: bool = False

    version: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if self.max_rate is not None:
            _checks.number(self, "max_rate", low=0.0, high=_LARGEST, open_low=True)
        _checks.choice(self, "mode", ("parts", "sequence"))
        for name in ("lagged", "relative"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"MeasuredRate.{name} must be True or False, got {value!r}")
        if self.relative and self.max_rate is not None:
            raise ConfigError(
                "MeasuredRate: relative=True measures how far the base rate may be used;"
                f" leave out max_rate, got {self.max_rate!r}"
            )

    @property
    def signals(self) -> tuple[str, ...]:
        """The fields of `Signal` that the mode reads."""
        own = ("grad_sq",) if self.mode == "sequence" else ("parts", "cross", "spread")
        return ("batch_size", "dim", *own, "trail")

    @property
    def optional(self) -> frozenset[str]:
        """The fields that it can do without."""
        return frozenset(("batch_size", "dim", "parts", "trail"))

    @classmethod
    def example(cls) -> Self:  # noqa: D102
        return cls(max_rate=1.0)

    def reading(self, fields: Collection[str]) -> MeasuredRate:
        """Return the form for a loop that gives these fields: without parts, the sequence's."""
        return self if {"cross", "spread"} <= {*fields} else replace(self, mode="sequence")

    def _start(self) -> State:
        return Bank.start() | {
            "rate": 0.0,
            "ahead": 0.0,  # ζ of the next one, from the past alone
            "unit": 0.0,  # N, as it was measured
            "recent": 0.0,  # N of the last batches, or of ‖g‖² where it is not seen apart
            "length": 0.0,  # ‖h‖²
            "batch_size": 1.0,
            "seen": 1.0,
            "squares": 1.0 / _UNKNOWN,
            "calm": 0.0,
            "off_trail": 0.0,  # what was not foretold of the last products, in units of their noise
            "off_cross": 0.0,
            "rest": 0.0,
            "doubted": 0.0,
            "spread": 0.0,  # of the last batch
            "regular": _REGULAR,  # the belief that squares have a thin tail
            "foreseen": 0.0,  # what the next product with the trail would be without a step
            "way": 0.0,  # η⟨g, h⟩ of the last step, h the trail after it
            "turned": 0.0,
            "walked": 0.0,
            "count": 0,
        }

    def _step(self, xp: Any, state: State, signal: Signal) -> tuple[Array, State]:
        batch = _Batch.read(xp, self.mode, state, signal)
        if xp is _scalars and batch.first and batch.square == 0.0:
            return state["rate"], state  # it shows nothing, and NumPy would warn of 0/0
        bank = Bank.unpack(xp, state)
        vx = bank.xp
        level = None if self.max_rate is not None else _plain(xp, bank.mean(bank.level))
        scale = _Scale.read(xp, state, batch, signal.dim, level)
        # A larger batch has less noise, at once.
        bank = bank._replace(floor=bank.floor / batch.bigger)
        jump, error, shows = scale.jump(xp, batch.square, _plain(xp, bank.mean(bank.floor)))
        bank = bank.begin(jump, batch.first)
        foretold = _Foretold.of(bank, scale)

        seen = bank
        if batch.trail is not None:
            noise = seen.noise(scale.falls)
            seen = seen.see_along(
                batch.trail,
                noise * (scale.length / scale.dim),
                vx.sqrt(scale.loud(batch.square, seen.level + noise)),
            )
        noise = seen.noise(scale.falls)
        heavy = _HEAVY if batch.cross is None else _VOUCHED
        seen, otherwise, tail = seen.see_square(
            batch.square, noise, 1.0 + scale.falls, scale.freedom, heavy, state["regular"]
        )
        seen = seen.jump(
            jump,
            error,
            shows,
            otherwise,
            state["rest"],
            batch.trail,
            scale.length / scale.dim,
            scale.falls,
        )
        bank = _choose(vx, batch.first, bank, seen)
        if batch.cross is not None:
            noise = bank.noise(scale.falls)
            # Two halves: 4N(N + v)/D; k parts: (2k/(k - 1) N + 4v) N/D. Thrice that, for much of
            # it is in the square too, which was seen already.
            variance = 3.0 * (batch.pairs * noise + 4.0 * bank.level) * noise / scale.dim
            loud = scale.loud(batch.square, bank.level + noise)
            bank = bank.see_level(batch.cross, variance, loud)

        level = _plain(xp, bank.mean(bank.level))
        share = _share(xp, bank, scale)
        used = state["ahead"] if self.lagged else share
        turned, walked = self._turn(xp, state, batch, scale, foretold)
        if self.max_rate is not None:
            rate = used * self.max_rate
        else:
            known = state if self.lagged else {"turned": turned, "walked": walked}
            # A first step that goes too far costs more than one that is short.
            used = xp.where(batch.first, _CAREFUL * used, used)
            if not (self.relative or self.lagged):
                # So does one along a loud batch, while L is a guess for the most part.
                usual = _USUAL * _plain(xp, foretold.level + foretold.noise)
                loud = (batch.square > usual) & (known["walked"] < _PRIOR)
                shorter = (usual / (batch.square + _SMALLEST)) ** 0.5
                used = xp.where(loud, used * shorter, used)
            rate = used * self._top(xp, known["turned"], known["walked"])
        bank, measured = self._measure(xp, state, bank, scale, batch, foretold)
        # Learned at rest: what a jump explains tells nothing of the tail, and where the signal is
        # large a thin one is too sure which part of the square is noise.
        calm = _plain(xp, bank.weight[0] + bank.weight[1])
        tail = state["regular"] + calm * (_plain(xp, tail) - state["regular"])
        tail = xp.where(batch.first, state["regular"], tail + _FADE * (_REGULAR - tail))
        scale = scale._replace(unit=measured["unit"])
        new, length = self._predict(xp, state, bank, scale, batch, used)
        ahead = _share(xp, new, scale) if self.lagged else 0.0 * used
        trail = 0.0 * rate if batch.trail is None else batch.trail
        # The noise of ⟨g, h⟩ itself is in the way of the step too, and would pass for curvature. A
        # network's signal is not followed well enough for that: there it passes, to be safe.
        along = trail if self.relative else _plain(xp, bank.mean(bank.along))
        result: State = (
            new.pack(xp)
            | measured
            | {
                "rate": rate,
                "ahead": ahead,
                "length": length,
                "batch_size": batch.size,
                # Squared: a little doubt does not end a rest.
                "rest": (state["rest"] + 1.0) * (1.0 - (1.0 - calm) ** 2),
                "doubted": 0.0 * used,
                "spread": batch.spread,
                "regular": tail,
                "foreseen": TRAIL * along + (level if batch.cross is None else batch.cross),
                "way": rate * (TRAIL * trail + batch.square),
                "turned": turned,
                "walked": walked,
                "count": counted(state["count"], xp),
            }
        )
        return self._unless(xp, state, batch, scale, foretold, rate, result)

    def _measure(
        self,
        xp: Any,
        state: State,
        bank: Bank,
        scale: _Scale,
        batch: _Batch,
        foretold: _Foretold,
    ) -> tuple[Bank, State]:
        """Return the noise and the sums whose quotient is the effective dimension."""
        vx = bank.xp
        first, count = batch.first, real(xp, state["count"], state["rate"])
        news = _plain(xp, bank.weight[-1])
        spread = spreads = batch.spread
        if self.mode == "sequence":
            # Not the share of noise in it, which would confirm whatever was believed.
            spreads = batch.square - bank.level
            spread = batch.square - _plain(xp, bank.mean(bank.level))
        begin = xp.where(spread > 0.1 * batch.square, spread, 0.1 * batch.square)

        def blend(old: Array, new: Array, least: float) -> Array:
            young = 1.0 / (count + 1.0)
            return old + xp.where(young > least, young, least) * (new - old)

        unit = xp.where(first, begin, blend(scale.unit, spread, _UNIT))
        recent = xp.where(first, begin, blend(scale.recent, batch.spread, _RECENT))
        young = 1.0 / (count + 1.5)
        weight = xp.where(young > _FLOOR, young, _FLOOR)
        target = spreads - scale.falls * bank.level
        # Once it is known, one odd batch must not raise it.
        most = vx.where(count > 20, 10.0 * bank.floor, _LARGEST)
        moved = bank.floor + weight * (1.0 - news) * (_less(vx, target, most) - bank.floor)
        least = 0.9 * (1.0 - weight) * bank.floor
        floor = vx.where(first, 0.25 * begin, vx.where(moved > least, moved, least))
        if not self.relative:
            # After louder times it would be forgotten too slowly. Not so under Adam: a network that
            # is sure of its labels has quiet batches between loud ones.
            doubt = (2.0 * _RECENT / ((2.0 - _RECENT) * scale.freedom)) ** 0.5
            most = (1.0 + _SURE * doubt) * recent
            floor = _less(vx, floor, most)
            if self.mode == "sequence":
                # No more signal than the gradients are long: their products are taken in units of
                # what was expected, so that too high a level would confirm itself.
                most = xp.where(most > batch.square, most, batch.square)
                bank = bank._replace(level=_less(vx, bank.level, most / (1.0 + scale.falls)))
        bank = bank._replace(floor=_inside(vx, floor))
        usual = _plain(xp, bank.mean(bank.floor))
        calm = xp.where(first, 0.0 * news, _less(xp, state["calm"] + _CALM, 1.0 - news))
        seen, squares, off = foretold.surprise(xp, state, scale, batch)
        seen = _KEEP * scale.seen + calm * seen
        squares = _KEEP * scale.squares + calm * squares
        return bank, {
            "unit": _inside(xp, xp.where(unit > usual, unit, usual)),
            "recent": _inside(xp, recent),
            **off,
            "calm": calm,
            "seen": xp.where(first, scale.seen, seen),
            "squares": xp.where(
                first, scale.squares, xp.where(squares > 1e-9 * seen, squares, 1e-9 * seen)
            ),
        }

    def _top(self, xp: Any, turned: Array, walked: Array) -> Array:
        """Return 1/L: of a prior that is worth a deviation of L itself, and what was measured."""
        off = turned - _CURVED * walked
        odd = off * off / (walked * walked / _PRIOR + walked + _SMALLEST**2)
        prior = _PRIOR / (1.0 + (xp.where(off > 0.0, odd, 0.0 * odd) / _FAR**2) ** 2)
        turned, walked = prior * _CURVED + turned, prior + walked
        if self.relative:
            least: Array = 1.0
        elif self.mode == "sequence":
            least = _CURVED
        else:
            # While little is known of L, at first and after long rest, it is not taken for small.
            least = _FLAT + (_CURVED - _FLAT) * (prior / walked)
        least = least * walked
        return walked / xp.where(turned > least, turned, least)

    def _turn(
        self, xp: Any, state: State, batch: _Batch, scale: _Scale, foretold: _Foretold
    ) -> tuple[Array, Array]:
        """Return the sums of least squares for foreseen - trail = L·way."""
        turned, walked = state["turned"], state["walked"]
        if self.max_rate is not None or batch.trail is None:
            return turned, walked
        turned, walked = _STEADY * turned, _STEADY * walked
        noise, level = _plain(xp, foretold.noise), _plain(xp, foretold.level)
        way, turn = state["way"], state["foreseen"] - batch.trail
        # In units of the noise: of this product, of the one before and of the two parts'.
        unit = noise * scale.length + 4.0 * noise * (noise + level) + _SMALLEST**2
        # A jump's product with the trail is as loud as its batch: it must not pass for L. Where it
        # speaks for a larger one it may all the same, for a step that went too far looks like it.
        loud = batch.square / (level + noise + _SMALLEST)
        if not self.relative:
            off = turn - way * (_PRIOR * _CURVED + turned) / (_PRIOR + walked)
            smaller = off * way < 0.0
            loud = xp.where(smaller, loud, 0.0 * loud)
            # Nor must the product of the parts of a jump, which is in what was foreseen.
            last = state["spread"]
            jumped = smaller & (last > _LOUD * noise)
            unit = unit + xp.where(jumped, 4.0 * last * last, 0.0 * last)
        weight = scale.dim / (unit * xp.where(loud > 1.0, loud, 1.0))
        weight = xp.where(batch.first, 0.0 * weight, weight)
        return _inside(xp, turned + weight * way * turn), _inside(xp, walked + weight * way * way)

    def _predict(
        self, xp: Any, state: State, bank: Bank, scale: _Scale, batch: _Batch, share: Array
    ) -> tuple[Bank, Array]:
        """Return the bank after this step, and the trail's squared length."""
        bank = bank.mix(state["rest"])
        trail = 0.0 * share if batch.trail is None else batch.trail
        turn = share * (TRAIL * trail + batch.square)
        length = TRAIL * TRAIL * scale.length + 2.0 * TRAIL * trail + batch.square
        length = xp.where(length > 0.0, length, 0.0 * length)
        length = _less(xp, length, 10.0 * _LARGEST)
        bank = bank.predict(
            share,
            batch.square,
            scale.falls,
            scale.unit,
            scale.dim,
            TRAIL,
            turn,
            length,
        )
        return bank, length

    def _unless(
        self,
        xp: Any,
        state: State,
        batch: _Batch,
        scale: _Scale,
        foretold: _Foretold,
        rate: Array,
        result: State,
    ) -> tuple[Array, State]:
        """Leave all as it was where a gradient is 0, or too large to be believed the first time."""
        outlier = _SATURATED if self.relative else _OUTLIER
        limit = outlier * (foretold.level + foretold.noise)
        known = (state["count"] > 0) & (state["doubted"] < 0.5)
        odd = known & (batch.square > _plain(xp, limit))
        skip = odd | (batch.square <= 0.0)
        kept = {name: xp.where(skip, old, result[name]) for name, old in state.items()}
        # An odd gradient is not stepped along.
        rate = xp.where(odd, 0.0 * rate, xp.where(skip, state["rate"], rate))
        kept["rate"] = rate
        kept["doubted"] = xp.where(odd, 0.0 * rate + 1.0, 0.0 * rate)
        # The loop's trail has grown by it all the same.
        kept["length"] = result["length"]
        for j in range(MODELS):
            unsure = TRAIL * TRAIL * state[f"along_error{j}"]
            unsure = unsure + state[f"level{j}"] * (batch.square / scale.dim)
            kept[f"along{j}"] = xp.where(skip, TRAIL * state[f"along{j}"], kept[f"along{j}"])
            kept[f"along_error{j}"] = xp.where(skip, unsure, kept[f"along_error{j}"])
        return rate, kept


class _Batch(NamedTuple):
    """What one batch shows."""

    first: Array
    size: Array
    bigger: Array  # than the batch before, as a factor
    square: Array
    spread: Array
    cross: Array
    pairs: Array
    trail: Array

    @classmethod
    def read(cls, xp: Any, mode: str, state: State, signal: Signal) -> _Batch:
        first = state["count"] == 0
        size = _LARGEST + 0.0 * state["rate"] if signal.batch_size is None else signal.batch_size
        size = _less(xp, size, _LARGEST)
        cross = pairs = None
        if mode == "sequence":
            square = _inside(xp, signal.grad_sq)
            spread = square
        else:
            cross, spread = _inside(xp, signal.cross), _inside(xp, signal.spread)
            # Of the raw ones: cut apart, a huge negative cross and its spread would cancel.
            square = _inside(xp, signal.cross + signal.spread)
            square = xp.where(square > 0.0, square, 0.0 * spread)
            parts = 2.0 if signal.parts is None else signal.parts
            pairs = 2.0 * parts / (parts - 1.0)
        trail = None if signal.trail is None else _inside(xp, signal.trail)
        bigger = size / xp.where(first, size, state["batch_size"])
        return cls(first, size, bigger, square, spread, cross, pairs, trail)


class _Scale(NamedTuple):
    """What makes the noise N = κv + s, but for s."""

    dim: Array  # D
    falls: Array  # κ
    freedom: Array  # of the gradient's square
    unit: Array
    recent: Array
    length: Array
    seen: Array
    squares: Array

    @classmethod
    def read(cls, xp: Any, state: State, batch: _Batch, told: Array, level: Array) -> _Scale:
        seen, squares = state["seen"], state["squares"]
        if told is not None:
            # Of very many coordinates few move by themselves: the more, the less it is believed.
            most = _less(xp, told, 2.0 * _MANY)
            credit = _CREDIT * _less(xp, _MANY / told, 1.0)
            credit = xp.where(credit > 1.0, credit, 1.0)
            seen = xp.where(batch.first, credit + 0.0 * seen, seen)
            squares = xp.where(batch.first, credit / most, squares)
        dim = seen / squares
        unit, recent = state["unit"] / batch.bigger, state["recent"] / batch.bigger
        if level is not None:
            # N = κv + s bounds κ: where features depend on each other, D is small. After a jump the
            # noise of this very batch tells, for the usual one is of calmer times.
            noise = xp.where(unit > batch.spread, unit, batch.spread)
            most = _MOST * batch.size * noise / (level + _SMALLEST)
            dim = xp.where(batch.first | (dim < most), dim, most)
        dim = xp.where(dim > 1.0, dim, 1.0)
        size = batch.size
        freedom = 1.0 / (1.0 / size + 1.0 / dim + 2.0 / (size * dim))
        return cls(dim, (dim + 1.0) / size, freedom, unit, recent, state["length"], seen, squares)

    def loud(self, square: Array, expected: Array) -> Array:
        """Return a batch's square over the expected one, a little drawn to 1.

        A batch's residuals move all its products together: only angles tell of the signal.
        """
        own = self.dim + 1.0
        return (_SHARE + own * (square / expected)) / (_SHARE + own)

    def jump(self, xp: Any, square: Array, floor: Array) -> tuple[Array, Array, Array]:
        """Return the level that a jump would explain this square by, its error, and if it shows."""
        level = (square - floor) / (1.0 + self.falls)
        level = xp.where(level > 0.0, level, 0.0 * level)
        ratio = (level / (square + _SMALLEST)) ** 2
        shows = ratio / (ratio + 2.0 / (self.freedom * (1.0 + self.falls) ** 2))
        level = level * shows + 1e-6 * square
        return level, level * level * (2.0 / self.freedom + 0.1), shows


class _Foretold(NamedTuple):
    """What the bank expected of a batch: means and variances of v and c, and the noise."""

    level: Array
    noise: Array
    along: Array
    level_error: Array
    along_error: Array

    @classmethod
    def of(cls, bank: Bank, scale: _Scale) -> _Foretold:
        level, along = bank.mean(bank.level), bank.mean(bank.along)
        return cls(
            level,
            bank.mean(bank.noise(scale.falls)),
            along,
            bank.mean(bank.level_error + (bank.level - level) ** 2),
            bank.mean(bank.along_error + (bank.along - along) ** 2),
        )

    def surprise(
        self, xp: Any, state: State, scale: _Scale, batch: _Batch
    ) -> tuple[Array, Array, State]:
        """Return weights of, and squares over D times, what noise made of products, and that."""
        noise, level = _plain(xp, self.noise), _plain(xp, self.level)
        loud = scale.loud(batch.square, level + noise + _SMALLEST)
        seen = squares = 0.0 * level
        last = {name: state[name] for name in ("off_trail", "off_cross")}
        share = (noise / (level + noise + _SMALLEST)) ** 2
        if batch.trail is not None:
            off = batch.trail / loud**0.5 - _plain(xp, self.along)
            error = _plain(xp, self.along_error + _VAGUE * self.along**2)
            unit = noise * scale.length
            *one, last["off_trail"] = _look(xp, off, error, unit, scale.dim, last["off_trail"])
            # A trail from louder times tells more of them than of the noise now.
            like = (level + noise) / ((1.0 - TRAIL * TRAIL) * scale.length + _SMALLEST)
            like = _less(xp, like, 1.0) ** 2
            seen, squares = seen + like * one[0], squares + like * one[1]
        if batch.cross is not None:
            off = batch.cross / loud - level
            unit = (batch.pairs * noise + 4.0 * level) * noise
            error = _plain(xp, self.level_error + _VAGUE * self.level**2)
            *one, last["off_cross"] = _look(xp, off, error, unit, scale.dim, last["off_cross"])
            seen, squares = seen + one[0], squares + one[1]
        return share * seen, share * squares, last


def _look(
    xp: Any, off: Array, error: Array, unit: Array, dim: Array, last: Array
) -> tuple[Array, Array, Array]:
    """Return a weight, it times an estimate of 1/D, and `off` in units of the noise √unit.

    The estimate is half the squared difference to the `last` one: what is wrong for long with what
    was foretold cancels, and does not pass for noise. The more of it was uncertain, the less it
    weighs; odd ones are cut.
    """
    unit = unit + _SMALLEST**2
    weight = (unit / (unit + dim * error)) ** 2
    off = _inside(xp, off / unit**0.5)
    value = _less(xp, 0.5 * (off - last) ** 2, 9.0 / dim)
    return weight, weight * value, off


def _share(xp: Any, bank: Bank, scale: _Scale) -> Array:
    """Return ζ, the signal's share of the gradient's square."""
    level = bank.mean(bank.level)
    return _plain(xp, level / (level + bank.mean(bank.noise(scale.falls))))


def _choose(vx: Any, first: Array, one: Bank, other: Bank) -> Bank:
    """Return one bank where nothing was seen before, and else the other."""
    rows = zip(one[2:], other[2:], strict=True)
    return Bank(one.xp, one.settles, *(vx.where(first, a, b) for a, b in rows))


def _plain(xp: Any, value: Array) -> Array:
    """Return a Python float where the state is made of them."""
    return float(value) if xp is _scalars else value


def _inside(xp: Any, value: Array) -> Array:
    """Return the value within what single precision can square."""
    value = _less(xp, value, _LARGEST)
    return xp.where(value > -_LARGEST, value, -_LARGEST)


def _less(xp: Any, value: Array, bound: Array) -> Array:
    """Return the smaller one."""
    return xp.where(value < bound, value, bound)
