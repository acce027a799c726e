"""The direct sampler draws every batch: the slow and readable twin of the exact one."""

from __future__ import annotations

from driftrate.simulation.gradient import Sample, Sampler
from driftrate.streams.target import Standing

_BLOCK = 1 << 22  # entries of x held at a time


class DirectSampler(Sampler):
    """Draws batches and averages their gradients."""

    def draw(self, standing: Standing) -> Sample:
        backend, target, parts = self._backend, standing.target, self._parts
        xp = backend.xp
        lanes, seeds, dim = standing.error.shape
        part = target.batch_size // parts
        vectors = backend.empty(parts, lanes, seeds, dim)
        losses = backend.zeros(lanes, seeds, scalar=True)
        rows = max(1, _BLOCK // (target.batch_size * target.covariance.size))
        for start in range(0, seeds, rows):
            block = slice(start, min(start + rows, seeds))
            count = block.stop - start
            x = backend.normal(count, target.batch_size, target.covariance.size)
            x = target.covariance.colour(x)
            truth, oracle = target.parameter, target.oracle
            if truth.ndim > 1:  # adaptive nature: each seed has a target of its own, in one lane
                truth, oracle = truth[0, block], oracle[0, block]
            predictor = xp.vecdot(x, truth[..., None, :]) if truth.ndim > 1 else x @ truth
            if self._stream.noise_std:
                predictor += self._stream.noise_std * backend.normal(count, target.batch_size)
            labels = self._stream.labels(backend, predictor)
            for lane in range(lanes):
                weights = standing.error[lane, block] + oracle
                prediction = xp.matmul(x, weights[..., None])[..., 0]
                r = self._stream.residual(xp, prediction, labels)
                # The mean of r_i x_i over each part.
                sums = xp.matmul(
                    r.reshape(count, parts, 1, part), x.reshape(count, parts, part, dim)
                )
                vectors[:, lane, block] = xp.moveaxis(sums[:, :, 0, :], 1, 0) / part
                if self._loss:
                    loss = self._stream.loss(xp, prediction, labels)
                    losses[lane, block] = xp.mean(loss, axis=-1)
        parts_sq = 0.0
        if parts > 1:
            parts_sq = xp.sum(xp.astype(xp.vecdot(vectors, vectors), backend.real), axis=0)
        return self._explicit(xp.mean(vectors, axis=0), losses if self._loss else None, parts_sq)
