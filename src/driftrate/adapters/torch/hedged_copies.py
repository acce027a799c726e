"""Copies of a network as the rows of one matrix, and their step: one batched pass, no loops."""

from __future__ import annotations

from copy import deepcopy
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from driftrate.adapters.torch.hedged_losses import Kind

SPIKE = 10.0  # times the usual norm: longer gradients are clipped there
FRESH = 0.1  # weight of the newest norm in the usual one, once older than 1/that
TINY = 1e-12  # beside a root that is 0 because the gradient always was


class Copies:
    r"""K copies of a network, each with a rate r_k and a memory of its own.

    Copy k keeps a discounted sum of squared gradients, from 0 on, and steps on its own gradient g
    over the root of it, weight by weight:

        v_k ← κ_k v_k + g²,     w_k ← w_k - r_k s g/√v_k,     s = 1/√(3 · fan-in)

    s is the root mean square of torch's own first weights, so a rate is a part of a weight's usual
    size; the first step is ±r_k s. After 1/(1 - κ_k) steps, the memory, a step is about
    r_k s √(1 - κ_k).

    *Outliers.* g is clipped at ten times its usual norm, or one batch would shorten all steps for
    the time of the memory. A copy whose gradient is not finite takes no step: weights are always
    finite.

    Args:
        model: The network; it is copied, and stays as it is. Parameters that do not require a
            gradient, and buffers, are shared by all copies.
        rates: r, a number a copy.
        keeps: κ, a number a copy, each below 1.
        fresh: Whether all copies but the first draw first weights of their own, module by module
            (`reset_parameters`, from torch's global generator).
    """

    def __init__(
        self, model: nn.Module, rates: list[float], keeps: list[float], fresh: bool
    ) -> None:
        self.model = deepcopy(model)
        self._named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        first = next(iter(self._named.values()))
        self.dtype, self.device = first.dtype, first.device
        # Steps are far smaller than what half precision can tell apart.
        wide = torch.promote_types(first.dtype, torch.float32)
        rows = [self.start().to(wide)]
        for _ in rates[1:]:
            rows.append(_drawn(self.model, self._named).to(wide) if fresh else rows[0])
        self.weights = torch.stack(rows)
        self.second = torch.zeros_like(self.weights)
        self.usual = self.weights.new_zeros(len(rates))
        self.rates = self.weights.new_tensor(rates)
        self.keeps = self.weights.new_tensor(keeps)
        scales = _scales(self.model)
        self._scale = torch.cat(
            [self.weights.new_full((p.numel(),), scales[p]) for p in self._named.values()]
        )

    def start(self) -> Tensor:
        """Return the first weights of the first copy, those of the given model, (D,)."""
        return torch.cat([p.detach().reshape(-1) for p in self._named.values()])

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of every copy, (K, rows, ...)."""
        scores: Tensor = vmap(self.call, in_dims=(0, None))(self.weights, x)
        return scores

    def pull(self, kind: Kind, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients (K, D), losses (K,) and scores (K, rows, ...) of a batch."""

        def one(row: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.call(row, x)
            return kind.loss(scores, y), scores

        every = vmap(grad_and_value(one, has_aux=True), in_dims=(0, None, None))
        gradients, (losses, scores) = every(self.weights, x, y)
        return gradients, losses, scores

    def call(self, row: Tensor, x: Tensor) -> Any:
        """Return the scores of the network with the weights of one row, (rows, ...)."""
        sizes = [p.numel() for p in self._named.values()]
        # One split, not a slice for each: its gradient is one matrix, put together once.
        parts = torch.split_with_sizes(row.to(self.dtype), sizes)
        named = zip(self._named.items(), parts, strict=True)
        return functional_call(self.model, {n: part.view_as(p) for (n, p), part in named}, (x,))

    def step(self, gradients: Tensor, norms: Tensor, takes: Tensor) -> None:
        """Take the step of those copies that take one.

        Args:
            gradients: g, (K, D); overwritten.
            norms: ‖g‖, (K,).
            takes: Which copies take the step, (K,); the others' gradients are not read.
        """
        limit = torch.where(self.usual > 0.0, SPIKE * self.usual, torch.inf)
        clipped = torch.minimum(norms, limit)
        share = clipped / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        if not self._knows(takes.all() & (share >= 1.0).all()):
            gradients.mul_(share[:, None])
            gradients.masked_fill_(~takes[:, None], 0.0)
        weight = torch.where(self.usual > 0.0, FRESH, 1.0)
        self.usual += torch.where(takes, weight * (clipped - self.usual), 0.0)
        self.second.mul_(torch.where(takes, self.keeps, 1.0)[:, None])
        self.second.addcmul_(gradients, gradients)
        gradients.div_(self.second.sqrt().add_(TINY)).mul_(self._scale)
        self.weights.addcmul_(gradients, self.rates[:, None], value=-1.0)

    def restart(self, broken: Tensor, source: Tensor, anew: Tensor) -> None:
        """Put broken copies where another is, and all at the start if asked for.

        Args:
            broken: Which copies, (K,).
            source: The number of the copy whose weights and memory they take over.
            anew: Whether all start again from the first weights.
        """
        if self._knows(~(broken.any() | anew)):
            return
        zero = torch.zeros_like(self.usual[0])
        start = self.start().to(self.weights)
        for now, first in ((self.weights, start), (self.second, zero), (self.usual, zero)):
            mask = broken.view(-1, *[1] * (now.ndim - 1))
            moved = torch.where(mask, now.index_select(0, source.view(1)), now)
            now.copy_(torch.where(anew, first, moved))

    def _knows(self, certain: Tensor) -> bool:
        """Whether it is certain, where asking is free: an accelerator is not made to wait."""
        return self.device.type == "cpu" and bool(certain)


def _drawn(model: nn.Module, named: dict[str, nn.Parameter]) -> Tensor:
    """Return first weights drawn anew, where modules know how, (D,)."""
    twin = deepcopy(model)
    for module in twin.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    drawn = dict(twin.named_parameters())
    return torch.cat([drawn[name].detach().reshape(-1) for name in named])


def _scales(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the s of every parameter.

    The fan-in of a vector (a bias) is that of the widest matrix beside it in its module, and 1
    where there is none (a norm's).
    """
    scales: dict[nn.Parameter, float] = {}
    for module in model.modules():
        own = [*module.parameters(recurse=False)]
        matrices = [p[0].numel() for p in own if p.ndim > 1 and len(p)]
        for p in own:
            fan = p[0].numel() if p.ndim > 1 and len(p) else max(matrices, default=1)
            scales.setdefault(p, 1.0 / sqrt(3.0 * max(fan, 1)))
    return scales
