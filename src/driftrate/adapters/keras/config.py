"""Schedules as JSON, for a model's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from driftrate import estimate
from driftrate.errors import StateError
from driftrate.schedules.base import Estimator, Rule, registry


def encode(rule: Rule) -> dict[str, Any]:
    """Write a schedule's constants for JSON."""
    constants = {field.name: getattr(rule, field.name) for field in fields(rule)}  # type: ignore[arg-type]
    return {
        "rule": type(rule).__name__,
        "constants": {
            name: encode(value)
            if isinstance(value, Rule)
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in constants.items()
        },
    }


def decode(saved: Mapping[str, Any]) -> Rule:
    """Make a schedule or estimator; a file must not choose which module is imported."""
    known: dict[str, type[Rule]] = dict(registry())
    for value in vars(estimate).values():
        if isinstance(value, type) and issubclass(value, Estimator):
            known[value.__name__] = value
    if saved["rule"] not in known:
        raise StateError(
            f"the saved optimizer follows {saved['rule']!r}, which is not a registered schedule"
        )
    return known[saved["rule"]](
        **{
            name: decode(value)
            if isinstance(value, dict)
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in saved["constants"].items()
        }
    )
