"""Run array code once on symbols, and write down what it computes, number by number.

    from driftrate._trace import trace
    graph = trace(rule.step, rule._start(), Signal(cross=1.0, spread=1.0))

`trace(function, *templates)` calls `function(xp, *symbols)`. A template is a number, a NumPy array
or None, or dictionaries, tuples, named tuples, lists and dataclasses of them; only the kinds and
shapes of its leaves matter. `xp` has the array API's names that this library uses, and symbols know
it as their namespace, so that `array_namespace(symbol)` works as well. Shapes are static: an array
is unrolled into its numbers, of which each is a `Node`.

    node.op       its operation, one of `OPS`, or "input" or "const"
    node.args     the nodes that it reads
    node.kind     "float", "int" or "bool"
    node.value    of a constant: the number; of an input: its path, (0, "inner", "level", 3): the
                  place of the template, keys or field names, the place in the flattened array
    node.name     a name that is unique in the graph and legal in any language

    graph.inputs  the templates with nodes for numbers, and NumPy arrays of nodes for arrays
    graph.output  what the function returned, in the same manner
    graph.nodes   all nodes that the output needs, each after what it reads
    graph.ops()   the operations among them: no inputs, no constants, and none twice
    graph.leaves(tree)   the (path, node or array of nodes) of `graph.output` or one of the inputs

Operations are pure; so `where` may be emitted as a lazy conditional. Constants are folded as Python
would compute them. Two liberties are taken, both only where every value is finite: 0·x and 0/x
are 0, and the sign of a zero is not kept. Emitters: `python.source` here, and others elsewhere.
"""

from driftrate._trace.graph import OPS, Graph, Node
from driftrate._trace.record import trace

__all__ = ["OPS", "Graph", "Node", "trace"]
