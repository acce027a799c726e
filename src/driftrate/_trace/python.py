"""Write a graph as straight-line Python on plain floats.

Arrays become local variables. What is read once stands where it is read, so that a choice computes
nothing but the branch that it takes. A condition that chooses many times is asked once, and each of
its sides has code of its own. Names are used again once nobody reads them: of few the interpreter
finds each faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from driftrate._trace.graph import Graph, Node, Tree, leaves

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
_MANY = 16  # choices by one condition, from which on its sides have code of their own


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
    return "\n".join([f"def traced({arguments}):", *_Block(graph, {}, [], 1).lines()])


class _Block:
    """The lines of a block: a function's, or those of a side of a condition."""

    def __init__(self, graph: Graph, names: dict[Node, str], free: list[str], depth: int) -> None:
        self.graph, self.indent, self.written = graph, " " * depth, list[str]()
        self.names, self.free = dict(names), list(free)  # of what is computed; and to be had
        self.access, self.arrays = _entrances(graph.inputs)
        self.outputs = [node for leaf in self._leaves() for node in leaf]
        self.order = self._reached(self.outputs)
        self.uses = Counter(arg for node in self.order for arg in node.args)
        self.uses.update(self.outputs)
        self.made = len(self.names) + len(self.free)
        for node in names.keys() - self.uses.keys():
            self.free.append(self.names.pop(node))
        self.depths: dict[Node, int] = {}

    def lines(self) -> list[str]:
        """Return the lines, of which the last returns."""
        choices = Counter(node.args[0] for node in self.order if node.op == "where")
        many = [node for node, count in choices.items() if count >= _MANY]
        if many:
            self._split(min(many, key=lambda node: node.number))
        else:
            self._write(self.order)
            self._return()
        return self.written

    def _split(self, condition: Node) -> None:
        self._write(self._reached([condition])[:-1])
        self._line(f"if {self._compute(condition)}:")
        for side in (True, False):
            graph = self.graph.assume({condition: side})
            block = _Block(graph, self.names, self.free, len(self.indent) + 1)
            self.written += block.lines()
            if side:
                self._line("else:")

    def _line(self, text: str) -> None:
        self.written.append(self.indent + text)

    def _leaves(self) -> Iterator[list[Node]]:
        """Iterate over what leaves; an array that leaves as it came is not looked into."""
        for _, leaf in leaves(self.graph.output):
            nodes = _nodes(leaf)
            if isinstance(leaf, Node) or (*nodes,) not in self.arrays:
                yield nodes

    def _reached(self, outputs: list[Node]) -> list[Node]:
        """Return what is yet to be computed, each after what it reads."""
        seen: set[Node] = set()
        waiting = list(outputs)
        while waiting:
            node = waiting.pop()
            if node not in seen and node not in self.names:
                seen.add(node)
                waiting.extend(node.args)
        return sorted(seen, key=lambda node: node.number)

    def _write(self, order: list[Node]) -> None:
        """Write the assignments of what is read more than once, or too deep in brackets."""
        for node in order:
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
        packed: dict[str, list[str]] = {}
        texts = {}
        for path, leaf in leaves(self.graph.output):
            nodes = _nodes(leaf)
            if isinstance(leaf, Node):
                texts[path] = self._read(leaf)
            elif (*nodes,) in self.arrays:
                texts[path] = self.arrays[(*nodes,)]
            else:
                kind = max((node.kind for node in nodes), key=("bool", "int", "float").index)
                pack = packed.setdefault(kind, [])
                texts[path] = f"{kind}s[{len(pack)}:{len(pack) + len(nodes)}]"
                if leaf.ndim > 1:
                    texts[path] += f".reshape({leaf.shape})"
                pack += [self._read(node) for node in nodes]
        for kind, pack in packed.items():
            self._line(f"{kind}s = array(({', '.join(pack)},), {kind})")
        self._line(f"return {_tree(self.graph.output, texts, ())}")


def _nodes(leaf: Any) -> list[Node]:
    return [leaf] if isinstance(leaf, Node) else list(leaf.ravel())


def _entrances(
    inputs: tuple[Tree, ...],
) -> tuple[dict[Node, tuple[str, list[Node]]], dict[tuple[Node, ...], str]]:
    """Return how each input is read, with those read together, and what each array is called."""
    access: dict[Node, tuple[str, list[Node]]] = {}
    arrays: dict[tuple[Node, ...], str] = {}
    for path, leaf in leaves(inputs):
        text, tree = f"x{path[0]}", inputs[path[0]]
        for key in path[1:]:
            indexed = isinstance(tree, dict) or isinstance(key, int)
            text += f"[{key!r}]" if indexed else f".{key}"
            tree = tree[key] if indexed else getattr(tree, key)
        nodes = _nodes(leaf)
        if not isinstance(leaf, Node):
            arrays[(*nodes,)] = text
            flat = ".tolist()" if leaf.ndim == 1 else ".ravel().tolist()"
            text += f"{flat}[0]" if len(nodes) == 1 else flat
        for node in nodes:
            access[node] = text, nodes
    return access, arrays


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
