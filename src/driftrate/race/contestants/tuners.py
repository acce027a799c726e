"""Tuners of a base optimizer, each from its authors' package.

Mechanic (`mechanic-pytorch`) is under the Apache licence 2.0, MoMo (`momo-opt`) under the MIT
licence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from driftrate.race.contestants._optimizer import OptimizerPlayer
from driftrate.race.contestants.base import TORCH, Contestant, Setup, grid

if TYPE_CHECKING:
    import torch


class _Mechanic(OptimizerPlayer):
    """The base optimizer at rate 1, its steps scaled by what Mechanic has won with them so far.

    Reference:
        Cutkosky, Defazio and Mehta (2023), "Mechanic: a learning rate tuner", NeurIPS.
    """

    def __init__(self, setup: Setup, lr: float = 1.0, **options: Any) -> None:
        super().__init__(setup, lr=lr, **options)

    def make(self, parameters: Any, **options: Any) -> Any:
        """Return the optimizer."""
        from mechanic_pytorch import mechanize

        module, _, name = self.maker.partition(":")
        base = getattr(import_module(module), name)
        lr = options.pop("lr")
        return mechanize(base, **options)(parameters, lr=lr)

    def read_rate(self) -> float:
        """Return the scale times the base's rate; 0 before the first step."""
        scales = self.optimizer.state.get("_mechanic", {}).get("s")
        scale = 0.0 if scales is None else float(scales.sum())
        return scale * float(self.optimizer.param_groups[0]["lr"])


class _MechanicSGD(_Mechanic):
    maker = "torch.optim:SGD"


class _MechanicAdamW(_Mechanic):
    maker = "torch.optim:AdamW"


class _MoMo(OptimizerPlayer):
    """A step of SGD with momentum as long as a model of the loss says, `lr` at most.

    The model is bounded below by `lb`, 0 for all losses of the race.

    Reference:
        Schaipp et al. (2024), "MoMo: momentum models for adaptive learning rates", ICML.
    """

    maker = "momo:Momo"

    def move(self, loss: torch.Tensor) -> None:
        """Take the optimizer's step, which must know the loss."""
        self.optimizer.step(loss=loss)

    def read_rate(self) -> None:
        """Return None: what the package keeps is the cap, not the step."""
        return


class _MoMoAdam(_MoMo):
    maker = "momo:MomoAdam"


def _tuner(name: str, build: Any, settings: Any, package: str, module: str) -> Contestant:
    return Contestant(name, "tuner", build, settings, packages=(TORCH, (module, package)))


_DECAYS = ({"s_decay": 0.0}, {"s_decay": 0.1}, *grid("s_init", [1e-6, 1e-4, 1e-2]))
_MECHANIC = ("mechanic-pytorch", "mechanic_pytorch")
_MOMO = ("momo-opt", "momo")
CONTESTANTS = (
    _tuner("mechanic sgd", _MechanicSGD, _DECAYS, *_MECHANIC),
    _tuner("mechanic adamw", _MechanicAdamW, _DECAYS, *_MECHANIC),
    _tuner("momo", _MoMo, grid("lr", [0.03, 0.1, 0.3, 3.0]), *_MOMO),
    _tuner("momo adam", _MoMoAdam, grid("lr", [0.001, 0.003, 0.03, 0.1]), *_MOMO),
)
