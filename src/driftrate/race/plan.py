"""The cells of a race, ordered so that a first table is there soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path

from driftrate.errors import ConfigError, DataError
from driftrate.race.cell import Cell, Reading
from driftrate.race.code import code_of
from driftrate.race.contestants import Contestant
from driftrate.race.drift import checks
from driftrate.race.networks.suite import specifications
from driftrate.race.settings import Race
from driftrate.race.sources import NOT_FILES, Source, resolve


@dataclass(frozen=True)
class Plan:
    """The streams by how they were given, the methods by name, and the cells to play.

    Cells at defaults come before grids, and short streams before long ones. `checks` are those on
    shuffled rows, which are played last and are in no table. `absent` says why methods, and streams
    of a suite, that were not asked for by name cannot run here; `readings` how each stream is read.
    """

    sources: Mapping[str, Source]
    readings: Mapping[str, Reading]
    contestants: Mapping[str, Contestant]
    absent: Mapping[str, str]
    cells: Sequence[Cell]
    checks: Sequence[Cell] = ()

    @property
    def names(self) -> dict[str, str]:
        """The name of each stream by how it was given; that itself where two have one name."""
        names = [source.name for source in self.sources.values()]
        return {
            spec: source.name if names.count(source.name) == 1 else spec
            for spec, source in self.sources.items()
        }


def make_plan(race: Race, roster: Mapping[str, Contestant]) -> Plan:
    """Return the cells of a race among the methods of a roster.

    Raises:
        ConfigError: A method is unknown, or no method fits.
        DriftrateError: A stream cannot be read.
    """
    chosen, absent = _choose(roster, race.methods)
    sources: dict[str, Source] = {}
    readings: dict[str, Reading] = {}
    cells = []
    for spec, wanted in _readings(race).items():
        try:
            source = sources[spec] = resolve(spec, wanted)
        except DataError as error:
            if spec in race.streams or spec.startswith("texts:"):
                raise  # what was asked for by name
            absent[Path(spec).stem.removeprefix("networks:")] = str(error)
            continue
        reading = readings[spec] = replace(wanted, model=source.model)
        for name, contestant in chosen.items():
            settings = contestant.settings(source.model)[: None if race.grid else 1]
            for seed, (turn, setting) in product(range(race.seeds), enumerate(settings)):
                played = (name, setting, seed, source.fingerprint, code_of(contestant))
                cell = Cell(spec, *played, **vars(reading))
                cells.append(((turn > 0, source.rows, spec, seed), cell))
    if not cells:
        raise ConfigError(f"no method of {', '.join(chosen)} fits these streams and this model")
    ordered = [cell for _, cell in sorted(cells, key=lambda pair: pair[0])]
    found = checks(ordered, sources) if race.drift else ()
    return Plan(sources, readings, chosen, absent, ordered, found)


def _readings(race: Race) -> dict[str, Reading]:
    """Return every stream of a race with how it is read."""
    files = [spec for spec in race.streams if _is_file(spec)]
    # Columns belong to files; without any file, `resolve` says so.
    plain = race.reading.without_columns()
    found = {spec: race.reading if spec in files or not files else plain for spec in race.streams}
    if race.suite is not None:
        for spec in specifications():
            target = "y" if _is_file(spec) else None
            # The plain scale is the protocol's, whatever other streams are scaled by.
            found.setdefault(spec, replace(plain, model="mlp", target=target, scale="plain"))
    if race.texts is not None:
        found[f"texts:{race.texts}"] = replace(plain, model="mlp")
    return found


def _is_file(spec: str) -> bool:
    return spec.partition(":")[0] not in NOT_FILES


def _choose(
    roster: Mapping[str, Contestant], methods: Sequence[str]
) -> tuple[dict[str, Contestant], dict[str, str]]:
    spelled = {name.casefold(): name for name in roster}
    chosen = {}
    for method in methods:
        name = spelled.get(method.casefold())
        if name is None:
            near = [spelled[one] for one in get_close_matches(method.casefold(), spelled, n=3)]
            hint = f"did you mean {' or '.join(near)}?" if near else ""
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
