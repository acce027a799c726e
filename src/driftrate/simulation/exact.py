"""The exact sampler: the batch gradient in distribution, without drawing the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from driftrate.schedules.base import Array
from driftrate.simulation.gradient import Combination, Sample, Sampler
from driftrate.simulation.parts import outside_sq
from driftrate.streams.backend import Backend
from driftrate.streams.base import Stream
from driftrate.streams.linear import LinearStream
from driftrate.streams.target import Standing

_BLOCK = 1 << 20  # samples held at a time


class Axis(NamedTuple):
    """A unit vector x Aᵀδ + y Aᵀθ° of the span that residuals depend on; zero if there is none."""

    error: Array | None  # x
    truth: Array | None  # y


@dataclass(frozen=True)
class Residuals:
    """The residuals of a batch of k parts, and its components in the span."""

    axes: list[Axis]
    norms_sq: Array  # ‖r_j‖² of part j, (lanes, seeds, k)
    inside: list[Array]  # for each axis Σ r_i <w_i, axis> / b over part j
    loss: Array | None  # (lanes, seeds), the batch loss


class Law(ABC):
    """The joint law of a batch's residuals and its covariates' components in the span."""

    def __init__(self, stream: Stream, backend: Backend) -> None:
        self.stream, self.backend = stream, backend

    rank: int  # the largest dimension of the span

    @abstractmethod
    def draw(self, standing: Standing, parts: int, with_loss: bool) -> Residuals:
        """Draw one batch's residuals for every seed."""


class LinearLaw(Law):
    """Linear regression: a chi-square and a normal per part.

    r_i = <w_i, Aᵀδ> - ε_i ~ N(0, τ) with τ = D² + σ², D = ‖Aᵀδ‖, so ‖r‖² = τ χ²_b; given r, the
    component of w_i along δ is (D/τ) r_i + (σ/√τ) N(0, 1), so that of the gradient is
    (D χ² + σ χ N(0, 1))/b.
    """

    rank = 1

    def draw(self, standing: Standing, parts: int, with_loss: bool) -> Residuals:
        xp = self.backend.xp
        batch, sigma = standing.target.batch_size, self.stream.noise_std
        part = batch // parts
        seeds = standing.error.shape[-2]
        chi = self.backend.chisquare(float(part), seeds, parts)
        normal = self.backend.scalar_normal(seeds, parts)
        d = xp.sqrt(standing.excess_sq)
        norms_sq = (standing.excess_sq + sigma**2)[..., None] * chi
        along = (d[..., None] * chi + (sigma * normal) * xp.sqrt(chi)) / part
        inverse = _reciprocal(xp, d)
        loss = 0.5 / batch * xp.sum(norms_sq, axis=-1) if with_loss else None
        return Residuals([Axis(inverse, None)], norms_sq, [along], loss)


