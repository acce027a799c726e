"""The race: one stream, every method one would otherwise pick, the same batches for all."""

from driftrate.race.cell import CURVE_POINTS, Cell, Reading, Result, Status, canonical
from driftrate.race.contestants import Contestant, contestants
from driftrate.race.play import play
from driftrate.race.settings import Race
from driftrate.race.sources import Source, resolve

__all__ = [
    "CURVE_POINTS",
    "Cell",
    "Contestant",
    "Race",
    "Reading",
    "Result",
    "Source",
    "Status",
    "canonical",
    "contestants",
    "play",
    "resolve",
]
