"""Streams that have several figures, such as the loss at rest and after it: each is a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from driftrate.race.cell import Cell, Result, without_result
from driftrate.race.plan import Plan


def spread(results: Mapping[Cell, Result], plan: Plan) -> tuple[dict[Cell, Result], dict[str, str]]:
    """Return results with one cell for each figure, and the names of the streams with them.

    A figure has a loss and an error, and no curves: those are of the whole stream.
    """
    figures = {
        spec: source.protocol.figures
        for spec, source in plan.sources.items()
        if source.protocol is not None and source.protocol.figures
    }
    names: dict[str, str] = {}
    for spec, name in plan.names.items():
        names |= {f"{spec}#{one}": f"{name}: {one}" for one in figures.get(spec, ())}
        if spec not in figures:
            names[spec] = name
    found: dict[Cell, Result] = {}
    for cell, result in results.items():
        if cell.stream not in figures:
            found[cell] = result
        for one in figures.get(cell.stream, ()):
            figure = without_result(result["status"], result["message"])
            figure["steps"], figure["seconds_per_step"] = (
                result["steps"],
                result["seconds_per_step"],
            )
            if result["status"] == "ok":
                figure["loss"], figure["error"] = result["figures"][one]
            found[replace(cell, stream=f"{cell.stream}#{one}")] = figure
    return found, names
