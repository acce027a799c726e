"""Cells of the mouse pancreas, and the stream of them that the paper trains a network on."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1, sha256
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftrate.data.h5ad import Counts, read_counts
from driftrate.errors import ConfigError, DataError, MissingDependency, needs

# The paper prints Rsp3 for Rps3.
GENES = ("Pyy", "Meg3", "Malat1", "Gcg", "Gnas", "Actb", "Ghrl", "Rps3", "Ins2", "Hspa8")
CLASSES = ("Alpha", "Beta", "Delta", "Ductal")
# The median number of counts in one of the file's 3,696 cells, to which every cell is scaled.
MEDIAN_SIZE = 6194.0

URL = (
    "https://github.com/theislab/scvelo_notebooks/raw/master/data/Pancreas/"
    "endocrinogenesis_day15.h5ad"
)
BLOB = "720aa1de23e31666d17e5193c9c7e6d9fb2bf4c8"  # what git calls the file: SHA-1 with a header
FILES = ("endocrinogenesis_day15.h5ad", "pancreas10.csv.gz", "pancreas10.csv")
# The one gene that a CSV may leave blank, and the seeds of what is drawn here, fixed for ever.
_BLANK, _IMPUTATION_SEED, _SIMULATION_SEED = "Rps3", 15, 155


class Phase(NamedTuple):
    """A stretch of the stream: the shares of the classes and how many steps they last."""

    shares: tuple[float, float, float, float]
    steps: int


PHASES = (
    Phase((0.0, 0.0, 0.0, 1.0), 100),
    Phase((0.0, 0.0, 0.1, 0.9), 100),
    Phase((0.1, 0.0, 0.2, 0.7), 200),
    Phase((0.3, 0.5, 0.1, 0.1), 200),
)


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of four types by the expression of ten genes.

    Args:
        expression: Counts scaled to equal size, k · 6194 / (all counts of the cell); (cells, 10).
        label: The type of each cell, a place in `CLASSES`.
        measured: Whether all ten genes of the cell were measured, none imputed.
        source: Where the cells come from, in words for a figure.
        note: Why it is this source and no better one; may be empty.
        simulated: Whether the cells are drawn from the built-in figures.

    Example:
        >>> cells = simulate_cells()
        >>> cells.expression.shape, cells.simulated
        ((2058, 10), True)
    """

    expression: npt.NDArray[np.float64]
    label: npt.NDArray[np.int64]
    measured: npt.NDArray[np.bool_]
    source: str
    note: str = ""
    simulated: bool = False

    @property
    def imputed(self) -> int:
        """How many cells have a gene that was drawn from others of their class."""
        return int((~self.measured).sum())

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any number in the cells."""
        parts = (self.expression, self.label, self.measured)
        return sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class CellStream:
    """Batches of cells whose mixture of types shifts from phase to phase.

    A sample is a cell drawn uniformly from a class that is drawn from the phase's shares, each of
    its ten expressions multiplied by U ~ [1 - jitter, 1 + jitter], i.i.d.

    Args:
        cells: The cells.
        order: The classes that the shares of a phase stand for. The paper lists (ductal, alpha,
            beta, delta), but says that the first phase is all ductal, which is this default.
        phases: The phases.
        batch_size: B, the samples of one seed in one step.
        jitter: The largest relative change of an expression.

    Example:
        >>> stream = CellStream(simulate_cells())
        >>> x, label = next(stream.batches([0, 1]))
        >>> x.shape, label.shape, stream.steps, stream.shifts
        ((2, 64, 10), (2, 64), 600, (100, 200, 400))

    Reference:
        Fahrbach, Javanmard, Mirrokni and Worah (2023), Section 6.2.
    """

    cells: Cells
    order: tuple[str, ...] = CLASSES
    phases: tuple[Phase, ...] = PHASES
    batch_size: int = 64
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(CLASSES):
            raise ConfigError(f"order must be an order of {CLASSES}, got {self.order!r}")
        for phase in self.phases:
            if min(phase.shares) < 0 or abs(sum(phase.shares) - 1) > 1e-9 or phase.steps < 1:
                raise ConfigError(f"a phase needs shares >= 0 of sum 1 and steps >= 1, got {phase}")
        if self.batch_size < 1 or not 0 <= self.jitter < 1:
            got = f"got {self.batch_size!r} and {self.jitter!r}"
            raise ConfigError(f"a stream needs batch_size >= 1 and jitter in [0, 1), {got}")

    @property
    def steps(self) -> int:
        """The length of the stream."""
        return sum(phase.steps for phase in self.phases)

    @property
    def shifts(self) -> tuple[int, ...]:
        """The steps, counted from 0, at which a new phase begins."""
        return tuple(np.cumsum([phase.steps for phase in self.phases])[:-1].tolist())

    def batches(
        self, seeds: Sequence[int]
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """Draw the stream of each seed; a seed's stream does not depend on the other seeds.

        Args:
            seeds: The seeds.

        Yields:
            For each step the expressions (seeds, batch, 10) and labels (seeds, batch).
        """
        pools = [np.flatnonzero(self.cells.label == CLASSES.index(name)) for name in self.order]
        ordered = np.concatenate(pools)
        sizes = np.array([len(pool) for pool in pools])
        starts = np.cumsum(sizes) - sizes
        expression = self.cells.expression.astype(np.float32)
        generators = [np.random.default_rng([0, seed]) for seed in seeds]
        for phase in self.phases:
            edges = np.cumsum(phase.shares)[:-1]
            shape = (phase.steps, self.batch_size)
            x = np.empty((len(seeds), *shape, len(GENES)), dtype=np.float32)
            label = np.empty((len(seeds), *shape), dtype=np.int64)
            for slot, rng in enumerate(generators):
                # side="right" gives a class of share 0 no chance, not even where a draw is 0.
                drawn = np.searchsorted(edges, rng.random(shape), side="right")
                place = starts[drawn] + (rng.random(shape) * sizes[drawn]).astype(np.int64)
                chosen = ordered[place]
                rng.random(out=x[slot], dtype=np.float32)
                x[slot] *= 2 * self.jitter
                x[slot] += 1 - self.jitter
                x[slot] *= expression[chosen]
                label[slot] = self.cells.label[chosen]
            for step in range(phase.steps):
                yield x[:, step], label[:, step]


def load_cells(
    path: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> Cells:
    """Load the cells from the best source at hand, which the result names.

    In this order: the path; a file in `$DRIFTRATE_DATA` (by default `../shared/data`); the public
    file, downloaded once and kept; cells simulated from built-in figures.

    Args:
        path: scVelo's `endocrinogenesis_day15.h5ad`, or a CSV (also .gz) with the columns
            cluster, initial_size and the ten genes, where Rps3 may be blank; or a folder that holds
            one of them.
        download: Whether to try the public file where nothing is found here.
        cache: Where to keep it; by default the user's cache folder.

    Returns:
        The cells of the four classes.

    Raises:
        DataError: Where a file was given or found and cannot be used.

    Example:
        >>> load_cells("nowhere.h5ad")
        Traceback (most recent call last):
        driftrate.errors.DataError: no cells at nowhere.h5ad: give scVelo's .h5ad file or a CSV...
    """
    found = _find(
        Path(os.environ.get("DRIFTRATE_DATA", "../shared/data") if path is None else path)
    )
    if found is None and path is not None:
        raise DataError(f"no cells at {path}: give scVelo's .h5ad file or a CSV of counts")
    missing = "no file of cells was found"
    if found is None and not download:
        return simulate_cells(missing)
    try:
        found = found or _fetch(cache)
    except (OSError, MissingDependency) as error:
        return simulate_cells(f"{missing} and none could be downloaded ({type(error).__name__})")
    return _read(found)


def simulate_cells(note: str = "") -> Cells:
    r"""Draw as many cells of each class as the public file has, from built-in figures.

    With s the size of the cell relative to the median, and z normal with the class's correlation,

        log s ~ N(m, v),   k_g = F⁻¹_g(Φ(z_g)),   F_g = NB(mean μ_g s, size θ_g),   x_g = k_g / s.

    Args:
        note: Why cells are simulated, for the figure.

    Returns:
        The cells, always the same.

    Example:
        >>> simulate_cells().source
        '2,058 simulated cells (negative binomial counts with a Gaussian copula)'

    Reference:
        Figures fitted to Bastidas-Ponce et al. (2019), Development 146.
    """
    special, stats = import_module("scipy.special"), import_module("scipy.stats")
    figures = json.loads((files("driftrate.data") / "pancreas.json").read_text("utf-8"))
    rng = np.random.default_rng(_SIMULATION_SEED)
    expression, label = [], []
    for place, name in enumerate(CLASSES):
        fit: dict[str, Any] = figures["classes"][name]
        count = fit["cells"]
        size = np.exp(rng.normal(fit["log_size_mean"], fit["log_size_std"], (count, 1)))
        normal = rng.standard_normal((count, len(GENES))) @ np.linalg.cholesky(fit["copula"]).T
        theta = np.array(fit["theta"])
        share = theta / (theta + np.array(fit["mu"]) * size)
        expression.append(stats.nbinom.ppf(special.ndtr(normal), theta, share) / size)
        label.append(np.full(count, place, dtype=np.int64))
    cells = np.concatenate(expression)
    return Cells(
        expression=cells,
        label=np.concatenate(label),
        measured=np.ones(len(cells), dtype=np.bool_),
        source=f"{len(cells):,} simulated cells (negative binomial counts with a Gaussian copula)",
        note=note,
        simulated=True,
    )


def _find(place: Path) -> Path | None:
    if place.is_dir():
        return next((place / name for name in FILES if (place / name).is_file()), None)
    return place if place.is_file() else None


def _read(path: Path) -> Cells:
    """Read a file, keep the four classes, scale every cell, draw blanks from its class."""
    is_csv = path.name.endswith((".csv", ".csv.gz"))
    counts, total, names = _read_csv(path) if is_csv else read_counts(path, GENES, "clusters")
    label = np.array([CLASSES.index(name) if name in CLASSES else -1 for name in names])
    for place, name in enumerate(CLASSES):
        if not (label == place).any():
            raise DataError(f"{path} has no {name} cells; clusters are {sorted(set(names))[:12]}")
    kept = label >= 0
    counts, total, label = counts[kept], total[kept], label[kept].astype(np.int64)
    if (total <= 0).any():
        raise DataError(f"{path} has a cell without counts")
    expression = counts * MEDIAN_SIZE / total[:, None]
    measured = np.asarray(np.isfinite(expression).all(axis=1))
    rng, gene = np.random.default_rng(_IMPUTATION_SEED), GENES.index(_BLANK)
    for place, name in enumerate(CLASSES):
        known, blank = (label == place) & measured, (label == place) & ~measured
        if blank.any() and not known.any():
            raise DataError(f"{path} has no {name} cell with {_BLANK} measured")
        expression[blank, gene] = rng.choice(expression[known, gene], blank.sum())
    cells = Cells(expression, label, measured, f"{len(label):,} cells of {path.name}")
    if cells.imputed:
        source = f"{cells.source} ({_BLANK} imputed for {cells.imputed:,})"
        cells = replace(cells, source=source)
    return cells


def _read_csv(path: Path) -> Counts:
    counts, total, names = [], [], []
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            wanted = ("cluster", "initial_size", *GENES)
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path} has no column {', '.join(missing)}")
            for row in reader:
                if row[_BLANK] == "":
                    row[_BLANK] = "nan"
                counts.append([float(row[gene]) for gene in GENES])
                total.append(float(row["initial_size"]))
                names.append(row["cluster"])
    except DataError:
        raise
    except (OSError, EOFError, ValueError, TypeError, csv.Error) as error:
        where = f"row {len(counts) + 1}: " if counts else ""
        raise DataError(f"{path} cannot be read as CSV of counts: {where}{error}") from error
    array = np.array(counts, dtype=np.float64).reshape(-1, len(GENES))
    if (array < 0).any() or np.isinf(array).any() or not np.isfinite(total).all():
        raise DataError(f"{path} has a negative or infinite count")
    return Counts(array, np.array(total), np.array(names, dtype=np.str_))


def _blob(path: str | os.PathLike[str]) -> str:
    """Return the name that git gives a file's content."""
    content = Path(path).read_bytes()
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _fetch(cache: str | os.PathLike[str] | None) -> Path:
    """Return the public file, downloaded where it is not yet kept or was damaged since."""
    with needs("downloading the cells", "paper"):
        pooch = import_module("pooch")
        import_module("h5py")  # asked for first: without it the file would be of no use
    folder = Path(pooch.os_cache("driftrate") if cache is None else cache)
    kept = folder / FILES[0]
    if kept.is_file() and _blob(kept) != BLOB:
        kept.unlink()
    pooch.get_logger().setLevel("WARNING")

    def verified(url: str, output: Any, mover: Any) -> None:
        # Checked before pooch moves it into place, so that a wrong file is never kept.
        pooch.HTTPDownloader(timeout=(5, 60))(url, output, mover)
        if _blob(output) != BLOB:
            raise OSError(f"{url} is not the file it was")

    return Path(pooch.retrieve(URL, None, fname=kept.name, path=folder, downloader=verified))
