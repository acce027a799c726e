"""The cells of a race, in the order in which they tell most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from driftrate._digest import digest
from driftrate.errors import ConfigError
from driftrate.race.cell import Cell
from driftrate.race.contestants import Contestant
from driftrate.race.sources import Source, resolve

_NOT_FILES = ("river", "openml", "synthetic", "cytometry")


@dataclass(frozen=True)
class Plan:
    """What is raced.

    Args:
        sources: The streams by how they were given.
        contestants: The methods by name.
        absent: Why methods that were not asked for by name cannot run here.
        cells: What to play; defaults before grids and short streams before long ones, so that a
            first table is there soon.
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


def make_plan(
    streams: Sequence[str],
    roster: Mapping[str, Contestant],
    *,
    target: str | None = None,
    time: str | None = None,
    methods: Sequence[str] = (),
    model: str | None = None,
    batch: int = 16,
    seeds: int = 1,
    grid: bool = True,
) -> Plan:
    """Return the cells of a race.

    Args:
        streams: Files, or names as `resolve` takes them.
        roster: All methods there are.
        target: The target column of the files.
        time: The time column of the files.
        methods: The methods to race; all that are installed if empty.
        model: The model; the linear one that fits the target if None.
        batch: Rows in a batch.
        seeds: Seeds of each method and setting.
        grid: Whether to run the grids beside the defaults.

    Raises:
        ConfigError: A method is unknown, or no method fits.
        DriftrateError: A stream cannot be read.
    """
    if not streams:
        raise ConfigError("no stream given: name a file, or for example synthetic:spiral")
    chosen, absent = _choose(roster, methods)
    files = [spec for spec in streams if spec.partition(":")[0] not in _NOT_FILES]
    sources: dict[str, Source] = {}
    places: dict[str, tuple[str | None, str | None]] = {}
    for spec in dict.fromkeys(streams):
        # Columns belong to files; without any file, `resolve` says so.
        places[spec] = (target, time) if spec in files or not files else (None, None)
        sources[spec] = resolve(spec, *places[spec], model, batch)
    cells = [
        (
            (turn > 0, source.rows, spec, seed),
            Cell(
                spec,
                *places[spec],
                source.model,
                batch,
                name,
                setting,
                seed,
                source.fingerprint,
                digest(contestant),
            ),
        )
        for spec, source in sources.items()
        for seed in range(seeds)
        for name, contestant in chosen.items()
        for turn, setting in enumerate(contestant.settings(source.model)[: None if grid else 1])
    ]
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
