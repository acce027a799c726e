"""The options of a race, each in one place: the command line is made from this record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from driftrate.errors import ConfigError
from driftrate.race.cell import Reading


@dataclass(frozen=True)
class Race(Reading):
    """What to race, and how: how the streams are read, and the following.

    Args:
        streams: CSV or Parquet files, river:NAME, openml:NAME, cytometry, networks:NAME, or for
            example synthetic:spiral,dim=128,hold=8.
        suite: networks, for the protocols of docs/networks.md.
        texts: A folder of texts, or texts.npz, for a byte-level transformer.
        methods: Methods, with commas between; all that are installed if none.
        seeds: Seeds of each method and setting.
        grid: Also run each method on a small grid of settings.
        drift: Also run a few methods on shuffled rows, to see whether a stream drifts.
        engine: local or dask.
        scheduler: The address of a Dask scheduler, host:port.
        jobs: Cells that are played at once.
        limit: Seconds that one method may take on one stream.

    Example:
        >>> Race(["a.csv"], target="y", batch=8).reading == Reading(target="y", batch=8)
        True
    """

    streams: Sequence[str]
    suite: str | None = None
    texts: str | None = None
    methods: Sequence[str] = ()
    seeds: int = 1
    grid: bool = field(default=True, metadata={"flag": "--grid/--defaults-only"})
    drift: bool = field(default=True, metadata={"flag": "--drift/--no-drift"})
    engine: str = "local"
    scheduler: str | None = None
    jobs: int = 2
    limit: float | None = 600.0

    def __post_init__(self) -> None:
        self.check_counts("batch", "seeds", "jobs")
        self.check_words()
        if self.suite not in (None, "networks"):
            raise ConfigError(f"suite must be networks, got {self.suite!r}")
        if not (self.streams or self.suite or self.texts):
            said = "name a file, or for example synthetic:spiral, or --suite networks"
            raise ConfigError(f"no stream given: {said}")
        if self.limit is not None and not self.limit >= 0:
            raise ConfigError(f"limit must be a number of seconds >= 0, got {self.limit!r}")

    @property
    def reading(self) -> Reading:
        """How the streams are read."""
        return Reading(**{one.name: getattr(self, one.name) for one in fields(Reading)})
