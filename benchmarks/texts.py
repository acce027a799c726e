"""A transformer on texts that change their language: many runs stacked into one pass, for a GPU.

    python benchmarks/texts.py [--seeds 0-1] [--out out/networks]              the development texts
    python benchmarks/texts.py --held-out --seeds 1000-1004                    the whole file
    python benchmarks/networks.py --report                                     the tables

Every cell is what `benchmarks/networks.py --streams texts` would play with one model at a time, but
all models are stacked and their gradients taken at once. AdamW works coordinate by coordinate: one
of torch's own optimizers moves the stacked weights of all seeds of a setting. Each `Pursuit` has
the weights of its own model. On CUDA products are in TF32, all else is in float32. Losses are in
nats a byte, as everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from networks import commit, note
from rich.progress import track
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from driftrate.race import canonical
from driftrate.race.networks import protocol
from driftrate.race.networks.phases import BATCH, Protocol
from driftrate.torch import Pursuit

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
WARM = 100

Move = Callable[[int, Sequence[Tensor]], None]


def adamw(weights: Sequence[Tensor], lr: float, warmed: bool, clip: float | None) -> Move:
    """Return a step of AdamW on stacked weights, each model's gradient clipped by its own norm."""
    mine = [nn.Parameter(w) for w in weights]
    fused = weights[0].is_cuda
    optimizer = torch.optim.AdamW(mine, lr=lr, fused=fused)

    def move(step: int, gradients: Sequence[Tensor]) -> None:
        if warmed:
            optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARM)
        if clip is not None:
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
            factor = (clip / (norms + 1e-6)).clamp(max=1.0)
            gradients = [g * factor.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
        for p, g in zip(mine, gradients, strict=True):
            p.grad = g
        optimizer.step()

    return move


def pursuit(weights: Sequence[Tensor]) -> Move:
    """Return a step of one `Pursuit` a model."""
    models = [[nn.Parameter(w[i]) for w in weights] for i in range(len(weights[0]))]
    optimizers = [Pursuit(model) for model in models]

    def move(step: int, gradients: Sequence[Tensor]) -> None:
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for p, g in zip(model, gradients, strict=True):
                p.grad = g[i]
            optimizer.step()

    return move


def entries() -> dict[tuple[str, str], Callable[[Sequence[Tensor]], Move]]:
    """Return who runs: AdamW's rates bare, with warm-up, with warm-up and clipping, and Pursuit."""
    found: dict[tuple[str, str], Callable[[Sequence[Tensor]], Move]] = {}
    found["Pursuit", "default"] = pursuit
    for lr in RATES:
        found["adamw", canonical({"lr": lr})] = partial(adamw, lr=lr, warmed=False, clip=None)
        for clip in (None, 1.0):
            found["adamw warmed", canonical({"clip": clip, "lr": lr})] = partial(
                adamw, lr=lr, warmed=True, clip=clip
            )
    return found


def play(stream: Protocol, seeds: Sequence[int], device: str, steps: int | None) -> list[Any]:
    """Return the lines of all entries and seeds."""
    who = entries()
    models = [stream.model.module(seed).to(device) for seed in seeds]
    names = [name for name, _ in models[0].named_parameters()]
    first = [torch.stack([dict(m.named_parameters())[n].detach() for m in models]) for n in names]
    weights = [w.repeat(len(who), *[1] * (w.dim() - 1)).contiguous() for w in first]
    groups = [slice(k * len(seeds), (k + 1) * len(seeds)) for k in range(len(who))]
    moves = [make([w[at] for w in weights]) for make, at in zip(who.values(), groups, strict=True)]

    def loss(parts: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
        scores = functional_call(models[0], dict(zip(names, parts, strict=True)), (x,))
        return nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())

    every = vmap(grad_and_value(loss), in_dims=(0, None, None))
    batches = [
        (phase.name, phase.x[i : i + BATCH], phase.y[i : i + BATCH])
        for phase in stream.draw(seeds[0])
        for i in range(0, len(phase.x), BATCH)
    ][:steps]
    losses, spans, begin = [], [], perf_counter()
    for step, (name, x, y) in enumerate(track(batches, "steps", disable=not sys.stderr.isatty())):
        spans.append(name)
        inputs = torch.as_tensor(x, device=device).long(), torch.as_tensor(y, device=device)
        with sdpa_kernel(SDPBackend.MATH):
            gradients, values = every(weights, *inputs)
        losses.append(values.detach())
        # vmap returns gradients in strides of its own, which fused optimizers refuse.
        gradients = [torch.empty_like(w).copy_(g) for w, g in zip(weights, gradients, strict=True)]
        for move, at in zip(moves, groups, strict=True):
            move(step, [g[at] for g in gradients])
    table = torch.stack(losses).double().cpu()
    halves = {name: torch.tensor([span == name for span in spans]) for name in dict.fromkeys(spans)}
    seconds = round((perf_counter() - begin) / len(who) / len(seeds), 2)
    lines = []
    for k, (method, setting) in enumerate(who):
        for i, seed in enumerate(seeds):
            mine = table[:, k * len(seeds) + i]
            good = bool(mine.isfinite().all())
            lines.append(
                {
                    "stream": stream.name,
                    "method": method,
                    "setting": setting,
                    "seed": seed,
                    "status": "ok" if good else "diverged",
                    "loss": float(mine.mean()) if good else None,
                    "message": "",
                    "steps": len(mine),
                    "seconds": seconds,
                    "phases": {n: [float(mine[at].mean()), None] for n, at in halves.items()},
                }
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--held-out", action="store_true", help="the whole file, noted in the log")
    parser.add_argument("--commit", help="the commit that is played, where git cannot tell")
    parser.add_argument("--steps", type=int, help="stop early, to try it")
    parser.add_argument("--out", type=Path, default=Path("out/networks"))
    options = parser.parse_args()
    low, _, high = options.seeds.partition("-")
    seeds = list(range(int(low), int(high or low) + 1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    which = options.commit or commit()
    if options.held_out:
        note(which)
    stream = protocol("texts" if options.held_out else "texts_development")
    lines = play(stream, seeds, device, options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "cells.jsonl").open("a", encoding="utf-8") as store:
        for line in lines:
            store.write(json.dumps({**line, "commit": which}) + "\n")
    for method, setting in dict.fromkeys((line["method"], line["setting"]) for line in lines):
        of = [line for line in lines if (line["method"], line["setting"]) == (method, setting)]
        bits = [line["loss"] / 0.6931471805599453 if line["loss"] else float("nan") for line in of]
        print(f"{method} {setting}: " + " ".join(f"{bit:.3f}" for bit in bits) + " bits a byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