class ModelLaw(Law):
    """A generalised linear model: two normals per sample, with or without noise in the link.

    The residual depends on two predictors: the labels', <w, Aᵀθ°> + ε = S q_1, and the learner's,
    A q_1 + C q_2 with q_2 independent of q_1. The components of w along θ° and across it hold one
    more normal, q_3, independent of both and so of the residuals: its sum weighted by them is
    ‖r‖ N(0, 1), and it is not drawn for every sample.
    """

    rank = 2

    def draw(self, standing: Standing, parts: int, with_loss: bool) -> Residuals:
        backend, target, stream = self.backend, standing.target, self.stream
        xp, sigma = backend.xp, stream.noise_std
        part = target.batch_size // parts
        seeds = standing.error.shape[1]
        signal = target.signal + backend.zeros(1, 1, scalar=True)
        truth, total = xp.sqrt(signal), xp.sqrt(signal + sigma**2)
        inverse = _reciprocal(xp, truth)
        # θ = δ + cθ°: along the truth a/s° + c s°, across it the component of δ across it.
        error_along = standing.alignment * inverse
        beside_sq = standing.excess_sq - error_along * error_along
        # Within the rounding of the inner products δ is taken to be parallel to θ°.
        floor = (1e-11 if backend.dtype == backend.real else 1e-5) * standing.excess_sq
        beside = xp.sqrt(xp.where(beside_sq > floor, beside_sq, 0.0))
        beside_inverse = _reciprocal(xp, beside)
        axes = [Axis(None, inverse), Axis(beside_inverse, -error_along * inverse * beside_inverse)]
        along = error_along + target.scale * truth
        # The share of the labels' predictor that is signal, and how q_2 and q_3 turn into the rest.
        shown, hidden = truth * _reciprocal(xp, total), sigma * _reciprocal(xp, total)
        rest = xp.sqrt((along * hidden) ** 2 + beside * beside)
        turn = along * hidden * _reciprocal(xp, rest)
        keep = xp.where(rest > 0, beside * _reciprocal(xp, rest), 1.0)
        sums = self._sums(standing, (along * shown, rest, total), (parts, part), with_loss)
        norms_sq, on_first, on_second, loss = sums
        third = xp.sqrt(norms_sq) * backend.scalar_normal(seeds, parts)
        shown, hidden, turn, keep = (v[..., None] for v in (shown, hidden, turn, keep))
        inside = [
            (shown * on_first + hidden * (turn * on_second + keep * third)) / part,
            (keep * on_second - turn * third) / part,
        ]
        return Residuals(axes, norms_sq, inside, loss)

    def _sums(
        self,
        standing: Standing,
        predictors: tuple[Array, Array, Array],
        shape: tuple[int, int],
        with_loss: bool,
    ) -> tuple[Array, Array, Array, Array | None]:
        """Draw the samples in chunks, and add up r², r q_1, r q_2 and the loss."""
        backend, stream = self.backend, self.stream
        xp, (parts, part) = backend.xp, shape
        lanes, seeds = standing.error.shape[:2]
        own_first, own_second, label = (backend.small(v)[..., None] for v in predictors)
        norms_sq = on_first = on_second = loss = 0.0
        chunk = max(1, min(part, _BLOCK // (lanes * seeds * parts)))
        for start in range(0, part, chunk):
            q = backend.normal(2, seeds, parts, min(chunk, part - start))
            prediction = q[0] * own_first
            prediction += q[1] * own_second
            labels = stream.labels(backend, q[0] * label)
            r = stream.residual(xp, prediction, labels)
            norms_sq += xp.astype(xp.vecdot(r, r), backend.real)
            on_first += xp.astype(xp.vecdot(r, q[0]), backend.real)
            on_second += xp.astype(xp.vecdot(r, q[1]), backend.real)
            if with_loss:
                losses = stream.loss(xp, prediction, labels)
                loss += xp.astype(xp.sum(losses, axis=(-1, -2)), backend.real)
        batch_loss = loss / (parts * part) if with_loss else None
        return norms_sq, on_first, on_second, batch_loss


def _reciprocal(xp: Any, values: Array) -> Array:
    """Return 1/v, and 0 where v is 0."""
    there = values > 0
    return xp.where(there, 1 / xp.where(there, values, 1.0), 0.0)


class ExactSampler(Sampler):
    """Draws batch gradients in O(dim): components that residuals depend on, an isotropic rest.

    Write w_i for the whitened samples. Given the residuals r and the components of the w_i in the
    span, the components outside are still standard normal and independent, so their sum weighted
    by r is an isotropic normal of deviation ‖r‖, whatever the residuals are.
    """

    def __init__(self, stream: Stream, backend: Backend, needs: frozenset[str], parts: int) -> None:
        super().__init__(stream, backend, needs, parts)
        law = LinearLaw if isinstance(stream, LinearStream) else ModelLaw
        self._law: Law = law(stream, backend)
        self._noise: Array | None = None

    def draw(self, standing: Standing) -> Sample:
        residuals = self._law.draw(standing, self._parts, self._loss)
        if standing.target.covariance.isotropic:
            return self._isotropic(standing, residuals)
        return self._anisotropic(standing, residuals)

    def _normals(self, standing: Standing) -> Array:
        shape = (standing.error.shape[-2], standing.target.covariance.size)
        if self._noise is None or self._noise.shape != shape:
            self._noise = self._backend.empty(*shape)
        self._backend.fill_normal(self._noise)
        return self._noise

    def _components(self, standing: Standing, z: Array, axes: list[Axis]) -> list[Array]:
        """Return <z, axis> for every axis."""
        xp, real = self._backend.xp, self._backend.real
        on_error = xp.astype(xp.vecdot(z, standing.whitened), real, copy=False)
        on_truth = None
        if any(axis.truth is not None for axis in axes):
            on_truth = xp.astype(xp.vecdot(z, standing.target.whitened), real, copy=False)
        return [_combine(axis, on_error, on_truth) for axis in axes]

    def _isotropic(self, standing: Standing, residuals: Residuals) -> Sample:
        backend, axes, parts = self._backend, residuals.axes, self._parts
        xp = backend.xp
        z = self._normals(standing)
        components = self._components(standing, z, axes)
        noise = xp.sqrt(_over_parts(xp.sum, residuals.norms_sq)) / standing.target.batch_size
        inside = [_over_parts(xp.mean, own) for own in residuals.inside]
        on_error, on_truth = _weights(axes, inside, noise, components)
        gradient = Combination(backend, on_error, on_truth, standing.target.parameter, noise, z)
        if not self._grad_sq:
            return Sample(gradient, residuals.loss)
        there = [xp.astype(_exists(axis), backend.real) for axis in axes]
        tail_sq = xp.astype(xp.vecdot(z, z), backend.real) - sum(c * c for c in components)
        freedom = standing.target.covariance.size - sum(there)
        tail_sq = xp.where(freedom > 0, backend.positive(tail_sq), 0.0)
        grad_sq = noise * noise * tail_sq + sum(
            t * own * own for t, own in zip(there, inside, strict=True)
        )
        if parts == 1:
            return Sample(gradient, residuals.loss, grad_sq)
        least = max(standing.target.covariance.size - self._law.rank, 0)
        outside = outside_sq(backend, residuals.norms_sq, xp.sqrt(tail_sq), freedom, least)
        part = standing.target.batch_size // parts
        parts_sq = outside / part**2 + sum(
            t * xp.sum(own * own, axis=-1) for t, own in zip(there, residuals.inside, strict=True)
        )
        return self._measured(gradient, residuals.loss, grad_sq, parts_sq)

    def _anisotropic(self, standing: Standing, residuals: Residuals) -> Sample:
        """Draw part by part: with Σ ≠ I the norms of the parts need their vectors."""
        backend, axes, parts = self._backend, residuals.axes, self._parts
        xp, target = backend.xp, standing.target
        part = target.batch_size // parts
        gradient, parts_sq = 0.0, 0.0
        for j in range(parts):
            z = self._normals(standing)
            noise = xp.sqrt(residuals.norms_sq[..., j]) / part
            inside = [own[..., j] for own in residuals.inside]
            components = self._components(standing, z, axes)
            on_error, on_truth = _weights(axes, inside, noise, components)
            one = backend.small(on_error) * standing.whitened
            one += backend.small(noise) * z
            if on_truth is not None:
                one += backend.small(on_truth) * target.whitened
            one = target.covariance.colour(one)
            gradient = gradient + one / parts
            if parts > 1:
                parts_sq += xp.astype(xp.vecdot(one, one), backend.real)
        return self._explicit(gradient, residuals.loss, parts_sq)


def _over_parts(reduce: Callable[..., Array], values: Array) -> Array:
    """Sum or average over the parts; a single part is returned as it is."""
    return values[..., 0] if values.shape[-1] == 1 else reduce(values, axis=-1)


def _combine(axis: Axis, on_error: Array, on_truth: Array) -> Array:
    value = 0.0 if axis.error is None else axis.error * on_error
    return value if axis.truth is None else value + axis.truth * on_truth


def _exists(axis: Axis) -> Array:
    return axis.truth != 0 if axis.error is None else axis.error != 0


def _weights(
    axes: list[Axis], inside: list[Array], noise: Array, components: list[Array]
) -> tuple[Array, Array | None]:
    """Return the coefficients on δ and θ° that replace the noise's components in the span."""
    on_error, on_truth = 0.0, None
    for axis, own, there in zip(axes, inside, components, strict=True):
        weight = own - noise * there
        if axis.error is not None:
            on_error = on_error + weight * axis.error
        if axis.truth is not None:
            on_truth = weight * axis.truth + (0.0 if on_truth is None else on_truth)
    return on_error, on_truth
