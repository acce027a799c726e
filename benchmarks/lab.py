"""The laboratory of `Pursuit`'s second form: directions and shares, on development streams alone.

    python benchmarks/lab.py --streams small_text --variants first,sketch,eigen --jobs 2
    python benchmarks/lab.py --report

A variant is a line of `VARIANTS`: the first form, a rival of the race at one setting, or a law in
which matrices also step along a second direction: the orthogonal factor of momentum (as Muon does)
or momentum over the root of a forgetting sum of squares in the eigenbasis of the gradient's second
moments (as SOAP does). `small_text` is the development texts for a transformer of 96 by 3 layers,
1,500 steps; the others are the development streams of benchmarks/networks.py. Every cell is a line
of OUT/lab.jsonl, and only what is missing there is played. Nothing here is held out.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from networks import CELLS, load
from networks_report import table
from torch import Tensor

from driftrate.adapters import _pursuit as law
from driftrate.race import canonical, contestants
from driftrate.race.contestants import Setup
from driftrate.race.contestants.pursuit import PursuitPlayer
from driftrate.race.networks import play
from driftrate.race.networks.digits import folder
from driftrate.race.networks.network import Transformer
from driftrate.race.networks.phases import BATCH, Phase, Protocol
from driftrate.race.networks.suite import DEVELOPMENT
from driftrate.race.networks.texts import DEVELOPMENT as LANGUAGES
from driftrate.race.networks.texts import FILE, _read

STORE = CELLS / "lab.jsonl"


@dataclass(frozen=True)
class Variant:
    """A law whose matrices step along two directions of about equal length.

    Args:
        eigen: Whether the second direction is taken in the eigenbasis; else it is orthogonal.
        momentum: What the second direction's mean of gradients keeps of itself a step.
        share: The share of the second direction at the start.
        follow: Whether the share follows its own derivative over 300 steps.
        hidden: Whether hidden matrices alone have it, not the first, the last and embeddings.
        bet: Whether matrices that have it take the bet on their slow average too.
        rate: Whether the rate c is followed; else it stays at 1.
        warm: Over how many steps the first steps grow.
        sided: Whether the eigenbasis is of the smaller side alone.
        keep: What the sum of squares in the eigenbasis keeps of itself a step.
        every: After how many steps the eigenbasis is renewed.
    """

    eigen: bool = False
    momentum: float = 0.5
    share: float = 1.0
    follow: bool = False
    hidden: bool = False
    bet: bool = False
    rate: bool = True
    warm: int = 0
    sided: bool = False
    keep: float = law.KEEP
    every: int = 10


def _rivals(name: str, key: str, values: tuple[float, ...], rates: tuple[float, ...]) -> list[str]:
    return [f"{name}@{canonical({key: value, 'lr': lr})}" for value in values for lr in rates]


VARIANTS: dict[str, Variant | None] = {
    "first": None,
    **{f"sketch {mu}": Variant(momentum=mu, hidden=True) for mu in (0.3, 0.5, 0.8, 0.9)},
    "sketch bet": Variant(hidden=True, bet=True),
    "sketch follow": Variant(share=0.5, follow=True, bet=True),
    **{f"eigen {mu}": Variant(eigen=True, momentum=mu) for mu in (0.0, 0.3, 0.5, 0.8)},
    "eigen bet": Variant(eigen=True, momentum=0.0, bet=True),
    "eigen 0.5 bet": Variant(eigen=True, bet=True),
    "eigen half": Variant(eigen=True, share=0.5, bet=True),
    "eigen 0 half": Variant(eigen=True, momentum=0.0, share=0.5, bet=True),
    "eigen follow": Variant(eigen=True, share=0.5, follow=True),
    "eigen follow bet": Variant(eigen=True, share=0.5, follow=True, bet=True),
    "eigen 0 follow": Variant(eigen=True, momentum=0.0, share=0.5, follow=True),
    "eigen hidden": Variant(eigen=True, hidden=True),
    "eigen one": Variant(eigen=True, momentum=0.0, rate=False),
    "eigen warm": Variant(eigen=True, momentum=0.0, warm=30),
    "eigen warm 100": Variant(eigen=True, momentum=0.0, warm=100),
    "eigen sided": Variant(eigen=True, momentum=0.0, sided=True),
    "eigen sided half": Variant(eigen=True, momentum=0.0, sided=True, share=0.5, bet=True),
    "eigen keep 0.95": Variant(eigen=True, momentum=0.0, keep=0.95),
    "eigen every 2": Variant(eigen=True, momentum=0.0, every=2),
}
RIVALS = (
    *_rivals("soap", "beta1", (0.0, 0.5, 0.8), (1e-3, 3e-3, 1e-2)),
    *_rivals("muon", "momentum", (0.5, 0.8), (1e-2, 2e-2, 4e-2)),
    "cocob@default",
    f"adam@{canonical({'beta1': 0.0, 'beta2': 0.99, 'lr': 3e-3})}",
)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the orthogonal factor of a matrix, by five Newton-Schulz steps, of mean square 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix) / (matrix.norm() + 1e-30)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    factor: Tensor = x.T if tall else x
    return factor * math.sqrt(max(matrix.shape))


class Eigenbasis:
    """The second moments of a matrix's gradients by side, and squares in their eigenbasis."""

    MEMORY = 0.95
    # A coordinate of the basis that hears nothing but rounding has no full step.
    FLOOR = 1e-4

    def __init__(self, how: Variant, gradient: Tensor) -> None:
        self.how, self.steps = how, 0
        low, high = sorted(range(2), key=lambda side: gradient.shape[side])
        sides = [low] if how.sided else [low, high]
        self.moments = {side: self._outer(gradient, side) for side in sides}
        self.bases = {side: torch.linalg.eigh(m)[1] for side, m in self.moments.items()}
        self.squares = torch.zeros_like(gradient)

    @staticmethod
    def _outer(gradient: Tensor, side: int) -> Tensor:
        return gradient @ gradient.T if side == 0 else gradient.T @ gradient

    def _turn(self, x: Tensor, back: bool = False) -> Tensor:
        for side, basis in self.bases.items():
            turn = basis if back else basis.T
            x = turn @ x if side == 0 else x @ turn.T
        return x

    def step(self, gradient: Tensor, mean: Tensor) -> Tensor:
        """Return the mean gradient over the root of the squares."""
        if self.steps:
            for side, moment in self.moments.items():
                moment.lerp_(self._outer(gradient, side), 1 - self.MEMORY)
                if self.steps % self.how.every == 0:
                    whole = moment @ self.bases[side] / (moment.norm() + 1e-30)
                    self.bases[side] = torch.linalg.qr(whole)[0]
        self.steps += 1
        self.squares.mul_(self.how.keep).add_(self._turn(gradient) ** 2)
        low = self.FLOOR * self.squares.mean().sqrt() + 1e-30
        step: Tensor = (self._turn(mean) / self.squares.sqrt().clamp(min=low)).clamp(-1.0, 1.0)
        usual: float = ((1 - law.KEEP) / (1 - self.how.keep)) ** 0.5
        return usual * self._turn(step, back=True)


