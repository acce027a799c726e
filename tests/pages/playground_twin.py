"""The playground's world in Python: the same draws, and the library's rates by their own doors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import driftrate as dr
from driftrate.adapters import _pursuit as law
from driftrate.playground import adam
from driftrate.schedules.base import TRAIL

PLANE = 2


@dataclass(frozen=True)
class Draws:
    """Of every step, seed and half: the triangle, the noise in it, and the length of the rest."""

    size: int
    root: np.ndarray  # (steps, seeds, 2, rows, dim)
    noise: np.ndarray  # (steps, seeds, 2, rows)
    rest: np.ndarray  # (steps, seeds, 2)

    @classmethod
    def make(cls, steps, seeds, batch, dim, seed=0):
        rng, half = np.random.default_rng(seed), batch // 2
        rows = min(half, dim)
        root = rng.standard_normal((steps, seeds, 2, rows, dim))
        if half >= dim:
            root = np.triu(root)
            for row in range(rows):
                root[..., row, row] = np.sqrt(rng.chisquare(half - row, (steps, seeds, 2)))
        noise = rng.standard_normal((steps, seeds, 2, rows))
        freedom = half - rows
        rest = rng.chisquare(freedom, (steps, seeds, 2)) if freedom else np.zeros((steps, seeds, 2))
        return cls(batch, root, noise, rest)

    def listed(self):
        """Return the same for JavaScript."""
        names = ("root", "noise", "rest")
        return {name: getattr(self, name).tolist() for name in names}

    def gradients(self, step, error, sigma):
        """Return each half's gradient and loss at errors of shape (seeds, points, dim)."""
        half = self.size // 2
        residual = np.einsum("shrd,spd->sphr", self.root[step], error)
        residual = residual - sigma * self.noise[step][:, None]
        gradient = np.einsum("sphr,shrd->sphd", residual, self.root[step]) / half
        square = (residual**2).sum(-1) + sigma**2 * self.rest[step][:, None]
        return gradient, 0.5 * square / half


def run(name, settings, draws, path):
    """Return rates (steps, seeds) and weights before each step (steps, seeds, dim) of a rule."""
    steps, seeds = draws.rest.shape[:2]
    dim, batch, sigma = settings["dim"], settings["batch"], settings["noise"]
    learner = LEARNERS[name](settings, seeds)
    target = np.zeros((seeds, dim))
    rates, weights, trail = [], [], np.zeros((seeds, dim))
    for step in range(steps):
        before = learner.weights + 0.0
        shift = 0.0
        if path is not None:
            target[:, :PLANE] = path[step]
            if step:
                shift = np.hypot(*(np.subtract(path[step], path[step - 1])))
        elif step:
            away = target - before
            target += settings["flight"] * away / np.linalg.norm(away, axis=-1, keepdims=True)
            shift = settings["flight"]
        else:
            target[:, 0] = settings["start"]
        points = learner.points() - target[:, None]
        halves, losses = draws.gradients(step, points, sigma)
        mean = halves.mean(axis=2)
        first, second = halves[:, 0, 0], halves[:, 0, 1]
        own = mean[:, 0]
        signal = dr.Signal(
            batch_size=float(batch),
            shift=np.full(seeds, shift),
            parts=2.0,
            dim=float(dim),
            cross=np.vecdot(first, second),
            spread=0.25 * np.vecdot(first - second, first - second),
            trail=np.vecdot(own, trail),
        )
        trail = TRAIL * trail + own
        rate = learner.step(signal, mean, losses.mean(axis=-1))
        if rate is None:
            rate = np.linalg.norm(learner.weights - before, axis=-1) / np.linalg.norm(own, axis=-1)
        rates.append(rate + np.zeros(seeds))
        weights.append(before)
    return np.array(rates), np.array(weights)


class Scheduled:
    """Plain SGD with a schedule of the library."""

    def __init__(self, rule, settings, seeds):
        self.rule, self.state = rule, rule.init(like=np.zeros(seeds))
        self.weights = np.zeros((seeds, settings["dim"]))

    def points(self):
        return self.weights[:, None]

    def step(self, signal, gradients, losses):
        rate, self.state = self.rule.update(self.state, signal)
        self.weights = self.weights - rate[:, None] * gradients[:, 0]
        return rate


class Pooled:
    """HedgedSGD, seeds along its leading axis."""

    def __init__(self, settings, seeds):
        self.pool = dr.HedgedSGD()
        self.state = self.pool.init(np.zeros((seeds, settings["dim"])))

    @property
    def weights(self):
        return self.pool.mixture(self.state)

    def points(self):
        return self.pool.members(self.state)

    def step(self, signal, gradients, losses):
        self.state = self.pool.update(self.state, losses, gradients)
        return self.pool.rate(self.state)


class Pursued:
    """The law of Pursuit on one vector of weights a seed."""

    def __init__(self, settings, seeds):
        dim = settings["dim"]
        self.weights = np.zeros((seeds, dim))
        self.kept = np.zeros((3, seeds, dim))
        scale = law.settle(np, [law.scale(np, (dim,), 0.0)], [dim])[0]
        self.laws = [law.Law.start(scale) for _ in range(seeds)]

    def points(self):
        return self.weights[:, None]

    def step(self, signal, gradients, losses):
        for seed, now in enumerate(self.laws):
            told = dict(zip(law.FACTORS, law.factors(np, now, 1.0, 0.0), strict=True))
            told["keep"] = 1.0
            moved = law.move(
                np, self.weights[seed], gradients[seed, 0], *self.kept[:, seed], **told
            )
            self.weights[seed], *others, signals = moved
            self.kept[:, seed] = others
            self.laws[seed] = law.follow(np, now, *signals)


class Adapted:
    """Adam."""

    def __init__(self, settings, seeds):
        self.rate = settings["adam"]
        self.state = adam.start(np.zeros((seeds, settings["dim"])))

    @property
    def weights(self):
        return self.state["weights"]

    def points(self):
        return self.weights[:, None]

    def step(self, signal, gradients, losses):
        self.state = adam.step(np, self.state, gradients[:, 0], self.rate)


def first_rate(settings):
    """Return B/(B + d + 1), the rate that is best without noise."""
    return settings["batch"] / (settings["batch"] + settings["dim"] + 1)


def _scheduled(make):
    return lambda settings, seeds: Scheduled(make(settings), settings, seeds)


LEARNERS = {
    "constant": _scheduled(lambda s: dr.ConstantRate(s["rate"])),
    "inverse": _scheduled(lambda s: dr.InverseTimeRate(first_rate(s), decay=first_rate(s))),
    "linear": _scheduled(lambda s: dr.LinearRate(s["dim"], s["noise"])),
    "measured": _scheduled(lambda s: dr.MeasuredRate()),
    "hedged": Pooled,
    "pursuit": Pursued,
    "adam": Adapted,
}
