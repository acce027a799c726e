"""The graph of a computation: one node per number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal

Kind = Literal["bool", "int", "float"]
KINDS: tuple[Kind, ...] = (
    "bool",
    "int",
    "float",
)  # what two of them make together is the later one
Tree = Any  # numbers' nodes and arrays of nodes in dictionaries, tuples, lists and dataclasses

OPS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": operator.not_,
    "where": lambda c, a, b: a if c else b,
    "float": float,
    "isfinite": math.isfinite,
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "hypot": math.hypot,
    "lgamma": math.lgamma,
}
"""Every operation, and what it does to Python numbers."""

_TRUTHS = {"lt", "le", "eq", "ne", "and", "or", "not", "isfinite"}
_SAME = {"add", "sub", "mul", "floordiv", "mod", "pow", "neg", "abs"}  # the kind of what they read
_SYMMETRIC = {"add", "mul", "eq", "ne", "and", "or"}


class Node:
    """One number: a constant, an input, or what an operation makes of others."""

    __slots__ = ("args", "kind", "number", "op", "value")

    def __init__(
        self, number: int, op: str, args: tuple[Node, ...], kind: Kind, value: Any
    ) -> None:
        self.number, self.op, self.args, self.kind, self.value = number, op, args, kind, value

    @property
    def name(self) -> str:
        """A name that no other node of the graph has."""
        return f"v{self.number}"

    def __repr__(self) -> str:
        inner = ", ".join(arg.name for arg in self.args) if self.args else repr(self.value)
        return f"{self.name} = {self.op}({inner})"

    def is_value(self, value: float) -> bool:
        """Return whether this is a constant of that value."""
        return self.op == "const" and bool(self.value == value)


class Builder:
    """Makes nodes: equal ones once, constants folded, and what does nothing left out."""

    def __init__(self) -> None:
        self._known: dict[Any, Node] = {}

    def const(self, value: float) -> Node:
        """Return the node of a Python number."""
        kind: Kind = (
            "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        )
        # The representation tells 1 from 1.0 and True, and -0.0 from 0.0.
        return self._node((kind, repr(value)), "const", (), kind, value)

    def input(self, path: tuple[Any, ...], kind: Kind) -> Node:
        """Return the node of an input."""
        return self._node(("input", path), "input", (), kind, path)

    def op(self, op: str, *args: Node) -> Node:
        """Return the node of an operation, or a simpler one of the same value."""
        if op != "where" and all(arg.op == "const" for arg in args):
            try:
                folded = OPS[op](*(arg.value for arg in args))
            except (ArithmeticError, ValueError):
                pass  # what a 0 in a divisor means is said by whoever runs the graph
            else:
                if not isinstance(folded, complex):
                    return self.const(folded)
        return self._simpler(op, args) or self._plain(op, args)

    def _plain(self, op: str, args: tuple[Node, ...]) -> Node:
        if op in _SYMMETRIC and args[0].number > args[1].number:
            args = args[::-1]
        kind: Kind = "float"
        if op in _TRUTHS:
            kind = "bool"
        elif op in _SAME or op == "where":
            kind = max((arg.kind for arg in args[op == "where" :]), key=KINDS.index)
            kind = "int" if kind == "bool" and op != "where" else kind
        return self._node((op, *(arg.number for arg in args)), op, args, kind, None)

    def _node(self, key: Any, op: str, args: tuple[Node, ...], kind: Kind, value: Any) -> Node:
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = Node(len(self._known), op, args, kind, value)
        return node

    def _simpler(self, op: str, args: tuple[Node, ...]) -> Node | None:
        kinds = [arg.kind for arg in args]
        if op == "where":
            return self._chosen(*args)
        if op in ("and", "or"):
            return _joined(op, *args)
        if op == "pow":
            return self._power(*args)
        if op in ("add", "sub", "mul", "div") and "float" in kinds:
            return self._neutral(op, *args)
        if op == "not" and args[0].op == "not":
            return args[0].args[0]
        return args[0] if op == "float" and kinds == ["float"] else None

    def _neutral(self, op: str, a: Node, b: Node) -> Node | None:
        """Return what is left where one of two numbers is 0 or 1; only of floats."""
        zero = self.const(0.0)
        if op in ("mul", "div") and a.is_value(0.0):
            return zero
        if op == "mul" and b.is_value(0.0):
            return zero
        kept = None
        if (op == "mul" and a.is_value(1.0)) or (op == "add" and a.is_value(0.0)):
            kept = b
        if (op in ("mul", "div") and b.is_value(1.0)) or (op in ("add", "sub") and b.is_value(0.0)):
            kept = a
        return kept if kept is None or kept.kind == "float" else self.op("float", kept)

    def _power(self, base: Node, exponent: Node) -> Node | None:
        """Return the powers that arrays have ways of their own for, as those compute them."""
        if base.kind == "float":
            if exponent.is_value(2.0):
                return self.op("mul", base, base)
            if exponent.is_value(1.0):
                return base
            if exponent.is_value(0.5):
                return self.op("sqrt", base)
            if exponent.is_value(-1.0):
                return self.op("div", self.const(1.0), base)
        return None

    def _chosen(self, condition: Node, a: Node, b: Node) -> Node | None:
        if condition.op == "const":
            a, other = (a, b) if condition.value else (b, a)
            # A choice between an integer and a float is a float.
            return self.op("float", a) if other.kind == "float" and a.kind != "float" else a
        if a is b:
            return a
        if condition.op == "not":
            return self.op("where", condition.args[0], b, a)
        if a.op == "where" and a.args[0] is condition:
            return self.op("where", condition, a.args[1], b)
        if b.op == "where" and b.args[0] is condition:
            return self.op("where", condition, a, b.args[2])
        return None


def _joined(op: str, a: Node, b: Node) -> Node | None:
    if a.op == "const":
        a, b = b, a
    if b.op == "const":
        return a if bool(b.value) == (op == "and") else b
    return a if a is b else None


class Graph:
    """What a function computes; see `driftrate._trace`."""

    def __init__(self, inputs: tuple[Tree, ...], output: Tree) -> None:
        self.inputs, self.output = inputs, output
        self.nodes = reached(node for _, leaf in leaves(output) for node in nodes_of(leaf))

    def ops(self) -> Iterator[Node]:
        """Iterate over the operations, each after what it reads."""
        return (node for node in self.nodes if node.args)

    @staticmethod
    def leaves(tree: Tree) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Iterate over (path, node or array of nodes)."""
        return leaves(tree)


