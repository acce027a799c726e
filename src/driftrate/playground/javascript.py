"""Traces as JavaScript: numbers as constants, long axes as loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from driftrate._trace import Graph, Node
from driftrate.playground.long import LENGTH, PLACE, Varying

_OPS: dict[str, str] = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "floordiv": "Math.floor({} / {})",
    "mod": "mod({}, {})",
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
    may go to where inputs were.

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
        # A total is known when the loop of its phase is over.
        self._phase: dict[Node, int] = {}
        for node in self._order:
            before = max((self._phase.get(arg, 0) for arg in node.args), default=0)
            self._phase[node] = before + (node.op == "total")
        self._known: dict[Node, str] = {}  # expressions
        self._depth: dict[Node, int] = {}

    def body(self) -> str:
        """Return the statements."""
        plain = [node for node in self._order if node not in self._varying]
        uses = Counter(arg for node in plain for arg in node.args)
        # What a loop or a result reads has a name: no loop computes it again.
        inner = (arg for node in self._order if node in self._varying for arg in node.args)
        totals = [node for node in plain if node.op == "total"]
        for node in (*inner, *(one.node for one in self._results)):
            uses[node] += 2
        lines = self._constants([n for n in uses if not n.args and n not in self._varying], uses)
        for phase in range(max(self._phase.values(), default=0) + 1):
            own = (node for node in plain if self._phase[node] == phase and node.op != "total")
            lines += self._constants(own, uses)
            if due := [node for node in totals if self._phase[node] == phase + 1]:
                lines += [f"let {node.name} = 0;" for node in due]
                lines += self._loop(
                    [node.args[0] for node in due], "{} += {};", [node.name for node in due]
                )
                self._known |= {node: node.name for node in due}
        long = [one for one in self._results if one.long]
        if long:
            lines += self._loop(
                [one.node for one in long], "{} = {};", [one.target for one in long]
            )
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

    def _loop(self, wanted: list[Node], line: str, targets: list[str]) -> list[str]:
        """Return a loop along the long axis that computes what is wanted, then assigns it."""
        needed: set[Node] = set()
        waiting = [node for node in wanted if node in self._varying]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting.extend(arg for arg in node.args if arg in self._varying)
        uses = Counter(arg for node in needed for arg in node.args)
        uses.update(2 * wanted)
        outside = dict(self._known), dict(self._depth)
        order = sorted(needed, key=lambda node: node.number)
        lines = self._constants(order, uses)
        lines += [
            line.format(target, self._read(node))
            for target, node in zip(targets, wanted, strict=True)
        ]
        self._known, self._depth = outside
        return ["for (let i = 0; i < d; i++) {", *lines, "}"]

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
