"""Remedies for networks that forget how to learn, written from their papers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from driftrate.errors import ConfigError
from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import NETWORKS, TORCH, Contestant, Setup, grid

if TYPE_CHECKING:
    import torch


class UPGD(OptimizerPlayer):
    r"""Utility-based perturbed gradient descent, first order, utilities scaled over all weights.

    With u the mean of -g w with decay β, free of its start's bias, ξ ~ N(0, σ²) and s the logistic
    function,

        w ← (1 - η λ) w - η (g + ξ) (1 - s(u / max u)).

    Args:
        setup: The network.
        lr: η.
        decay: β.
        noise: σ.
        weight_decay: λ.

    Reference:
        Elsayed and Mahmood (2024), "Addressing loss of plasticity and catastrophic forgetting in
        continual learning", ICLR, Algorithm 1.
    """

    maker = "torch.optim:SGD"

    def __init__(
        self,
        setup: Setup,
        lr: float = 0.01,
        decay: float = 0.999,
        noise: float = 0.001,
        weight_decay: float = 0.001,
    ) -> None:
        import torch

        super().__init__(setup, lr=lr)
        self.decay, self.noise, self.shrink = decay, noise, 1.0 - lr * weight_decay
        self.weights = list(self.net.parameters())
        self.useful = [torch.zeros_like(w) for w in self.weights]
        self.random = torch.Generator(setup.device).manual_seed(setup.seed)

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the gradient that plain SGD is to take in place."""
        import torch

        scores, value = super().backward(features, target)
        with torch.no_grad():
            gradients = [w.grad for w in self.weights if w.grad is not None]
            for w, gradient, useful in zip(self.weights, gradients, self.useful, strict=True):
                useful.mul_(self.decay).addcmul_(gradient, w, value=self.decay - 1.0)
            # The bias of the start is in the largest, too, and cancels; 0 without any gradient.
            top = torch.stack([u.max() for u in self.useful]).max().clamp(min=1e-30)
            for w, gradient, useful in zip(self.weights, gradients, self.useful, strict=True):
                noise = torch.randn(w.shape, generator=self.random, device=w.device)
                gradient.add_(noise, alpha=self.noise).mul_(torch.sigmoid(-useful / top))
                w.mul_(self.shrink)
        return scores, value


