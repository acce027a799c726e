"""Drawn streams whose oracle is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from driftrate.errors import ConfigError
from driftrate.race.models import NATURAL, Floats, Task
from driftrate.race.sources import Batch, Source
from driftrate.streams import LinearStream, LogisticStream, Stream, paths

_KINDS: dict[str, Callable[..., Any]] = {
    "spiral": paths.spiral,
    "standstill": paths.standstill,
    "bursty": paths.bursty,
    "walk": paths.random_walk,
    "smooth": paths.smooth,
}
_DEFAULTS: dict[str, Any] = {"dim": 16, "steps": 2000, "noise": 0.1, "loss": None}
_LOSSES = ("linear", "logistic")


def synthetic(spec: str, text: str, model: str | None, batch: int) -> Source:
    """Return a stream with x ~ N(0, I) whose target follows one of the paths of `streams.paths`.

    The features are standard normal by construction, and the oracle belongs to them as they are, so
    they are neither standardised nor given a bias column.

    Args:
        spec: The whole specification, for errors and as the stream's name.
        text: `KIND,key=value,...`: a kind, the arguments of its path, and `noise` (the deviation
            of the label noise) and `loss` (`linear` or `logistic`).
        model: The model's name or None; `logistic` chooses the loss where the text does not.
        batch: The number of rows in a batch.
    """
    kind, *pairs = text.split(",")
    if kind not in _KINDS:
        raise ConfigError(f"{spec}: the kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    signature = inspect.signature(_KINDS[kind]).parameters
    allowed = [*_DEFAULTS, *(key for key in signature if key not in ("dim", "steps", "dtype"))]
    options = dict(_DEFAULTS)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in allowed:
            raise ConfigError(f"{spec}: expected key=value with a key of {allowed}, got {pair!r}")
        options[key] = value if key == "loss" else _number(spec, pair, value)
    noise, loss = float(options.pop("noise")), options.pop("loss")
    loss = loss or ("logistic" if model == "logistic" else "linear")
    if loss not in _LOSSES:
        raise ConfigError(f"{spec}: loss must be one of {', '.join(_LOSSES)}, got {loss!r}")
    path = _KINDS[kind](**options)
    stream: Stream = LinearStream(path, batch, noise)
    task: Task = "regression"
    if loss == "logistic":
        stream, task = LogisticStream(path, batch, noise, labels="bernoulli"), "binary"
    return Source(
        name=spec,
        task=task,
        model=model or NATURAL[task],
        fingerprint=spec,
        n_features=stream.dim,
        classes=0 if loss == "linear" else 2,
        rows=stream.steps * batch,
        batch=batch,
        seeded=True,
        draw=lambda seed: _draw(stream, path, task, batch, seed),
        key=(spec, loss),
        unplayed=0,
        biased=False,
    )


def _draw(stream: Stream, path: Floats, task: Task, batch: int, seed: int) -> Iterator[Batch]:
    rng = np.random.default_rng([2, seed])
    # E sigmoid(s + σz) over z ~ N(0, 1).
    nodes, weights = np.polynomial.hermite_e.hermegauss(31)
    weights = weights / weights.sum()
    for step in range(stream.steps):
        x = rng.standard_normal((batch, stream.dim))
        oracle = x @ stream.standing(path[step], step).target.oracle
        noise = stream.noise_std * rng.standard_normal(batch)
        clean = x @ path[step]
        if task == "regression":
            yield Batch(x, clean + noise, oracle, clean)
            continue
        y = (rng.random(batch) < _sigmoid(clean + noise)).astype(np.float64)
        chances = _sigmoid(clean[:, None] + stream.noise_std * nodes) @ weights
        yield Batch(x, y, oracle, chances)


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _number(spec: str, pair: str, value: str) -> float | int:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    raise ConfigError(f"{spec}: expected a number in {pair!r}")
