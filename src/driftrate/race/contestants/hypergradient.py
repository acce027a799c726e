"""Hypergradient descent: the rate of an optimizer moves along its own gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import TORCH, Contestant, Setup

if TYPE_CHECKING:
    import torch


class Hypergradient(OptimizerPlayer):
    r"""An optimizer θ ← θ - α u whose rate learns, written from the paper.

    The loss of a batch at θ depends on the rate of the step before it by
    dℓ(θ_{t-1} - α u_{t-1})/dα = -∇ℓ(θ) · u_{t-1}, hence before each step

        α ← α + β ∇ℓ(θ) · u_{t-1}.

    Args:
        setup: The model.
        lr: α at the start. This and β are those of the paper's logistic regression.
        beta: β.
        options: Those of the optimizer.

    Reference:
        Baydin, Cornish, Martínez Rubio, Schmidt and Wood (2018), "Online learning rate adaptation
        with hypergradient descent", ICLR, Algorithms 4 to 6.
    """

    def __init__(self, setup: Setup, lr: float, beta: float, **options: Any) -> None:
        super().__init__(setup, lr=lr, **options)
        self.beta = beta
        self.weights = list(self.net.parameters())
        self.before: list[torch.Tensor] = []

    def backward(
        self, features: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Move the rate by the new gradient, before the step that it is for."""
        scores, value = super().backward(features, target)
        group = self.optimizer.param_groups[0]
        for w, u in zip(self.weights, self.before, strict=False):
            assert w.grad is not None
            group["lr"] += self.beta * float((w.grad * u).sum())
        return scores, value

    def trained(self, loss: torch.Tensor) -> None:
        """Keep the direction of the step."""
        self.before = [self.direction(w) for w in self.weights]

    @abstractmethod
    def direction(self, weight: torch.Tensor) -> torch.Tensor:
        """Return u of the last step, for one of the weights."""


class HypergradientSGD(Hypergradient):
    """SGD-HD: u is the gradient."""

    maker = "torch.optim:SGD"

    def __init__(self, setup: Setup, lr: float = 1e-3, beta: float = 1e-3) -> None:
        super().__init__(setup, lr, beta)

    def direction(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the gradient."""
        assert weight.grad is not None
        return weight.grad.clone()


class HypergradientAdam(Hypergradient):
    """Adam-HD: u is the mean gradient over the root of the mean square, free of their bias."""

    maker = "torch.optim:Adam"

    def __init__(self, setup: Setup, lr: float = 1e-3, beta: float = 1e-7) -> None:
        super().__init__(setup, lr, beta)

    def direction(self, weight: torch.Tensor) -> torch.Tensor:
        """Return Adam's direction, from the moments that it keeps."""
        group, kept = self.optimizer.param_groups[0], self.optimizer.state[weight]
        first, second = (1.0 - b ** float(kept["step"]) for b in group["betas"])
        root = (kept["exp_avg_sq"] / second).sqrt() + group["eps"]
        direction: torch.Tensor = kept["exp_avg"] / first / root
        return direction


_SGD = tuple(
    {"beta": beta, "lr": lr}
    for lr in (1e-3, 1e-2, 1e-1)
    for beta in (1e-4, 1e-3, 1e-2)
    if (lr, beta) != (1e-3, 1e-3)
)
_ADAM = tuple(
    {"beta": beta, "lr": lr}
    for lr in (1e-3, 1e-2)
    for beta in (1e-7, 1e-5, 1e-4)
    if (lr, beta) != (1e-3, 1e-7)
)
CONTESTANTS = (
    Contestant("sgd hypergradient", "tuner", HypergradientSGD, _SGD, packages=(TORCH,)),
    Contestant("adam hypergradient", "tuner", HypergradientAdam, _ADAM, packages=(TORCH,)),
)