class Tensors:
    """One tensor of weights, its state and its step."""

    def __init__(self, weight: Tensor, scale: float, how: Variant, second: bool) -> None:
        self.weight, self.scale, self.how, self.second = weight, scale, how, second
        zero = torch.zeros_like(weight)
        self.square, self.trail, self.lead = zero.clone(), zero.clone(), zero.clone()
        self.mean, self.apart = zero.clone(), zero.clone()
        self.basis: Eigenbasis | None = None
        number = torch.zeros((), device=weight.device)
        self.now = law.Law(0.0, *(number.clone() for _ in range(law.NUMBERS - 1)))
        self.share, self.usual = number + how.share * second, number.clone()

    def step(self, g: Tensor) -> None:
        """Take one step."""
        size = g.abs()
        g = torch.where((size >= law.SMALLEST) & (size <= law.LARGEST), g, torch.zeros_like(g))
        most = law.SPIKE * ((1 - law.KEEP) * self.square).sqrt()
        g = torch.where(self.square > 0, torch.minimum(torch.maximum(g, -most), most), g)
        signal, push = (g * self.trail).sum(), (g * self.lead).sum()
        still = (g == 0) & (not self.second)
        self.square = torch.where(g == 0, self.square, law.KEEP * self.square + g * g)
        now, steps = self.now, self.now.steps
        rate = now.log_rate.exp() if self.how.rate else torch.ones_like(now.log_rate)
        length = law.FIRST * self.scale * rate * min(1.0, (steps + 1) / max(self.how.warm, 1))
        fade = 1 - 1 / min(steps + 2, law.HORIZON)
        delta = length * g / self.square.sqrt().clamp(min=1e-30)
        if self.second:
            delta = self._mixed(g, delta, length, fade)
        hold = 1 - 1 / min(steps + 2, law.SLOW)
        forth, back = torch.ones_like(rate), torch.zeros_like(rate)
        if self.how.bet or not self.second:
            forth, back = 1 - hold * now.bet, now.share - hold * now.bet
        decay = law.WEIGHT_DECAY * law.FIRST * (1 - law.KEEP) ** 0.5 * rate.clamp(max=1.0)
        decay = decay if self.weight.dim() > 1 else 0.0
        move = torch.where(still, torch.zeros_like(g), back * self.lead - forth * delta)
        self.lead = torch.where(still, self.lead, hold * (self.lead - delta))
        self.weight.copy_(torch.where(still, self.weight, (1 - decay) * self.weight + move))
        self.trail = fade * (self.trail + move)
        self.now = self._follow(signal, push)

    def _mixed(self, g: Tensor, delta: Tensor, length: Tensor, fade: float) -> Tensor:
        """Return the step between both directions, and let the share follow."""
        mu, flat = self.how.momentum, (g.shape[0], -1)
        self.mean.lerp_(g, 1 - mu)
        mean = torch.lerp(self.mean, g, 1 - mu).reshape(flat)
        if self.how.eigen:
            self.basis = self.basis or Eigenbasis(self.how, g.reshape(flat))
            other = length * self.basis.step(g.reshape(flat), mean).reshape(g.shape)
        else:
            usual = length * (1 - law.KEEP) ** 0.5
            other = usual * orthogonal(mean).reshape(g.shape)
        toward, share = (g * self.apart).sum(), self.share
        self.apart = fade * (self.apart + delta - other)  # where a larger share would have led
        if self.how.follow:
            steps, keep = self.now.steps + 1, law.KEEP_SIGNAL
            self.usual = keep * self.usual + (1 - keep) * toward * toward
            size = (self.usual / (1 - keep**steps)).sqrt() + 1e-30
            pace = max(law.FIRST_PACE / math.sqrt(steps), 0.02)
            self.share = (share - pace * (toward / size).clamp(-3, 3)).clamp(0.0, 1.0)
        return (1 - share) * delta + share * other

    def _follow(self, signal: Tensor, push: Tensor) -> law.Law:
        class Namespace:
            """Torch, where the step count is a Python float."""

            sqrt = staticmethod(lambda x: math.sqrt(x) if isinstance(x, float) else torch.sqrt(x))
            log = math.log

            @staticmethod
            def maximum(x: Tensor, low: float) -> Tensor:
                return x.clamp(min=low)

            @staticmethod
            def clip(x: Any, low: Any, high: Any) -> Any:
                if isinstance(x, Tensor):
                    return x.clamp(low, high)
                return max(x, -math.inf if low is None else low)

        return law.follow(Namespace, self.now, signal, push)


