"""What every schedule is put through: configurations, and a thousand steps of signals."""

from __future__ import annotations

import math

import driftrate as dr

SIGNED = {"cross", "trail", "lead"}  # inner products


def schedules() -> dict[str, dr.Schedule]:
    """All registered schedules by their examples, and the forms that an example does not show."""
    cases: dict[str, dr.Schedule] = {
        name: cls.example() for name, cls in dr.schedules.base.registry().items()
    }
    cases["LinearRate-flow"] = dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="flow")
    cases["LinearRate-free-flow"] = dr.LinearRate(dim=64, noise_std=0.5, form="flow")
    cases["LinearRate-euler"] = dr.LinearRate(dim=16, noise_std=0.5, max_rate=0.5, form="euler")
    cases["KnownShifts-restart"] = dr.KnownShifts(dr.InverseTimeRate(1.0), times=(20, 40))
    cases["nested"] = dr.Clip(dr.Warmup(dr.ConvexRate.example(), steps=7), max=0.3)
    cases["MeasuredRate-default"] = dr.MeasuredRate()
    cases["MeasuredRate-relative"] = dr.MeasuredRate(relative=True)
    cases["MeasuredRate-sequence"] = dr.MeasuredRate(max_rate=1.0, mode="sequence")
    cases["MeasuredRate-attached"] = dr.MeasuredRate(mode="sequence", relative=True)
    cases["LongHorizonRate-relative"] = dr.LongHorizonRate(relative=True)
    return cases


def steps(case: str) -> int:
    """How many steps: fewer of a rule whose update takes a hundred times as long."""
    return 200 if "MeasuredRate" in case or "flow" in case else 1000


def signals(steps: int) -> list[dict[str, float]]:
    """Rest, jumps, drift and changing batch sizes, in Python floats; all of it in 200 steps."""
    rows = []
    for t in range(steps):
        jump = 3.0 if t % 137 == 60 else 0.0
        drift = 0.05 * (1.0 + math.sin(0.1 * t)) if t > 100 else 0.0
        wave = 1.0 + math.sin(0.7 * t)
        rows.append(
            {
                "batch_size": float(1 + (t * t) % 97),
                "shift": jump + drift,
                "loss": 0.3 + 0.2 * wave + jump,
                "loss_shift": jump,
                "step_length": 0.01 + 0.1 * wave,
                "grad_sq": 1.0 + wave + jump,
                "parts": 4.0,
                "cross": 0.2 * wave - 0.05 + jump,
                "spread": 0.5 + 0.1 * wave,
                "dim": 16.0,
                "trail": 0.5 * wave - 0.3 + jump if t else 0.0,
                "lead": 0.3 * math.sin(1.3 * t) - 0.1 if t else 0.0,
                "weights_sq": 9.0 + wave,
                "reach": math.sqrt(1.0 + wave + jump),
            }
        )
    return rows
