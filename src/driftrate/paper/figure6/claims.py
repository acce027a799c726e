"""The paper's claims about the cells, each with a rule that judges it from the runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from driftrate.data.cytometry import CLASSES, PHASES
from driftrate.paper.base import Tables, Verdict
from driftrate.paper.claim import Claims, Found
from driftrate.paper.figure6.protocols import PROTOCOLS, RATES, SHIFTS, Protocol, losses
from driftrate.paper.style import columns

Runs = npt.NDArray[np.float64]

CLAIMS = Claims()
BEST, DIVERGENT, STUCK = 0.01, 0.1, 0.03
STEPS = sum(phase.steps for phase in PHASES)
COMPLETELY, NEARLY = 0.99, 0.95
_FEW = 4  # seeds below which a spread says nothing
AT_THE_SHIFTS = {name: each for name, each in PROTOCOLS.items() if each.resets == "shifts"}
FINAL_PHASES = tuple(zip(SHIFTS[1:], (*SHIFTS[2:], STEPS), strict=True))


def _total(tables: Tables, protocol: Protocol, rate: float, reset: bool) -> Runs:
    """Return the cumulative loss of each seed at the end; the diverged are large, not infinite."""
    total: Runs = np.minimum(losses(tables, protocol, rate, reset).sum(axis=1), 1e30)
    return total


def _gain(better: Runs, worse: Runs) -> tuple[float, float]:
    """Return the mean log ratio of two paired runs and its standard error."""
    ratio = np.log(better / worse)
    error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.inf
    return float(ratio.mean()), float(error)


def _less(better: Runs, worse: Runs) -> bool:
    """Whether the first is less than the second, seed by seed, by over two standard errors."""
    mean, error = _gain(better, worse)
    return mean < -2 * error


def _share(good: list[bool], seeds: int = _FEW) -> Verdict:
    if seeds < _FEW:
        return "cannot be judged"
    return "holds" if all(good) else "holds in part" if any(good) else "does not hold"


def _quartiles(runs: Runs) -> str:
    low, middle, high = np.quantile(runs, [0.25, 0.5, 0.75])
    return f"{middle:,.0f} [{low:,.0f}, {high:,.0f}]"


@CLAIMS.add(
    "figure6",
    "Section 6.2, background",
    "The ten genes determine the cell type completely.",
    f"holds if some classifier's cross-validated accuracy is at least {COMPLETELY:g}, in part"
    f" if at least {NEARLY:g}; simulated cells cannot judge it",
)
def _genes(tables: Tables) -> Found:
    genes, count, name, score, simulated = columns(
        tables["accuracy"], "genes", "cells", "classifier", "accuracy", "simulated"
    )
    best: list[tuple[float, str]] = []
    for group in dict.fromkeys(genes):
        means = {n: score[(genes == group) & (name == n)] for n in dict.fromkeys(name)}
        winner = max(means, key=lambda n: float(means[n].mean()))
        runs, size = means[winner], count[genes == group][0]
        text = f"{runs.mean():.3f} ± {runs.std():.3f} ({group}, {size:,} cells, {winner})"
        best.append((float(runs.mean()), text))
    top = max(mean for mean, _ in best)
    measured = "accuracy on held-out cells " + ", ".join(text for _, text in best)
    if simulated.any():
        # The simulator's classes overlap by its own making.
        return "cannot be judged", f"{measured}; simulated cells"
    return _share([top >= COMPLETELY, top >= NEARLY]), measured


@CLAIMS.add(
    "figure6",
    "Section 6.2, results",
    "A rate of 0.1 makes Adam diverge on the cells.",
    "the median cumulative loss exceeds that of guessing, 600 ln 4, in each of three protocols,"
    " with and without resets",
)
def _cells_diverge(tables: Tables) -> Found:
    guess = STEPS * np.log(len(CLASSES))
    good, text, seeds = [], [], 0
    for name, protocol in PROTOCOLS.items():
        for reset in (False, True):
            total = _total(tables, protocol, DIVERGENT, reset)
            good.append(bool(np.median(total) > guess))
            text.append(f"{_quartiles(total)} ({name}, {'resets' if reset else 'no resets'})")
            seeds = len(total)
    return _share(good, seeds), f"guessing costs {guess:.0f}; rate 0.1: " + ", ".join(text)


@CLAIMS.add(
    "figure6",
    "Section 6.2, results",
    "On the cells a rate of 0.01 has the least regret.",
    "its median is the lowest and no rate is below it seed by seed, by over two standard errors"
    " of the mean log ratio, in each of three protocols, with and without resets",
)
def _cells_best_rate(tables: Tables) -> Found:
    good, text, seeds = [], [], 0
    for name, protocol in PROTOCOLS.items():
        for reset in (False, True):
            total = {rate: _total(tables, protocol, rate, reset) for rate in RATES}
            least = min(RATES, key=lambda rate: float(np.median(total[rate])))
            good.append(least == BEST and not any(_less(total[r], total[BEST]) for r in RATES))
            seeds = len(total[BEST])
            text.append(
                f"{least:g} with {_quartiles(total[least])}"
                + (f" before {_quartiles(total[BEST])}" if least != BEST else "")
                + f" ({name}, {'resets' if reset else 'no resets'})"
            )
    return _share(good, seeds), "lowest median: " + ", ".join(text)


@CLAIMS.add(
    "figure6",
    "Section 6.2, results",
    "Resetting Adam at the shifts lowers the regret on the cells.",
    "lower with resets, seed by seed, by over two standard errors of the mean log ratio, at"
    " each rate up to 0.03 and in both protocols that reset at the shifts",
)
def _cells_resets(tables: Tables) -> Found:
    good, text, seeds = [], [], 0
    for name, protocol in AT_THE_SHIFTS.items():
        for rate in (rate for rate in RATES if rate != DIVERGENT):
            with_, without = (_total(tables, protocol, rate, reset) for reset in (True, False))
            mean, error = _gain(with_, without)
            good.append(mean < -2 * error)
            seeds = len(with_)
            text.append(f"{np.exp(mean):.2f} ± {np.exp(mean) * error:.2f} ({rate:g}, {name})")
    return _share(good, seeds), "loss with resets over without: " + ", ".join(text)


@CLAIMS.add(
    "figure6",
    "Section 6.2, results",
    "Without a rising rate the models get stuck: slopes differ in the final two phases.",
    "at 0.03, the loss in the second half of each of the last two phases is lower with resets,"
    " seed by seed, by over two standard errors of the mean log ratio, in both such protocols",
)
def _cells_stuck(tables: Tables) -> Found:
    good, text, seeds = [], [], 0
    for name, protocol in AT_THE_SHIFTS.items():
        with_, without = (losses(tables, protocol, STUCK, reset) for reset in (True, False))
        seeds = len(with_)
        for begin, end in FINAL_PHASES:
            late = slice((begin + end) // 2, end)
            free, held = (np.minimum(r[:, late].mean(axis=1), 1e30) for r in (with_, without))
            good.append(_less(free, held))
            text.append(
                f"{np.median(held):.2f} and {np.median(free):.2f}"
                f" (steps {late.start + 1}-{late.stop}, {name})"
            )
    return _share(good, seeds), "median loss a step without and with resets: " + ", ".join(text)
