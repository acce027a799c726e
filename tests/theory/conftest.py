"""Small SGDs that draw their batches, for checking statements by simulation."""

from typing import NamedTuple

import numpy as np
import pytest


class Record(NamedTuple):
    """What the bounds need to know of a run; seeds first, steps last."""

    rates: np.ndarray
    distances: np.ndarray
    shifts: np.ndarray
    cross: np.ndarray
    deviations: np.ndarray
    regrets: np.ndarray


def _gradient(rng, error, batch, noise_std, spectrum=1.0):
    """Draw mini-batch gradients of linear regression, x ~ N(0, diag(spectrum))."""
    seeds, dim = error.shape
    x = rng.standard_normal((seeds, batch, dim)) * np.sqrt(spectrum)
    residual = np.einsum("sbd,sd->sb", x, error) - noise_std * rng.standard_normal((seeds, batch))
    return np.einsum("sb,sbd->sd", residual, x) / batch


def _deviation(error, noise_std, spectrum):
    """Return the deviation of one sample's gradient, exactly (Isserlis)."""
    trace = np.sum(spectrum)
    mean = error * spectrum
    first = np.sum(error * mean, axis=-1)
    second = first * trace + 2 * np.sum(mean**2, axis=-1) + noise_std**2 * trace
    return np.sqrt(second - np.sum(mean**2, axis=-1))


def _ball(x, radius):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return x * np.minimum(1.0, radius / np.maximum(norm, 1e-300))


def _chase(rng, *, spectrum, seeds, steps, batch, noise_std, largest, speed, radius=np.inf):
    """Run SGD against a nature that sees the learner's weights and runs away from them.

    Both the rate and the target are adapted: they look at the past alone.
    """
    spectrum = np.asarray(spectrum)
    theta = np.zeros((seeds, spectrum.size))
    star = _ball(rng.standard_normal((seeds, spectrum.size)), min(radius, 1.0))
    out = {name: [] for name in Record._fields}
    for _ in range(steps):
        error = theta - star
        distance = np.linalg.norm(error, axis=-1)
        rate = largest * (1.0 + 4.0 * distance) / (2.0 + 4.0 * distance)
        grad = _gradient(rng, error, batch, noise_std, spectrum)
        after = _ball(theta - rate[:, None] * grad, radius)
        away = star - after
        length = np.maximum(np.linalg.norm(away, axis=-1, keepdims=True), 1e-300)
        there = _ball(star + speed * away / length, radius)
        out["rates"].append(rate)
        out["distances"].append(distance)
        out["shifts"].append(np.linalg.norm(star - there, axis=-1))
        out["cross"].append(np.sum((star - there) * (after - star), axis=-1))
        out["deviations"].append(_deviation(error, noise_std, spectrum))
        out["regrets"].append(0.5 * np.sum(spectrum * error**2, axis=-1))
        theta, star = after, there
    out["distances"].append(np.linalg.norm(theta - star, axis=-1))
    return Record(**{name: np.stack(value, axis=-1) for name, value in out.items()})


def _above(samples, sigmas=4.0):
    """Say whether the mean over the first axis is not below 0, but for sampling error."""
    mean = samples.mean(axis=0)
    error = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
    return bool(np.all(mean >= -sigmas * error))


def _zero(samples, bias=0.0, sigmas=4.0):
    """Say whether the mean over the first axis is 0, but for sampling error and a known bias."""
    mean = samples.mean(axis=0)
    error = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
    return bool(np.all(np.abs(mean) <= sigmas * error + bias))


@pytest.fixture
def gradient():
    return _gradient


@pytest.fixture
def chase():
    return _chase


@pytest.fixture
def above():
    return _above


@pytest.fixture
def zero():
    return _zero