class Lab(torch.optim.Optimizer):
    """A variant at work, one tensor after the other."""

    def __init__(self, model: torch.nn.Module, how: Variant) -> None:
        super().__init__(model.parameters(), {"lr": 1.0})
        layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Embedding)]
        inner = {id(m.weight) for m in layers[1:-1] if isinstance(m, torch.nn.Linear)}
        every = [p for group in self.param_groups for p in group["params"]]
        sizes = [float(p.detach().square().mean().sqrt()) for p in every]
        scales = [law.scale(np, p.shape, size) for p, size in zip(every, sizes, strict=True)]
        settled = law.settle(np, scales, [p.numel() for p in every])
        self.tensors = [
            Tensors(p, float(s), how, p.dim() > 1 and (not how.hidden or id(p) in inner))
            for p, s in zip(every, settled, strict=True)
        ]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for one in self.tensors:
            if one.weight.grad is not None:
                one.step(one.weight.grad)


class LabPlayer(PursuitPlayer):
    """A variant as a contestant."""

    def __init__(self, setup: Setup, how: Variant) -> None:
        self.how = how
        super().__init__(setup)

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return the optimizer."""
        return Lab(self.net, self.how)


def small_text(steps: int = 1500) -> Protocol:
    """Return the development texts for a small transformer, the halves scored apart."""
    model, rows = Transformer(width=96, layers=3, heads=4, context=64), BATCH * steps
    text = _read(folder() / FILE, LANGUAGES)[: rows * model.context + 1]

    def draw(seed: int) -> Iterator[Phase]:
        x, y = text[:-1].reshape(rows, -1), text[1:].reshape(rows, -1).astype(np.int64)
        for name, at in (("first", slice(0, rows // 2)), ("second", slice(rows // 2, rows))):
            yield Phase(f"{name} half", x[at], y[at])

    return Protocol("small_text", model, rows, "", draw)


def run(name: str, stream: str, seed: int, device: str, keep: Path) -> dict[str, Any]:
    """Play one cell and return its line."""
    torch.set_num_threads(1)
    begin, line = perf_counter(), {"variant": name, "stream": stream, "seed": seed, "loss": None}
    try:
        protocol = small_text() if stream == "small_text" else load(stream, keep)
        setup = Setup(protocol.model, BATCH, protocol.rows // BATCH, seed, device)
        method, _, setting = name.partition("@")
        if setting:
            learner: Any = contestants()[method].make(setting, setup)
        else:
            how = VARIANTS[name]
            learner = PursuitPlayer(setup) if how is None else LabPlayer(setup, how)
        played = play(learner, protocol.model.task, protocol.draw(seed), device=device)
    except Exception as error:  # a variant may raise anything; the others go on
        return {**line, "message": f"{type(error).__name__}: {error}".splitlines()[0]}
    if played.status == "ok":
        line |= {"loss": played.mean(), "late": float(played.loss[len(played.loss) // 2 :].mean())}
    return {**line, "seconds": round(perf_counter() - begin, 1)}


def report(lines: list[dict[str, Any]]) -> str:
    """Return the table: losses over the first form's, with the second half's in brackets."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for line in lines:
        found.setdefault(line["variant"], {}).setdefault(line["stream"], {})[line["seed"]] = line
    streams = list(dict.fromkeys(line["stream"] for line in lines))
    rows = []
    for name, mine in found.items():
        cells, logs = [name], []
        for stream in streams:
            first, own = found.get("first", {}).get(stream, {}), mine.get(stream, {})
            seeds = sorted(set(first) & set(own))
            if not seeds or any(own[seed]["loss"] is None for seed in seeds):
                cells.append("–" if not seeds else "lost")
                continue
            whole, late = (
                math.exp(np.mean([math.log(own[s][key] / first[s][key]) for s in seeds]))
                for key in ("loss", "late")
            )
            logs.append(math.log(whole))
            cells.append(f"{whole:.3f} ({late:.3f}) {len(seeds)}")
        rows.append([*cells, f"{math.exp(np.mean(logs)):.3f} of {len(logs)}" if logs else "–"])
    return table(["over the first form (second half), seeds", *streams, "mean"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", default="", help="with commas between; all if none")
    parser.add_argument("--rivals", action="store_true", help="the rivals of the race, too")
    parser.add_argument("--streams", default=",".join(("small_text", *DEVELOPMENT)))
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--report", action="store_true", help="play nothing")
    parser.add_argument("--out", type=Path, default=Path("out/lab.jsonl"))
    parser.add_argument("--keep", type=Path, default=Path("out/networks/streams"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    paths = [path for path in (STORE, options.out) if path.exists()]
    lines = [json.loads(text) for path in paths for text in path.read_text().splitlines()]
    names = [name for name in options.variants.split(",") if name] or list(VARIANTS)
    names += RIVALS if options.rivals else ()
    there = {(line["variant"], line["stream"], line["seed"]) for line in lines}
    cells = [
        (name, stream, seed)
        for seed in range(options.seeds)
        for stream in options.streams.split(",")
        for name in names
        if (name, stream, seed) not in there and not options.report
    ]
    # More threads would fight over the same cores; read when a process loads its packages.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    context = multiprocessing.get_context("spawn")
    with (
        options.out.open("a", encoding="utf-8") as store,
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
    ):
        jobs = [pool.submit(run, *cell, options.device, options.keep) for cell in cells]
        for count, job in enumerate(as_completed(jobs), 1):
            lines.append(job.result())
            store.write(json.dumps(lines[-1]) + "\n")
            store.flush()
            print(f"{count}/{len(cells)} {lines[-1]}", flush=True)
    print(report(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
