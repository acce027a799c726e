"""The rates of the page: each rule of the library, traced and written as JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from driftrate._trace import Graph
from driftrate._trace.graph import Tree, mapped
from driftrate.adapters import _pursuit as law
from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.playground import adam
from driftrate.playground.javascript import Result, Writer, function, literal
from driftrate.playground.long import TABLE, trace_long
from driftrate.schedules.base import TRAIL, Array, Schedule, Signal, State
from driftrate.schedules.baselines import ConstantRate, InverseTimeRate
from driftrate.schedules.linear import LinearRate
from driftrate.schedules.measured import MeasuredRate
from driftrate.schedules.measured.tuning import TUNING

DIMENSIONS = (2, 8, 32, 128)
TOLD = ("rate", "first", "adam", "dim", "noise", "scale")
"""What the page tells its rules: its sliders, and what follows from them."""


class Rule(NamedTuple):
    """How the page starts a rule and takes its steps.

    Args:
        kind: `"schedule"` gives a rate, `"optimizer"` steps, `"pool"` wants gradients at many
            points.
        start: `(xp, told, weights) -> state`.
        step: `(xp, told, state, seen) -> (value, state)`; what is seen is a `Signal`, a gradient,
            or the losses and gradients of a pool.
        seen: What `seen` looks like; an axis of length 1 is as long as there are weights.
        points: `(xp, state) -> points`, where a pool wants them.
        length: Of the vectors in a state; None if they are as long as the weights.
    """

    kind: str
    start: Callable[..., State]
    step: Callable[..., tuple[Array, State]]
    seen: Tree
    points: Callable[..., Array] | None = None
    length: int | None = None


def rules() -> dict[str, Rule]:
    """Return all rules of the page by the names that it has for them."""
    pool = HedgedSGD()
    points = pool.copies + 2
    vector = np.zeros(1)

    def pooled(xp: Any, told: State, state: State, seen: State) -> tuple[Array, State]:
        after = pool.update(state, seen["losses"], seen["gradients"])
        return pool.rate(after), after

    def pursue(xp: Any, told: State, state: State, seen: State) -> tuple[Array, State]:
        return 1.0, pursued(xp, state, seen["gradients"])

    def adapted(xp: Any, told: State, state: State, seen: State) -> tuple[Array, State]:
        return told["adam"], adam.step(xp, state, seen["gradients"], told["adam"])

    return {
        "constant": _schedule(lambda told: _told(ConstantRate(0.1), rate=told["rate"])),
        "inverse": _schedule(
            lambda told: _told(InverseTimeRate(0.5), rate=told["first"], decay=told["first"])
        ),
        "linear": _schedule(
            lambda told: _told(LinearRate(2, 1.0), dim=told["dim"], noise_std=told["noise"])
        ),
        # Its vectors are numbers of its hypotheses.
        "measured": _schedule(lambda told: MeasuredRate(), len(TUNING.drift_variances)),
        "hedged": Rule(
            "pool",
            lambda xp, told, weights: pool.init(weights),
            pooled,
            {"losses": np.zeros(points), "gradients": np.zeros((points, 1))},
            lambda xp, state: pool.members(state),
        ),
        "pursuit": Rule(
            "optimizer",
            lambda xp, told, weights: pursuit_start(weights, told["scale"]),
            pursue,
            {"gradients": vector},
        ),
        "adam": Rule(
            "optimizer",
            lambda xp, told, weights: adam.start(weights),
            adapted,
            {"gradients": vector},
        ),
    }


def pursuit_start(weights: Array, scale: Array) -> State:
    """Return what `Pursuit` keeps of one vector of weights before its first step."""
    still = 0.0 * weights
    begun = dict(vars(law.Law.start(scale)))
    return {"weights": weights, "square": still, "trail": still, "lead": still, "law": begun}


def pursued(xp: Any, state: State, gradient: Array) -> State:
    """Return the same after a step; vectors do not decay."""
    now = law.Law(**state["law"])
    told = law.factors(xp, now, 1.0, 0.0)
    moved = {name: told[place] for place, name in enumerate(law.FACTORS)} | {"keep": 1.0}
    kept = (state[name] for name in ("weights", "square", "trail", "lead"))
    first, *others = kept
    *after, signals = law.move(xp, first, gradient, *others, **moved)
    new = dict(zip(("weights", "square", "trail", "lead"), after, strict=True))
    return new | {"law": dict(vars(law.follow(xp, now, signals[0], signals[1])))}


def scale(dim: int) -> float:
    """Return the scale that `Pursuit` gives to a vector of weights."""
    return float(law.settle(np, [None], [dim])[0])


def _told(rule: Schedule, **constants: Array) -> Schedule:
    """Put symbols where a rule has constants, which are checked only when they are numbers."""
    for name, value in constants.items():
        object.__setattr__(rule, name, value)
    return rule


def _schedule(make: Callable[[State], Schedule], length: int | None = None) -> Rule:
    known = make(dict.fromkeys(TOLD, 1.0))
    fields = Signal(**dict.fromkeys(known.signals, 1.0))
    return Rule(
        "schedule",
        lambda xp, told, weights: make(told)._start(),
        lambda xp, told, state, signal: make(told)._step(xp, state, signal),
        fields,
        length=length,
    )


def javascript() -> str:
    """Return the rules as a script: `const RULES = {...}`."""
    told = dict.fromkeys(TOLD, 1.0)
    written = [f"{name}: {_write(rule, told)}" for name, rule in rules().items()]
    scales = ", ".join(f"{dim}: {literal(scale(dim))}" for dim in DIMENSIONS)
    return (
        f"const RULES = {{\n{','.join(written)}\n}};\n"
        f"const SCALES = {{{scales}}}, TRAIL = {literal(TRAIL)};\n"
    )


def _write(rule: Rule, told: State) -> str:
    start = trace_long(rule.start, told, np.zeros(1))
    state = _template(start.output, rule.length)
    step = trace_long(rule.step, told, state, rule.seen, length=rule.length)
    layout = Layout(state)
    given: dict[tuple[Any, ...], str] = {(0, name): f"t.{name}" for name in TOLD}
    begin = Writer(start, given | {(1, 0): "0"}, layout.results(start.output))
    value, after = step.output
    tables = [n.value for n in step.nodes if n.op == "input" and n.value[0] == TABLE]
    places = given | layout.places(1) | _seen(rule.seen)
    places |= {table: f"this.tables[{k}][i]" for k, table in enumerate(tables)}
    take = Writer(step, places, [Result("const rate", value, False), *layout.results(after)])
    parts = [
        function("start", "s, o, d, t, q", begin.body()),
        function("step", "s, o, d, t, q, x, g, l", take.body(), "rate"),
        f'kind: "{rule.kind}"',
        f"scalars: {layout.scalars}",
        f"vectors: {layout.vectors}",
        f"length: {literal(rule.length or 0)}",
        f"at: {layout.vector('mixture' if rule.kind == 'pool' else 'weights')}",
        f"tables: [{', '.join(str(list(table[1:])) for table in tables)}]",
    ]
    kept = max(begin.kept, take.kept)
    if rule.points is not None:
        members = trace_long(rule.points, state)
        flat = members.output.ravel()
        results = [Result(f"p[{k} * d + i]", node, True) for k, node in enumerate(flat)]
        write = Writer(members, layout.places(0), results)
        parts += [f"points: {len(flat)}", function("members", "s, o, d, p, q", write.body())]
        kept = max(kept, write.kept)
    parts.append(f"kept: {kept}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _template(tree: Tree, length: int | None) -> Tree:
    """Return what stands for a state that was traced: numbers, and arrays of their shapes."""
    kinds = {"float": 0.0, "int": 0, "bool": False}

    def leaf(nodes: Any) -> Any:
        if not isinstance(nodes, np.ndarray):
            return kinds[nodes.kind]
        shape = (1,) if nodes.shape == (length,) else nodes.shape
        return np.full(shape, kinds[nodes.ravel()[0].kind])

    return mapped(leaf, tree)


class Layout:
    """Where a state lies in `s` from `o` on: its numbers, then its vectors of `d` each."""

    def __init__(self, state: State) -> None:
        self._at: dict[tuple[Any, ...], str] = {}
        self._long: dict[tuple[Any, ...], int] = {}
        self.scalars = self.vectors = 0
        leaves = [
            ((*path, place) if isinstance(leaf, np.ndarray) else path, _is_long(leaf))
            for path, leaf in Graph.leaves(state)
            for place in range(np.size(leaf))
        ]
        for path, long in leaves:
            if long:
                self._long[path] = self.vectors
                self.vectors += 1
            else:
                self._at[path] = f"s[o + {self.scalars}]"
                self.scalars += 1
        for path, place in self._long.items():
            self._at[path] = f"s[o + {self.scalars} + {place} * d + i]"

    def vector(self, name: str) -> int:
        """Return the number of a vector; one that the state has not comes after all it has."""
        return self._long.get((name, 0), self.vectors)

    def places(self, argument: int) -> dict[tuple[Any, ...], str]:
        """Return the expressions of the state as an argument of a trace."""
        return {(argument, *path): text for path, text in self._at.items()}

    def results(self, state: State) -> list[Result]:
        """Return what is assigned to put a state there."""
        found = []
        for path, leaf in Graph.leaves(state):
            for place, node in enumerate(np.ravel(leaf)):
                own = (*path, place) if isinstance(leaf, np.ndarray) else path
                if own in self._at:
                    found.append(Result(self._at[own], node, own in self._long))
                    continue
                # Known entry by entry, of a vector that is long from then on.
                found[-1:] = [
                    Result(self._at[*path, 0].replace(" + i]", f" + {k}]"), one, False)
                    for k, one in enumerate(leaf)
                ]
                break
        return found


def _is_long(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.shape[-1:] == (1,)


def _seen(seen: Tree) -> dict[tuple[Any, ...], str]:
    """Return the expressions of what a step sees: x of signals, l of losses, g of gradients."""
    found: dict[tuple[Any, ...], str] = {}
    for path, leaf in Graph.leaves(seen):
        if not isinstance(leaf, np.ndarray):
            found[2, *path] = f"x.{path[0]}"
            continue
        for place in range(leaf.size):
            found[2, *path, place] = f"g[{place} * d + i]" if _is_long(leaf) else f"l[{place}]"
    return found
