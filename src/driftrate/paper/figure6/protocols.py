"""The three ways to run Figure 6: as the paper writes, as its program runs, as it should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftrate.data.cytometry import CLASSES, PHASES
from driftrate.paper.base import Tables
from driftrate.paper.style import columns

RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
SHIFTS = tuple(int(end) for end in np.cumsum([phase.steps for phase in PHASES])[:-1])
# The program cuts the stream into six phases of 100 steps and resets where a phase *repeats* the
# mixture before it: at 0, 3 and 5, where the shifts are at 1, 2 and 4.
RESETS = {"none": (), "shifts": SHIFTS, "program": (0, 300, 500)}


@dataclass(frozen=True)
class Design:
    """A network and the meaning of the mixtures."""

    order: tuple[str, ...]  # the classes that a phase's shares stand for
    penalty: float  # c of the penalty c Σ W²
    activated: bool  # whether the last layer's activation gives the logits
    resets: tuple[str, ...]  # the places of resets that are run


@dataclass(frozen=True)
class Protocol:
    """A way to run the experiment."""

    design: str  # its name
    resets: str  # where it resets Adam, when it does
    penalised: bool  # whether the curve counts the penalty as regret


DESIGNS = {
    # The text lists the types in this order, gives no penalty, and has the logits activated.
    "text": Design(("Ductal", "Alpha", "Beta", "Delta"), 0.0, True, ("none", "shifts")),
    "program": Design(CLASSES, 1e-4, False, ("none", "shifts", "program")),
}
PROTOCOLS = {
    "as written": Protocol("text", "shifts", penalised=False),
    "as run": Protocol("program", "program", penalised=True),
    "as it should be": Protocol("program", "shifts", penalised=False),
}


def adam_name(design: str, rate: float) -> str:
    """Return the name of the piece that runs Adam at one rate."""
    return f"adam-{design}-{rate:g}"


def measured_name(rate: float) -> str:
    """Return the name of the piece that runs Adam at one rate times the measured factor."""
    return f"measured-{rate:g}"


def losses(tables: Tables, protocol: Protocol, rate: float, reset: bool) -> npt.NDArray[np.float64]:
    """Return the losses of each seed and step, (seeds, steps); a diverged one is infinite."""
    rows = tables[adam_name(protocol.design, rate)]
    kind, entropy, penalty, seed = columns(rows, "resets", "entropy", "penalty", "seed")
    chosen = kind == (protocol.resets if reset else "none")
    values = (entropy + penalty if protocol.penalised else entropy)[chosen].astype(np.float64)
    shaped = values.reshape(len(np.unique(seed)), -1)
    return np.where(np.isnan(shaped), np.inf, shaped)
