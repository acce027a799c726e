"""A pool of weights on one batch: the joint law of its gradients, and the loop that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from driftrate.learners.hedged_sgd import HedgedSGD
from driftrate.schedules.base import Array
from driftrate.simulation.engine import Engine
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.target import Standing, Target

_BLOCK = 1 << 21  # numbers of a batch in memory at a time


@dataclass(frozen=True)
class PoolSample:
    """What one batch gives at n points: losses (seeds, n) and gradients (seeds, n, dim)."""

    losses: Array
    gradients: Array


class PoolSampler(ABC):
    """Draws one batch for every seed, at all points of a pool.

    Args:
        stream: The stream.
        backend: Where arrays live and randomness comes from.
    """

    def __init__(self, stream: Stream, backend: Backend) -> None:
        self._stream, self._backend = stream, backend

    @abstractmethod
    def draw(self, target: Target, points: Array) -> PoolSample:
        """Draw at θ_k, of shape (seeds, n, dim); the first is a centre near the others."""

    def _labels(self, predictor: Array) -> Array:
        if self._stream.noise_std:
            noise = self._backend.normal(*predictor.shape)
            predictor = predictor + self._stream.noise_std * noise
        return self._stream.labels(self._backend, predictor)[..., None]


class ExactPoolSampler(PoolSampler):
    """Draws the joint law of the gradients at n points in O(n² (B + dim)), never the batch.

    The residuals at all points depend on the whitened samples w_i only through the span of Aᵀθ°
    and all Aᵀθ_k. With an orthonormal basis Q of it, q_i = Qᵀw_i are standard normal; they and the
    noise give the residual matrix r (B x n). Outside the span the w_i are independent of r, so
    that Σ_i w_i r_i is matrix normal there: with RᵀR = rᵀr and Z standard normal,

        A [Q qᵀr + (I - QQᵀ) Z R] / B

    are the gradients. Both bases come from QR, which needs no tolerance where points coincide.
    """

    def draw(self, target: Target, points: Array) -> PoolSample:
        backend, xp = self._backend, self._backend.xp
        batch, size = target.batch_size, target.covariance.size
        basis, truth, ways = self._span(target, points)
        rank, n = basis.shape[-1], points.shape[-2]
        inside, root, loss = 0.0, None, 0.0
        chunk = max(1, min(batch, _BLOCK // (points.shape[0] * (rank + n))))
        for start in range(0, batch, chunk):
            count = min(chunk, batch - start)
            q = backend.normal(points.shape[0], count, rank)
            prediction = q @ ways
            labels = self._labels((q @ truth[..., None])[..., 0])
            r = self._stream.residual(xp, prediction, labels)
            loss = loss + xp.sum(self._stream.loss(xp, prediction, labels), axis=-2)
            inside = inside + xp.matrix_transpose(q) @ r
            if size > rank:
                stack = r if root is None else xp.concat([root, r], axis=-2)
                root = xp.linalg.qr(stack)[1]
        sums = basis @ inside
        if root is not None:
            z = backend.normal(points.shape[0], size, root.shape[-2])
            z -= basis @ (xp.matrix_transpose(basis) @ z)
            sums = sums + z @ root
        gradients = target.covariance.colour(xp.matrix_transpose(sums) / batch)
        return PoolSample(loss / batch, gradients)

    def _span(self, target: Target, points: Array) -> tuple[Array, Array, Array]:
        """Return an orthonormal basis, and the truth (rank) and the points (rank, n) in it."""
        xp, centre = self._backend.xp, points[..., :1, :]
        spokes = xp.concat([centre, points[..., 1:, :] - centre], axis=-2)
        whitened = target.covariance.whiten(spokes)
        truth = _own(target.whitened)[..., None, :] + 0.0 * whitened[..., :1, :]
        rows = xp.concat([truth, whitened], axis=-2)
        # Unit rows, so that points very close to each other keep their directions.
        norm = xp.sqrt(xp.vecdot(rows, rows))[..., None]
        rows = rows / xp.where(norm > 0, norm, 1.0)
        basis, r = xp.linalg.qr(xp.matrix_transpose(rows))
        r = r * norm[..., 0][..., None, :]
        middle = r[..., 1:2]
        return basis, r[..., 0], xp.concat([middle, middle + r[..., 2:]], axis=-1)


class DirectPoolSampler(PoolSampler):
    """Draws batches: the exact sampler's readable twin."""

    def draw(self, target: Target, points: Array) -> PoolSample:
        backend, xp = self._backend, self._backend.xp
        seeds, batch = points.shape[0], target.batch_size
        losses, gradients = [], []
        rows = max(1, _BLOCK // (batch * target.covariance.size))
        truth = _own(target.parameter) + 0.0 * points[:, 0, :]
        for start in range(0, seeds, rows):
            block = slice(start, min(start + rows, seeds))
            x = backend.normal(block.stop - start, batch, target.covariance.size)
            x = target.covariance.colour(x)
            predictor = xp.matmul(x, truth[block][..., None])[..., 0]
            labels = self._labels(predictor)
            prediction = x @ xp.matrix_transpose(points[block])
            r = self._stream.residual(xp, prediction, labels)
            losses.append(xp.mean(self._stream.loss(xp, prediction, labels), axis=-2))
            gradients.append(xp.matrix_transpose(r) @ x / batch)
        return PoolSample(xp.concat(losses, axis=0), xp.concat(gradients, axis=0))


def _own(array: Array) -> Array:
    """Return a target's vector as (dim,) or, for adaptive nature, (seeds, dim)."""
    return array[0] if array.ndim > 2 else array


class PoolEngine(Engine):
    """The loop for one pool: the learner, whose regret counts, is the mixture."""

    def __init__(
        self, stream: Stream, pool: HedgedSGD, backend: Backend, *, exact: bool, **options: Any
    ) -> None:
        super().__init__(stream, [pool], backend, exact=exact, **options)
        self._pool = pool
        self._state = pool.init(self.error[0])
        sampler = ExactPoolSampler if exact else DirectPoolSampler
        self._pool_sampler: PoolSampler = sampler(stream, backend)

    def _draw(self, standing: Standing) -> PoolSample:
        return self._pool_sampler.draw(standing.target, self._pool.members(self._state))

    def _choose(self, step: int, standing: Standing, sample: Any, loss_shift: Array) -> None:
        """Take the pool's step; its rate is the share-weighted mean of its copies'."""
        backend, pool = self.backend, self._pool
        losses, gradients = sample.losses, sample.gradients
        self._state = pool.update(self._state, losses, gradients, project=self.project)
        rates = backend.xp.astype(pool.rate(self._state), backend.real)[None]
        self._mark(backend.xp.isfinite(standing.regret + rates), step, rates)
        self.rates = rates

    def _descend(self, sample: Any, target: Target) -> None:
        """Put the learner where the pool's mixture is."""
        self.error[...] = self._pool.mixture(self._state) - target.oracle
