"""The direct sampler draws every batch: the slow and readable twin of the exact one."""

from __future__ import annotations

from driftrate.schedules.base import Array
from driftrate.simulation.gradient import Explicit, Sample
from driftrate.simulation.parts import cross_and_spread
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.target import Standing

_BLOCK = 1 << 22  # entries of x held at a time


class DirectSampler:
    """Draws batches and averages their gradients.

    Args:
        stream: The stream.
        backend: Where arrays live and randomness comes from.
        needs: Which of loss, grad_sq, cross and spread to measure.
        parts: Into how many parts of equal size batches are cut.
    """

    def __init__(self, stream: Stream, backend: Backend, needs: frozenset[str], parts: int) -> None:
        self._stream, self._backend, self._parts = stream, backend, parts
        self._loss = "loss" in needs
        self._grad_sq = "grad_sq" in needs or parts > 1

    def draw(self, standing: Standing) -> Sample:
        """Draw the step's batch, shared by all lanes, and return every seed's gradient."""
        backend, target, parts = self._backend, standing.target, self._parts
        xp = backend.xp
        lanes, seeds, dim = standing.error.shape
        vectors = backend.empty(parts, lanes, seeds, dim)
        losses = backend.zeros(lanes, seeds, scalar=True)
        rows = max(1, _BLOCK // (target.batch_size * target.covariance.size))
        for start in range(0, seeds, rows):
            block = slice(start, min(start + rows, seeds))
            count = block.stop - start
            x = backend.normal(count, target.batch_size, target.covariance.size)
            x = target.covariance.colour(x)
            truth = target.parameter
            if truth.ndim > 1:  # adaptive nature: each seed has a target of its own, in one lane
                truth = truth[0, block]
            predictor = xp.vecdot(x, truth[..., None, :]) if truth.ndim > 1 else x @ truth
            if self._stream.noise_std:
                predictor += self._stream.noise_std * backend.normal(count, target.batch_size)
            labels = self._stream.labels(backend, predictor)
            for lane in range(lanes):
                weights = standing.error[lane, block] + _oracle(target.oracle, block)
                prediction = xp.matmul(x, weights[..., None])[..., 0]
                r = self._stream.residual(xp, prediction, labels)
                mean = _part_means(xp, x, r, parts)
                vectors[:, lane, block] = mean
                if self._loss:
                    loss = self._stream.loss(xp, prediction, labels)
                    losses[lane, block] = xp.mean(loss, axis=-1)
        gradient = Explicit(backend, xp.mean(vectors, axis=0))
        loss = losses if self._loss else None
        if not self._grad_sq:
            return Sample(gradient, loss=loss)
        grad_sq = gradient.norm_sq()
        if parts == 1:
            return Sample(gradient, loss=loss, grad_sq=grad_sq)
        parts_sq = xp.sum(xp.astype(xp.vecdot(vectors, vectors), backend.real), axis=0)
        cross, spread = cross_and_spread(xp, grad_sq, parts_sq, parts)
        return Sample(gradient, loss, grad_sq, cross, spread)


def _oracle(oracle: Array, block: slice) -> Array:
    return oracle[0, block] if oracle.ndim > 1 else oracle


def _part_means(xp: object, x: Array, r: Array, parts: int) -> Array:
    """Return the mean of r_i x_i over each part, of shape (parts, seeds, dim)."""
    seeds, batch, dim = x.shape
    size = batch // parts
    x = x.reshape(seeds, parts, size, dim)
    r = r.reshape(seeds, parts, 1, size)
    return xp.moveaxis(xp.matmul(r, x)[:, :, 0, :], 1, 0) / size  # type: ignore[attr-defined]
