"""Write a graph as straight-line Python on plain floats.

Arrays become local variables. What is read once stands where it is read, so that a choice computes
nothing but the branch that it takes. A condition that chooses most of the output, old state or new,
is asked as soon as it is known, and the old state need not be held until the end. Names are used
again once nobody reads them: of few the interpreter finds each faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from driftrate._trace.graph import KINDS, Graph, Kind, Node, Tree, leaves, mapped, nodes_of, reached

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "and",
    "or": "or",
}
_FUNCTIONS = ("isfinite", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "hypot", "lgamma")
_GLOBALS = {name: getattr(math, name) for name in (*_FUNCTIONS, "inf", "nan")}
_DEEPEST = 40  # brackets in brackets: Python reads at most 200
_MANY = 16  # choices by a condition, from which on its sides have code of their own


def compiled(graph: Graph) -> Callable[..., Any]:
    """Return the traced function, on trees of Python numbers and NumPy arrays.

    Where arrays would hold what is not finite, it may raise `ArithmeticError` or `ValueError`, as
    Python's numbers do.

    Example:
        >>> from driftrate._trace import trace
        >>> graph = trace(lambda xp, x, y: {"z": xp.exp(x["a"]) * y}, {"a": 0.0}, np.ones(2))
        >>> compiled(graph)({"a": 0.0}, np.array([2.0, 3.0]))
        {'z': array([2., 3.])}
    """
    names: dict[str, Any] = {**_GLOBALS, "array": np.array}
    exec(compile(source(graph), "<traced>", "exec"), names)
    function: Callable[..., Any] = names["traced"]
    return function


def source(graph: Graph) -> str:
    """Return the source of a function `traced` of as many arguments as the graph has inputs.

    Example:
        >>> from driftrate._trace import trace
        >>> print(source(trace(lambda xp, x: xp.where(x > 1.0, x ** 2, xp.sqrt(x)), 0.5)))
        def traced(x0):
         a0 = x0
         return ((a0 * a0) if (1.0 < a0) else sqrt(a0))
    """
    arguments = ", ".join(f"x{place}" for place in range(len(graph.inputs)))
    return "\n".join([f"def traced({arguments}):", *_Writer(graph).lines_by_sides()])


class _Writer:
    """Writes the lines of a function, or those of one side of a condition in it."""

    def __init__(
        self,
        graph: Graph,
        indent: str = " ",
        names: Mapping[Node, str] | None = None,
        free: Sequence[str] = (),
    ) -> None:
        self.graph, self.indent, self.written = graph, indent, list[str]()
        self.names = dict(names or {})  # of what is computed
        self.free = list(free)  # names that nobody reads any more
        self.made = len(self.names) + len(self.free)
        self.access = _entrances(graph.inputs)
        self.outputs = [node for _, leaf in leaves(graph.output) for node in nodes_of(leaf)]
        self.nodes = reached(self.outputs, self.names)
        self.uses = Counter(arg for node in self.nodes for arg in node.args)
        self.uses.update(self.outputs)
        for node in self.names.keys() - self.uses.keys():
            self.free.append(self.names.pop(node))
        self.depths: dict[Node, int] = {}

    def lines(self) -> list[str]:
        """Return the lines, of which the last returns."""
        self._write(self.nodes)
        self._return()
        return self.written

    def lines_by_sides(self) -> list[str]:
        """Return the lines; where a condition chooses most of the output, it is asked early."""
        chosen = Counter(node.args[0] for node in self.outputs if node.op == "where")
        condition, count = max(chosen.items(), key=lambda one: one[1], default=(None, 0))
        if condition is None or count < max(_MANY, len(self.outputs) / 2):
            return self.lines()
        self._write(reached([condition])[:-1])
        self._line(f"if {self._compute(condition)}:")
        for place in (1, 2):
            side = Graph(self.graph.inputs, mapped(_side(condition, place), self.graph.output))
            block = _Writer(side, self.indent + " ", self.names, self.free)
            self.written += block.lines()
            if place == 1:
                self._line("else:")
        return self.written

    def _line(self, text: str) -> None:
        self.written.append(self.indent + text)

    def _write(self, nodes: Iterable[Node]) -> None:
        """Write the assignments of what is read more than once, or too deep in brackets."""
        for node in nodes:
            if node.op == "input":
                self._load(node)
            elif node.args:
                depth = 1 + max(self.depths.get(arg, 0) for arg in node.args)
                if self.uses[node] > 1 or depth > _DEEPEST:
                    text = self._compute(node)
                    self._line(f"{self._name(node)} = {text}")
                else:
                    self.depths[node] = depth

    def _load(self, node: Node) -> None:
        if node in self.names:
            return
        text, together = self.access[node]
        if len(together) == 1:
            if self.uses[node] > 1:
                self._line(f"{self._name(node)} = {text}")
            return
        targets = [self._name(one) if self.uses[one] else "_" for one in together]
        self._line(f"{', '.join(targets)} = {text}")

    def _name(self, node: Node) -> str:
        if self.free:
            name = self.free.pop()
        else:
            name, self.made = f"a{self.made}", self.made + 1
        self.names[node] = name
        return name

    def _read(self, node: Node) -> str:
        """Return a node's text where it is read."""
        if node.op == "const":
            text = repr(node.value)
            return f"({text})" if text.startswith("-") else text
        name = self.names.get(node)
        if name is None:
            return self._compute(node) if node.args else self.access[node][0]
        self.uses[node] -= 1
        if not self.uses[node]:
            self.free.append(self.names.pop(node))
        return name

    def _compute(self, node: Node) -> str:
        args = [self._read(arg) for arg in node.args]
        if node.op == "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if node.op in _SIGNS:
            return f"({args[0]} {_SIGNS[node.op]} {args[1]})"
        if node.op in ("neg", "not"):
            return f"(-{args[0]})" if node.op == "neg" else f"(not {args[0]})"
        return f"{node.op}({', '.join(args)})"

    def _return(self) -> None:
        """Write arrays into one of each kind, of which the leaves are views: it costs less."""
        packed: dict[Kind, list[str]] = {}
        texts = {}
        for path, leaf in leaves(self.graph.output):
            nodes = nodes_of(leaf)
            if isinstance(leaf, Node):
                texts[path] = self._read(leaf)
            else:
                kind = max((node.kind for node in nodes), key=KINDS.index)
                pack = packed.setdefault(kind, [])
                texts[path] = f"{kind}s[{len(pack)}:{len(pack) + len(nodes)}]"
                if leaf.ndim > 1:
                    texts[path] += f".reshape({leaf.shape})"
                pack += [self._read(node) for node in nodes]
        for kind, pack in packed.items():
            self._line(f"{kind}s = array([{', '.join(pack)}], {kind})")
        self._line(f"return {_tree(self.graph.output, texts, ())}")


