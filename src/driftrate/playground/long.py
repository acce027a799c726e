"""Traces in which an axis has a length that is known only when the trace is run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from driftrate._trace import Graph, Node, trace
from driftrate._trace.graph import Tree
from driftrate._trace.symbols import Namespace, Symbols

PLACE, LENGTH, TABLE = ("place",), ("length",), "table"
"""Paths of the inputs that stand for the place on a long axis, from 1, and for its length; and the
first word of the path of a vector of constants, which has the constants behind it."""


class Varying:
    """The nodes that differ along a long axis."""

    def __init__(self, inputs: Tree) -> None:
        self._known: dict[Node, bool] = {}
        for _, leaf in Graph.leaves(inputs):
            nodes = getattr(leaf, "nodes", leaf)  # of symbols; a graph has the nodes themselves
            if isinstance(nodes, np.ndarray) and nodes.shape[-1:] == (1,):
                self._known |= dict.fromkeys(nodes.ravel(), True)

    def __contains__(self, node: Node) -> bool:
        known = self._known.get(node)
        if known is None:
            own = node.op == "input" and (node.value == PLACE or node.value[0] == TABLE)
            folded = node.op in FOLDS
            known = own or (not folded and any(arg in self for arg in node.args))
            self._known[node] = known
        return known


FOLDS = ("total", "pick")
"""Operations that make one number of a long axis."""


class LongNamespace(Namespace):
    """Symbols of which an axis of length 1 stands for one of any length.

    An entry of it stands for all of them. A sum along it is an operation of its own, `total`, and
    so is one of its entries, `pick`.
    """

    varying: Varying
    length: int | None  # of the long axis, where it is known

    def item(self, x: Symbols, key: Any) -> Symbols:
        """Return an entry of an array, or a part of it."""
        if not (isinstance(key, int) and x.shape == (1,) and x.nodes[0] in self.varying):
            return super().item(x, key)
        if self.length is None:
            raise TypeError("the entries of a long axis have no numbers")
        place = self._builder.const(key % self.length)
        return self._each(lambda node: self._builder.op("pick", node, place), x.nodes[0])

    def stack(self, arrays: Sequence[Any], axis: int = 0) -> Symbols:
        """Return arrays along a new axis, which is a long one if its length is that."""
        stacked = super().stack(arrays, axis)
        nodes = stacked.nodes.ravel()
        if stacked.shape != (self.length,) or any(node.op != "const" for node in nodes):
            return stacked
        path = (TABLE, *(node.value for node in nodes))
        return self.reshape(Symbols(self, self._builder.input(path, "float")), (1,))

    def _reduce(self, function: Any, x: Any, axis: Any, keepdims: Any) -> Symbols:
        nodes = self.asarray(x).nodes
        axes = range(nodes.ndim) if axis is None else axis
        axes = axes if isinstance(axes, (tuple, range)) else (axes,)
        folded = super()._reduce(function, x, axis, keepdims)
        if all(nodes.shape[place] != 1 for place in axes):
            return folded
        if function is not operator.add:
            raise TypeError("a long axis is summed, and nothing else")
        return self._each(self._total, folded.nodes)

    def cumulative_sum(self, x: Symbols, axis: int = 0) -> Symbols:
        """Return the sums so far; along a long axis of ones alone, which count its places."""
        if x.shape[axis] != 1:
            return super().cumulative_sum(x, axis)
        if not all(node.is_value(1.0) for node in x.nodes.ravel()):
            raise TypeError("along a long axis ones are summed, and nothing else")
        return self._each(lambda _: self._builder.input(PLACE, "float"), x.nodes)

    def _total(self, node: Node) -> Node:
        if node in self.varying:
            return self._builder.op("total", node)
        return self._builder.op("mul", self._builder.input(LENGTH, "float"), node)

    def _each(self, function: Callable[[Node], Node], nodes: Any) -> Symbols:
        return Symbols(self, np.asarray(np.frompyfunc(function, 1, 1)(nodes), dtype=object))


def trace_long(function: Callable[..., Any], *templates: Tree, length: int | None = None) -> Graph:
    """Return the trace of a function; in templates an axis of length 1 stands for a long one.

    Args:
        function: What is traced.
        templates: As `trace` takes them.
        length: Of the long axis, where it is known; else it is whatever it will be.

    Example:
        >>> graph = trace_long(lambda xp, x: x * xp.vecdot(x, x), np.zeros(1))
        >>> [node.op for node in graph.ops()]
        ['mul', 'total', 'mul']
    """

    def told(xp: LongNamespace, *inputs: Tree) -> Tree:
        xp.varying, xp.length = Varying(inputs), length
        return function(xp, *inputs)

    return trace(told, *templates, namespace=LongNamespace)
