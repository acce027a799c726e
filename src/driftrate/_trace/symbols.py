"""Arrays of symbols, and the array API's functions on them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from driftrate._trace.graph import Builder, Kind, Node

_DTYPES: dict[Kind, np.dtype[Any]] = {
    "float": np.dtype(np.float64),
    "int": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
_NUMBERS = "fiub"  # the kinds of NumPy arrays that become constants


class Symbols:
    """An array of nodes, of static shape; a number is an array of no axes."""

    __slots__ = ("nodes", "xp")
    __array_ufunc__ = None  # NumPy's numbers leave operators to this class

    def __init__(self, xp: Namespace, nodes: Any) -> None:
        self.xp = xp
        # np.asarray would look into a node; an object array of no axes holds it as it is.
        self.nodes: np.ndarray[Any, Any] = nodes if isinstance(nodes, np.ndarray) else _box(nodes)

    def __array_namespace__(self, api_version: str | None = None) -> Namespace:
        """Return the namespace of symbols."""
        return self.xp

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(self.nodes.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.nodes.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that NumPy's array would have."""
        return _DTYPES[self.nodes.ravel()[0].kind] if self.nodes.size else _DTYPES["float"]

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, key: Any) -> Symbols:
        return Symbols(self.xp, self.nodes[key])

    def _unknown(self, *_: object) -> NoReturn:
        raise TypeError("a symbol has no value: branch on values with xp.where")

    __bool__ = __float__ = __int__ = __index__ = _unknown

    def _do(self, op: str, *others: Any) -> Symbols:
        return self.xp.apply(op, self, *others)

    def __add__(self, other: Any) -> Symbols:
        return self._do("add", other)

    def __radd__(self, other: Any) -> Symbols:
        return self.xp.apply("add", other, self)

    def __sub__(self, other: Any) -> Symbols:
        return self._do("sub", other)

    def __rsub__(self, other: Any) -> Symbols:
        return self.xp.apply("sub", other, self)

    def __mul__(self, other: Any) -> Symbols:
        return self._do("mul", other)

    def __rmul__(self, other: Any) -> Symbols:
        return self.xp.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Symbols:
        return self._do("div", other)

    def __rtruediv__(self, other: Any) -> Symbols:
        return self.xp.apply("div", other, self)

    def __floordiv__(self, other: Any) -> Symbols:
        return self._do("floordiv", other)

    def __mod__(self, other: Any) -> Symbols:
        return self._do("mod", other)

    def __pow__(self, other: Any) -> Symbols:
        return self._do("pow", other)

    def __rpow__(self, other: Any) -> Symbols:
        return self.xp.apply("pow", other, self)

    def __neg__(self) -> Symbols:
        return self._do("neg")

    def __abs__(self) -> Symbols:
        return self._do("abs")

    def __lt__(self, other: Any) -> Symbols:
        return self._do("lt", other)

    def __le__(self, other: Any) -> Symbols:
        return self._do("le", other)

    def __gt__(self, other: Any) -> Symbols:
        return self.xp.apply("lt", other, self)

    def __ge__(self, other: Any) -> Symbols:
        return self.xp.apply("le", other, self)

    def __eq__(self, other: object) -> Symbols:  # type: ignore[override]
        return self._do("eq", other)

    def __ne__(self, other: object) -> Symbols:  # type: ignore[override]
        return self._do("ne", other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> Symbols:
        return self._do("and", other)

    def __rand__(self, other: Any) -> Symbols:
        return self.xp.apply("and", other, self)

    def __or__(self, other: Any) -> Symbols:
        return self._do("or", other)

    def __ror__(self, other: Any) -> Symbols:
        return self.xp.apply("or", other, self)

    def __invert__(self) -> Symbols:
        return self._do("not")


def _box(node: Any) -> np.ndarray[Any, Any]:
    box = np.empty((), dtype=object)
    box[()] = node
    return box


def _unary(op: str) -> Callable[[Namespace, Any], Symbols]:
    return lambda xp, x: xp.apply(op, x)


def _binary(op: str) -> Callable[[Namespace, Any, Any], Symbols]:
    return lambda xp, a, b: xp.apply(op, a, b)


class Namespace:
    """The array API's names, as far as this library uses them, on symbols."""

    __name__ = "driftrate._trace"

    bool, int64, float64 = _DTYPES["bool"], _DTYPES["int"], _DTYPES["float"]
    isdtype = staticmethod(np.isdtype)
    finfo = staticmethod(np.finfo)

    exp, expm1, log, log1p = _unary("exp"), _unary("expm1"), _unary("log"), _unary("log1p")
    sqrt, sin, cos, abs = _unary("sqrt"), _unary("sin"), _unary("cos"), _unary("abs")
    isfinite, logical_not = _unary("isfinite"), _unary("not")
    logical_and, logical_or, hypot = _binary("and"), _binary("or"), _binary("hypot")

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._functions: dict[str, Any] = {}

    def __array_namespace_info__(self) -> Any:
        """Return what the standard asks of a namespace; here the default types."""
        defaults = {"real floating": self.float64, "integral": self.int64, "bool": self.bool}
        return SimpleNamespace(default_dtypes=lambda: defaults)

    def apply(self, op: str, *args: Any) -> Symbols:
        """Return an operation entry by entry, with NumPy's broadcasting."""
        function = self._functions.get(op)
        if function is None:

            def one(*nodes: Node) -> Node:
                return self._builder.op(op, *nodes)

            function = self._functions[op] = np.frompyfunc(one, len(args), 1)
        return Symbols(self, function(*(self.asarray(arg).nodes for arg in args)))

    def asarray(self, value: Any, dtype: Any = None) -> Symbols:
        """Return symbols, constants where the value is known."""
        if not isinstance(value, Symbols):
            array = np.asarray(value)
            if array.dtype.kind not in _NUMBERS:
                raise TypeError(f"a symbol, a number or an array is needed, got {value!r}")
            flat = [self._builder.const(number) for number in array.ravel().tolist()]
            nodes = np.empty(len(flat), dtype=object)
            nodes[:] = flat
            value = Symbols(self, nodes.reshape(array.shape))
        return value if dtype is None else self.astype(value, dtype)

    def astype(self, x: Symbols, dtype: Any) -> Symbols:
        """Return floats of integers or truths; no other conversion is needed."""
        if np.dtype(dtype).kind == "f":
            return self.apply("float", x)
        if np.dtype(dtype).kind != x.dtype.kind:
            raise TypeError(f"symbols of {x.dtype} do not become {dtype}")
        return x

    def full_like(self, x: Symbols, value: Any, dtype: Any = None) -> Symbols:
        """Return one value in the shape of another array."""
        filled = np.broadcast_to(self.asarray(value).nodes, x.shape)
        return self.astype(Symbols(self, filled), x.dtype if dtype is None else dtype)

    def zeros_like(self, x: Symbols) -> Symbols:
        """Return zeros."""
        return self.full_like(x, _ZERO[x.dtype.kind])

    def ones_like(self, x: Symbols) -> Symbols:
        """Return ones."""
        return self.full_like(x, _ONE[x.dtype.kind])

    def zeros(self, shape: Any, dtype: Any = None) -> Symbols:
        """Return zeros of a shape."""
        return self.asarray(np.zeros(shape, dtype))

    def ones(self, shape: Any, dtype: Any = None) -> Symbols:
        """Return ones of a shape."""
        return self.asarray(np.ones(shape, dtype))

    def arange(self, *args: Any, dtype: Any = None) -> Symbols:
        """Return a range of known numbers."""
        return self.asarray(np.arange(*args, dtype=dtype))

    def where(self, condition: Any, a: Any, b: Any) -> Symbols:
        """Return `a` where the condition holds, else `b`."""
        return self.apply("where", condition, a, b)

    def minimum(self, a: Any, b: Any) -> Symbols:
        """Return the smaller one."""
        return self.where(self.apply("lt", b, a), b, a)

    def maximum(self, a: Any, b: Any) -> Symbols:
        """Return the larger one."""
        return self.where(self.apply("lt", a, b), b, a)

    def clip(self, x: Any, low: Any = None, high: Any = None) -> Symbols:
        """Return a value within bounds."""
        x = self.asarray(x)
        x = x if low is None else self.maximum(x, low)
        return x if high is None else self.minimum(x, high)

    def stack(self, arrays: Sequence[Any], axis: int = 0) -> Symbols:
        """Return arrays along a new axis."""
        return Symbols(self, np.stack([self.asarray(a).nodes for a in arrays], axis))

    def concat(self, arrays: Sequence[Any], axis: int = 0) -> Symbols:
        """Return arrays one after the other."""
        return Symbols(self, np.concatenate([self.asarray(a).nodes for a in arrays], axis))

    def reshape(self, x: Symbols, shape: Any) -> Symbols:
        """Return the numbers in another shape."""
        return Symbols(self, x.nodes.reshape(shape))

    def broadcast_to(self, x: Any, shape: Any) -> Symbols:
        """Return the array repeated to a shape."""
        return Symbols(self, np.broadcast_to(self.asarray(x).nodes, shape))

    def _reduce(self, function: Any, x: Any, axis: Any, keepdims: Any) -> Symbols:
        """Fold along axes from the first entry on."""
        nodes = self.asarray(x).nodes
        axes = range(nodes.ndim) if axis is None else axis
        axes = axes if isinstance(axes, (tuple, range)) else (axes,)
        places = sorted(place % nodes.ndim for place in axes)
        rows = np.moveaxis(nodes, places, range(len(places)))
        rows = rows.reshape(-1, *rows.shape[len(places) :])
        total = Symbols(self, rows[0])
        for row in rows[1:]:
            total = function(total, Symbols(self, row))
        if keepdims:
            lengths = [1 if place in places else n for place, n in enumerate(nodes.shape)]
            total = self.reshape(total, lengths)
        return total

    def sum(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return the sum, from the first entry to the last."""
        return self._reduce(operator.add, x, axis, keepdims)

    def mean(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return the mean."""
        total = self.sum(x, axis, keepdims)
        return total / float(self.asarray(x).nodes.size / max(total.nodes.size, 1))

    def min(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return the smallest entry."""
        return self._reduce(self.minimum, x, axis, keepdims)

    def max(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return the largest entry."""
        return self._reduce(self.maximum, x, axis, keepdims)

    def all(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return whether all entries hold."""
        return self._reduce(operator.and_, x, axis, keepdims)

    def any(self, x: Any, axis: Any = None, keepdims: Any = False) -> Symbols:
        """Return whether any entry holds."""
        return self._reduce(operator.or_, x, axis, keepdims)

    def cumulative_sum(self, x: Symbols, axis: int = 0) -> Symbols:
        """Return the sums so far."""
        rows = [Symbols(self, row) for row in np.moveaxis(x.nodes, axis, 0)]
        for place in range(1, len(rows)):
            rows[place] = rows[place - 1] + rows[place]
        return self.stack(rows, axis)

    def vecdot(self, a: Any, b: Any, axis: int = -1) -> Symbols:
        """Return inner products."""
        return self.sum(self.asarray(a) * b, axis)

    def matmul(self, a: Symbols, b: Symbols) -> Symbols:
        """Return the product of matrices, with leading axes."""
        return self.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


_ZERO: dict[str, Any] = {"f": 0.0, "i": 0, "b": False}
_ONE: dict[str, Any] = {"f": 1.0, "i": 1, "b": True}
