"""Traces as JavaScript: numbers as constants, long axes as loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from driftrate._trace import Graph, Node
from driftrate.playground.long import FOLDS, LENGTH, PLACE, Varying

_OPS: dict[str, str] = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "floordiv": "Math.floor({} / {})",
    "pow": "({} ** {})",
    "neg": "(-{})",
    "lt": "({} < {})",
    "le": "({} <= {})",
    "eq": "({} === {})",
    "ne": "({} !== {})",
    "and": "({} && {})",
    "or": "({} || {})",
    "not": "(!{})",
    "where": "({} ? {} : {})",
    "float": "(+{})",
    "isfinite": "Number.isFinite({})",
    **{
        name: f"Math.{name}({{}})"
        for name in ("abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos")
    },
    "hypot": "Math.hypot({}, {})",
}
_DEEPEST = 30  # expressions in expressions; beyond it a number gets a name


def literal(value: float) -> str:
    """Return a Python number as JavaScript reads it.

    Example:
        >>> literal(1e-30), literal(float("inf")), literal(True), literal(-2.0)
        ('1e-30', 'Infinity', 'true', '(-2.0)')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "(-Infinity)"
    return f"({value!r})" if value < 0 else repr(value)


class Result(NamedTuple):
    """What is assigned where."""

    target: str
    node: Node
    long: bool  # whether it is one entry of many, at the place `i`


class Writer:
    """Writes the body of a function that computes a graph; `d` is the length of a long axis.

    Everything is read before anything is written, entry by entry of a long axis, so that results
    may go to where inputs were. What one loop leaves to another lies in `q`.

    Args:
        graph: What is computed.
        places: Of every input its expression, by its path; on a long axis, at the place `i`.
        results: What is assigned.
    """

    def __init__(
        self, graph: Graph, places: Mapping[tuple[object, ...], str], results: list[Result]
    ) -> None:
        self._places, self._results = places, results
        self._varying = Varying(graph.inputs)
        self._order = list(graph.ops())
        # What folds a long axis is known when the loop of its phase is over.
        self._phase: dict[Node, int] = {}
        for node in self._order:
            before = max((self._phase.get(arg, 0) for arg in node.args), default=0)
            self._phase[node] = before + (node.op in FOLDS)
        self._known: dict[Node, str] = {}  # expressions
        self._depth: dict[Node, int] = {}
        self.kept = 0  # vectors that loops leave to later ones, in `q`

    def body(self) -> str:
        """Return the statements."""
        plain = [node for node in self._order if node not in self._varying]
        uses = Counter(arg for node in plain for arg in node.args)
        # What a loop or a result reads has a name: no loop computes it again.
        inner = (arg for node in self._order if node in self._varying for arg in node.args)
        for node in (*inner, *(one.node for one in self._results)):
            uses[node] += 2
        lines = self._constants([n for n in uses if not n.args and n not in self._varying], uses)
        last = max(self._phase.values(), default=0)
        for phase in range(last + 1):
            own = (n for n in plain if self._phase[n] == phase and n.op not in FOLDS)
            lines += self._constants(own, uses) + self._loop(phase, last)
        short = (one for one in self._results if not one.long)
        lines += [f"{one.target} = {self._read(one.node)};" for one in short]
        return "\n".join(lines)

    def _constants(self, nodes: Iterable[Node], uses: Mapping[Node, int]) -> list[str]:
        """Return constants for what is read more than once; the rest is written where it is."""
        lines = []
        for node in nodes:
            text, depth = self._compose(node)
            if node.op == "const" or (uses[node] == 1 and depth < _DEEPEST):
                self._known[node], self._depth[node] = text, depth
            else:
                lines.append(f"const {node.name} = {text};")
                self._known[node] = node.name
        return lines

    def _loop(self, phase: int, last: int) -> list[str]:
        """Return the loop along the long axis that ends a phase, where there is something to do."""
        order = [n for n in self._order if n in self._varying and self._phase[n] == phase]
        folds = [n for n in self._order if n.op in FOLDS and self._phase[n] == phase + 1]
        results = [one for one in self._results if one.long and phase == last]
        if not (order or folds or results):
            return []
        later = {
            arg
            for node in self._order
            if self._phase[node] > phase and node not in folds
            for arg in node.args
        }
        if phase < last:
            later |= {one.node for one in self._results if one.long}
        wanted = [*(node.args[0] for node in folds), *(one.node for one in results)]
        uses = Counter([*(arg for node in order for arg in node.args), *wanted, *wanted])
        uses.update(2 * [node for node in order if node in later])
        outside = dict(self._known), dict(self._depth)
        entries = [n for n in uses if not n.args and n in self._varying]
        lines = self._constants([*entries, *order], uses)
        kept = {}
        for node in order:
            if node in later:
                kept[node] = f"q[{self.kept} * d + i]"
                self.kept += 1
                lines.append(f"{kept[node]} = {self._read(node)};")
        for node in folds:
            value = self._read(node.args[0])
            one = f"if (i === {node.args[1].value}) {node.name} =" if node.op == "pick" else ""
            lines.append(f"{one or f'{node.name} +='} {value};")
        # Everything is read before anything is written.
        lines += [f"const w{k} = {self._read(one.node)};" for k, one in enumerate(results)]
        lines += [f"{one.target} = w{k};" for k, one in enumerate(results)]
        self._known, self._depth = outside
        self._known |= kept | {node: node.name for node in folds}
        before = [f"let {', '.join(f'{node.name} = 0' for node in folds)};"] if folds else []
        return [*before, "for (let i = 0; i < d; i++) {", *lines, "}"]

    def _compose(self, node: Node) -> tuple[str, int]:
        if node.op == "const":
            return literal(node.value), 0
        if node.op == "input":
            own = {PLACE: "(i + 1)", LENGTH: "d"}.get(node.value)
            return own or self._places[node.value], 0
        depth = 1 + max(self._depth.get(arg, 0) for arg in node.args)
        return _OPS[node.op].format(*map(self._read, node.args)), depth

    def _read(self, node: Node) -> str:
        known = self._known.get(node)
        return self._compose(node)[0] if known is None else known


def function(name: str, parameters: str, body: str, result: str = "") -> str:
    """Return a function; `result` is the expression that it returns."""
    end = f"\nreturn {result};" if result else ""
    return f"{name}({parameters}) {{\n{body}{end}\n}}"
