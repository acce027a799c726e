"""The cells of a race, ordered so that a first table is there soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product

from driftrate.errors import ConfigError
from driftrate.race.cell import Cell, Reading
from driftrate.race.code import code_of
from driftrate.race.contestants import Contestant
from driftrate.race.settings import Race
from driftrate.race.sources import Source, resolve

_NOT_FILES = ("river", "openml", "synthetic", "cytometry")


@dataclass(frozen=True)
class Plan:
    """What is raced.

    Args:
        sources: The streams by how they were given.
        contestants: The methods by name.
        absent: Why methods that were not asked for by name cannot run here.
        cells: What to play; defaults before grids, and short streams before long ones.
    """

    sources: Mapping[str, Source]
    contestants: Mapping[str, Contestant]
    absent: Mapping[str, str]
    cells: Sequence[Cell]

    @property
    def names(self) -> dict[str, str]:
        """The name of each stream by how it was given; that itself where two have one name."""
        names = [source.name for source in self.sources.values()]
        return {
            spec: source.name if names.count(source.name) == 1 else spec
            for spec, source in self.sources.items()
        }


def make_plan(race: Race, roster: Mapping[str, Contestant]) -> Plan:
    """Return the cells of a race.

    Args:
        race: What to race, and how.
        roster: All methods there are.

    Raises:
        ConfigError: A method is unknown, or no method fits.
        DriftrateError: A stream cannot be read.
    """
    chosen, absent = _choose(roster, race.methods)
    files = [spec for spec in race.streams if spec.partition(":")[0] not in _NOT_FILES]
    sources: dict[str, Source] = {}
    readings: dict[str, Reading] = {}
    for spec in dict.fromkeys(race.streams):
        # Columns belong to files; without any file, `resolve` says so.
        ours = race.reading if spec in files or not files else race.reading.without_columns()
        sources[spec] = resolve(spec, ours)
        readings[spec] = replace(ours, model=sources[spec].model)
    cells = []
    for spec, source in sources.items():
        for name, contestant in chosen.items():
            settings = contestant.settings(source.model)[: None if race.grid else 1]
            for seed, (turn, setting) in product(range(race.seeds), enumerate(settings)):
                played = (name, setting, seed, source.fingerprint, code_of(contestant))
                cell = Cell(spec, *played, **vars(readings[spec]))
                cells.append(((turn > 0, source.rows, spec, seed), cell))
    if not cells:
        raise ConfigError(f"no method of {', '.join(chosen)} fits these streams and this model")
    ordered = [cell for _, cell in sorted(cells, key=lambda pair: pair[0])]
    return Plan(sources, chosen, absent, ordered)


def _choose(
    roster: Mapping[str, Contestant], methods: Sequence[str]
) -> tuple[dict[str, Contestant], dict[str, str]]:
    spelled = {name.casefold(): name for name in roster}
    chosen = {}
    for method in methods:
        name = spelled.get(method.casefold())
        if name is None:
            near = get_close_matches(method.casefold(), spelled, n=3)
            hint = f"did you mean {' or '.join(spelled[one] for one in near)}?" if near else ""
            hint = hint or f"choose from {', '.join(roster)}"
            raise ConfigError(f"unknown method {method!r}: {hint}")
        reason = roster[name].available()
        if reason is not None:
            raise ConfigError(f"method {name} cannot run here: {reason}")
        chosen[name] = roster[name]
    if methods:
        return chosen, {}
    reasons = {name: contestant.available() for name, contestant in roster.items()}
    absent = {name: reason for name, reason in reasons.items() if reason is not None}
    return {name: one for name, one in roster.items() if name not in absent}, absent