def _side(condition: Node, place: int) -> Callable[[Any], Any]:
    """Return what takes a leaf of the output to what it is on one side of a condition."""

    def one(node: Node) -> Node:
        return node.args[place] if node.op == "where" and node.args[0] is condition else node

    several = np.frompyfunc(one, 1, 1)
    return lambda leaf: one(leaf) if isinstance(leaf, Node) else several(leaf)


def _entrances(inputs: tuple[Tree, ...]) -> dict[Node, tuple[str, list[Node]]]:
    """Return how each input is read, with those that are read together."""
    access: dict[Node, tuple[str, list[Node]]] = {}
    for path, leaf in leaves(inputs):
        text, tree = f"x{path[0]}", inputs[path[0]]
        for key in path[1:]:
            indexed = isinstance(tree, dict) or isinstance(key, int)
            text += f"[{key!r}]" if indexed else f".{key}"
            tree = tree[key] if indexed else getattr(tree, key)
        nodes = nodes_of(leaf)
        if not isinstance(leaf, Node):
            flat = ".tolist()" if leaf.ndim == 1 else ".ravel().tolist()"
            text += f"{flat}[0]" if len(nodes) == 1 else flat
        for node in nodes:
            access[node] = text, nodes
    return access


def _tree(tree: Tree, texts: dict[tuple[Any, ...], str], path: tuple[Any, ...]) -> str:
    """Return the source of a tree."""
    if isinstance(tree, dict):
        inner = (f"{key!r}: {_tree(part, texts, (*path, key))}" for key, part in tree.items())
        return f"{{{', '.join(inner)}}}"
    if type(tree) in (tuple, list):
        parts = [_tree(part, texts, (*path, place)) for place, part in enumerate(tree)]
        inside = "".join(f"{part}, " for part in parts)
        return f"({inside})" if isinstance(tree, tuple) else f"[{inside}]"
    return "None" if tree is None else texts[path]
