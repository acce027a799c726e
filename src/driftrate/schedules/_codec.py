"""States to JSON and back, bit by bit, labelled with the schedule's name and version."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace, device, is_array_api_obj

from driftrate.errors import StateError

if TYPE_CHECKING:
    from driftrate.schedules.base import Rule

# A file must not choose which module is imported.
_LIBRARIES = {
    "array_api_compat.numpy": "numpy",
    "array_api_compat.torch": "torch",
    "jax.numpy": "jax",
}
_MODULES = {name: module for module, name in _LIBRARIES.items()}
_UNREADABLE = AttributeError, KeyError, TypeError, ValueError, RuntimeError, ImportError


def _plain(value: Any) -> Any:
    """Write NaN and the infinities as strings: JSON has no word for them."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, int) or isfinite(value) else repr(value)


def _real(value: Any) -> Any:
    if isinstance(value, list):
        return [_real(item) for item in value]
    return float(value) if isinstance(value, str) else value


def _encode(leaf: Any) -> Any:
    if not is_array_api_obj(leaf):
        return _plain(leaf)
    module = array_namespace(leaf).__name__
    return {
        "library": _LIBRARIES.get(module, module),
        "dtype": str(leaf.dtype).rpartition(".")[2],
        "device": str(device(leaf)),
        "data": _plain(leaf.tolist()),
    }


def _decode(node: Any, like: Any, template: Any) -> Any:
    data = _real(node["data"]) if isinstance(node, Mapping) else _real(node)
    vector = is_array_api_obj(template)
    if vector and (not isinstance(data, list) or len(data) != len(template)):
        raise ValueError(f"a vector of {len(template)} is needed, got {str(data)[:60]}")
    if is_array_api_obj(like):
        xp, place = array_namespace(like), device(like)
        kind = None if isinstance(template, int) else like.dtype
        return xp.asarray(data, dtype=kind, device=place)
    if isinstance(like, float) or not isinstance(node, Mapping):
        if vector:
            return array_namespace(template).asarray(data, dtype=template.dtype)
        return type(template)(data)
    if node["library"] not in _MODULES:
        raise StateError(f"the state is of an unknown library {node['library']!r}: pass like=")
    xp = import_module(_MODULES[node["library"]])
    place = node["device"] if node["library"] == "torch" else None
    array = xp.asarray(data, dtype=getattr(xp, node["dtype"]), device=place)
    if str(array.dtype).rpartition(".")[2] != node["dtype"]:
        raise StateError(
            f"the state is of {node['dtype']}, which {node['library']} turned into {array.dtype}:"
            " enable 64-bit numbers there, or pass like="
        )
    return array


def dump(rule: Rule, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON-ready dictionary."""

    def walk(node: Mapping[str, Any]) -> dict[str, Any]:
        return {k: walk(v) if isinstance(v, dict) else _encode(v) for k, v in node.items()}

    return {"schedule": rule.name, "version": rule.version, "state": walk(state)}


def load(rule: Rule, saved: Mapping[str, Any], like: Any) -> dict[str, Any]:
    """Return the state, or raise an error that says in one line why it cannot be loaded."""
    if not isinstance(saved, Mapping) or not {"schedule", "version", "state"} <= saved.keys():
        raise StateError(f"not a saved state of {rule.name}: {str(saved)[:60]!r}")
    if saved["schedule"] != rule.name:
        raise StateError(f"the state is of {saved['schedule']}, not of {rule.name}")
    if saved["version"] != rule.version:
        raise StateError(
            f"the state of {rule.name} is of version {saved['version']!r}; this driftrate reads"
            f" version {rule.version}"
        )

    def walk(node: Any, template: Mapping[str, Any], path: str) -> dict[str, Any]:
        if not isinstance(node, Mapping) or node.keys() != template.keys():
            have = sorted(node) if isinstance(node, Mapping) else node
            raise StateError(
                f"{path} of a saved {rule.name} must hold {sorted(template)}, it holds {have!r}"
            )
        return {
            key: walk(node[key], leaf, f"{path}.{key}")
            if isinstance(leaf, dict)
            else _leaf(node[key], leaf, f"{path}.{key}")
            for key, leaf in template.items()
        }

    def _leaf(node: Any, template: Any, path: str) -> Any:
        try:
            return _decode(node, like, template)
        except StateError:
            raise
        except _UNREADABLE as error:
            raise StateError(f"{path} of a saved {rule.name} cannot be read: {error}") from error

    return walk(saved["state"], rule._start(), "state")
