"""Schedules as JSON, for a model's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from driftrate import estimate
from driftrate.errors import StateError
from driftrate.schedules.base import Rule, registry


def encode(rule: Any) -> dict[str, Any]:
    """Write a schedule's constants for JSON."""

    def one(value: Any) -> Any:
        if isinstance(value, Rule):
            return encode(value)
        return list(value) if isinstance(value, tuple) else value

    constants = {field.name: one(getattr(rule, field.name)) for field in fields(rule)}
    return {"rule": type(rule).__name__, "constants": constants}


def decode(saved: Mapping[str, Any]) -> Rule:
    """Make a schedule or estimator; a file must not choose which module is imported."""

    def one(value: Any) -> Any:
        if isinstance(value, dict):
            return decode(value)
        return tuple(value) if isinstance(value, list) else value

    known: dict[str, Any] = vars(estimate) | registry()
    rule = known.get(saved["rule"])
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise StateError(
            f"the saved optimizer follows {saved['rule']!r}, which is not a registered schedule"
        )
    return rule(**{name: one(value) for name, value in saved["constants"].items()})