class Anchored(OptimizerPlayer):
    r"""Any optimizer on the loss plus λ ‖w - w₀‖², w₀ the first weights.

    Reference:
        Kumar, Marklund and Van Roy (2023), "Maintaining plasticity in continual learning via
        regenerative regularization", arXiv 2308.11958.
    """

    def __init__(self, setup: Setup, strength: float = 1e-3, **options: Any) -> None:
        super().__init__(setup, **options)
        self.strength = strength
        self.weights = list(self.net.parameters())
        self.start = [w.detach().clone() for w in self.weights]

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the penalty's gradient to the loss's; what is scored is the loss alone."""
        import torch

        scores, value = super().backward(features, target)
        with torch.no_grad():
            for w, start in zip(self.weights, self.start, strict=True):
                if w.grad is not None:
                    w.grad.add_(w - start, alpha=2.0 * self.strength)
        return scores, value


class Renewed(OptimizerPlayer):
    r"""Any optimizer with continual backprop: the least useful hidden units begin anew.

    After each step the utility of unit i of a layer is

        u_i ← 0.99 u_i + 0.01 |h_i| Σ_k |w_ik|,

    |h_i| its mean output over the batch and w_ik its outgoing weights. Of the units that are older
    than `maturity` steps a share `replacement` a step, the least useful first, gets new incoming
    weights, outgoing ones of 0, and age and utility 0; moments that the optimizer keeps of these
    weights begin anew too.

    Args:
        setup: The network, of hidden layers with ReLU.
        replacement: The share of units that is renewed a step.
        maturity: The steps for which a unit is left alone.
        options: Those of the optimizer.

    Reference:
        Dohare et al. (2024), "Loss of plasticity in deep continual learning", Nature 632,
        Algorithm 1.
    """

    def __init__(
        self, setup: Setup, replacement: float = 1e-4, maturity: int = 100, **options: Any
    ) -> None:
        import torch
        from torch import nn

        super().__init__(setup, **options)
        if not isinstance(self.net, nn.Sequential):
            raise ConfigError(f"continual backprop renews units of ReLU layers, not {setup.model}")
        self.replacement, self.maturity = replacement, maturity
        self.layers = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        self.outputs: list[torch.Tensor] = []
        for layer in self.net:
            if isinstance(layer, nn.ReLU):
                layer.register_forward_hook(self._hear)
        hidden = self.layers[:-1]
        self.useful = [torch.zeros_like(layer.bias.detach()) for layer in hidden]
        self.age = [torch.zeros_like(layer.bias.detach()) for layer in hidden]
        self.due = [0.0] * len(hidden)
        self.count = 0
        self.random = torch.Generator(setup.device).manual_seed(setup.seed)

    def _hear(self, layer: Any, given: Any, output: torch.Tensor) -> None:
        if output.requires_grad:  # a pass that trains
            self.outputs.append(output.detach())

    def trained(self, loss: torch.Tensor) -> None:
        """Judge the units by the step that was taken."""
        import torch

        super().trained(loss)
        self.count += 1
        with torch.no_grad():
            for place, heard in enumerate(self.outputs):
                out = self.layers[place + 1].weight.abs().sum(dim=0)
                now = heard.abs().mean(dim=0) * out
                self.useful[place].lerp_(now, 0.01)
                self.age[place].add_(1.0)
                self._renew(place)
        self.outputs.clear()

    def _renew(self, place: int) -> None:
        import torch

        # No unit is old enough before; afterwards nearly all are, and counting them is a read.
        if self.count <= self.maturity:
            return
        old = self.age[place] > self.maturity
        self.due[place] += self.replacement * int(old.sum())
        count = int(self.due[place])
        if count == 0:
            return
        self.due[place] -= count
        # Young units' means begin at 0, and would look useless.
        grown = self.useful[place] / (1.0 - 0.99 ** self.age[place].clamp(min=1.0))
        worst = torch.where(old, grown, math.inf).topk(count, largest=False).indices
        before, after = self.layers[place], self.layers[place + 1]
        # As torch draws the first weights of a linear layer.
        bound = before.in_features**-0.5
        fresh = torch.rand(
            count, before.in_features + 1, generator=self.random, device=before.weight.device
        )
        fresh = (2.0 * fresh - 1.0) * bound
        before.weight[worst], before.bias[worst] = fresh[:, :-1], fresh[:, -1]
        after.weight[:, worst] = 0.0
        self.useful[place][worst], self.age[place][worst] = 0.0, 0.0
        self.forget(before.weight, (worst,))
        self.forget(before.bias, (worst,))
        self.forget(after.weight, (slice(None), worst))

    def forget(self, weight: torch.Tensor, index: tuple[Any, ...]) -> None:
        """Let the optimizer's moments of renewed weights begin anew."""
        for kept in self.optimizer.state.get(weight, {}).values():
            if getattr(kept, "shape", None) == weight.shape:
                kept[index] = 0.0


class _AnchoredAdam(Anchored):
    maker = "torch.optim:Adam"
    fused = True


class _RenewedAdam(Renewed):
    maker = "torch.optim:Adam"
    fused = True


class _RenewedSGD(Renewed):
    maker = "torch.optim:SGD"

    def __init__(self, setup: Setup, lr: float = 0.01, **options: Any) -> None:
        super().__init__(setup, lr=lr, **options)


def _remedy(name: str, build: Any, settings: Any) -> Contestant:
    return Contestant(name, "plasticity", build, settings, packages=(TORCH,), models=NETWORKS)


CONTESTANTS = (
    _remedy("upgd", UPGD, grid("lr", [0.003, 0.03, 0.1, 0.3])),
    _remedy("adam l2 start", _AnchoredAdam, grid("strength", [1e-5, 1e-4, 1e-2])),
    _remedy("adam continual backprop", _RenewedAdam, grid("replacement", [1e-5, 1e-3])),
    _remedy("sgd continual backprop", _RenewedSGD, grid("lr", [0.003, 0.03, 0.1, 0.3])),
)
