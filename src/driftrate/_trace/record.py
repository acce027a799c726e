"""Run a function on symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from driftrate._trace.graph import Builder, Graph, Kind, Tree, mapped, mapped_with_path
from driftrate._trace.symbols import Namespace, Symbols

_KINDS: dict[str, Kind] = {"f": "float", "i": "int", "b": "bool"}


def trace(function: Callable[..., Any], *templates: Tree) -> Graph:
    """Return the graph of what a function does to numbers and arrays like the templates.

    Args:
        function: Called once with a namespace and as many trees of symbols as there are templates.
            It branches on values with `where` alone.
        templates: Trees whose leaves have the kinds and shapes of those to come.

    Example:
        >>> graph = trace(lambda xp, x: xp.where(x > 1.0, x ** 2, xp.sqrt(4.0)), 0.5)
        >>> [node.op for node in graph.ops()], graph.output.args[2]
        (['lt', 'mul', 'where'], v7 = const(2.0))
        >>> trace(lambda xp, x: xp.sum(x * x), np.zeros(2)).inputs[0][1].value
        (0, 1)
    """
    builder = Builder()
    xp = Namespace(builder)

    def enter(path: tuple[Any, ...], leaf: Any) -> Symbols:
        array = np.asarray(leaf)
        kind = _KINDS[array.dtype.kind]
        nodes = np.empty(array.shape, dtype=object)
        if not array.ndim:
            nodes[()] = builder.input(path, kind)
        else:
            flat = [builder.input((*path, place), kind) for place in range(array.size)]
            nodes.ravel()[:] = flat
        return Symbols(xp, nodes)

    def leave(leaf: Any) -> Any:
        nodes = xp.asarray(leaf).nodes
        return nodes if nodes.ndim else nodes.item()

    inputs = mapped_with_path(enter, templates)
    output = function(xp, *inputs)
    return Graph(mapped(leave, inputs), mapped(leave, output))