def nodes_of(leaf: Any) -> list[Node]:
    """Return the nodes of a leaf: itself, or the entries of an array."""
    return [leaf] if isinstance(leaf, Node) else list(leaf.ravel())


def reached(outputs: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """Return what the outputs read, each after what it reads; not what is known, nor behind it."""
    seen: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in seen and node not in known:
            seen.add(node)
            waiting.extend(node.args)
    return sorted(seen, key=lambda node: node.number)


def leaves(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Iterate over the leaves of a tree with their paths; None is no leaf."""
    parts = _parts(tree)
    if parts is None:
        if tree is not None:
            yield path, tree
        return
    for key, part in parts:
        yield from leaves(part, (*path, key))


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree with its leaves replaced; None stays."""
    return mapped_with_path(lambda _, leaf: function(leaf), tree)


def mapped_with_path(
    function: Callable[[tuple[Any, ...], Any], Any], tree: Tree, path: tuple[Any, ...] = ()
) -> Tree:
    """Return a tree with its leaves replaced by what a function makes of their paths and them."""
    parts = _parts(tree)
    if parts is None:
        return None if tree is None else function(path, tree)
    new = {key: mapped_with_path(function, part, (*path, key)) for key, part in parts}
    if isinstance(tree, dict):
        return new
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **new)
    if hasattr(tree, "_fields"):
        return type(tree)(**new)
    return type(tree)(new.values())


def _parts(tree: Tree) -> list[tuple[Any, Any]] | None:
    if isinstance(tree, dict):
        return list(tree.items())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    if hasattr(tree, "_fields"):
        return [(name, getattr(tree, name)) for name in tree._fields]
    if isinstance(tree, (list, tuple)):
        return list(enumerate(tree))
    return None
