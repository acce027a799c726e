"""FTRL-proximal and the online Newton step: River's optimizers in River's own linear models.

They step row by row. River is under the 3-clause BSD licence.
"""

from __future__ import annotations

from typing import Any

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, Setup, grid
from driftrate.race.contestants.online import Stream


class FTRLProximal(Stream):
    """`optim.FTRLProximal`, as it is: its weights lag a row behind its gradients' sums.

    Reference:
        McMahan et al. (2013), "Ad click prediction: a view from the trenches", KDD.
    """

    def optimizer(self, **options: Any) -> Any:
        """Return the optimizer."""
        from river import optim

        return optim.FTRLProximal(**options)


class OnlineNewton(Stream):
    r"""`optim.Newton`, at the constants of its paper.

    With g the gradient of a row,

        A ← A + g gᵀ,    θ ← θ - A⁻¹ g/γ,    A = ε I at first,

    over the weights of each score alone. By default γ = 1/(8 G D) and ε = 1/(γ D)², as the paper
    has them where the loss curves little, with G the length √d of a row of standardised features;
    River's own 1/γ = 0.1 and ε = 1e-5 are in the grid, and explode at the start of a stream. The
    paper's projection is not in River.

    Args:
        setup: The model.
        diameter: D; the default had the lowest mean log loss of a few on the streams that
            `descent` names.
        options: Those of River, in place of the paper's.

    Reference:
        Hazan, Agarwal and Kale (2007), "Logarithmic regret algorithms for online convex
        optimization", Machine Learning 69.
    """

    def __init__(self, setup: Setup, diameter: float = 1.0, **options: Any) -> None:
        bound = setup.linear.features**0.5
        told = {"lr": 8.0 * bound * diameter, "eps": 64.0 * bound**2}
        super().__init__(setup, **{**told, **options})

    def optimizer(self, **options: Any) -> Any:
        """Return the optimizer."""
        from river import optim

        return optim.Newton(**options)


def _river(
    name: str, family: str, build: Any, settings: Any, least: tuple[int, int] | None = None
) -> Contestant:
    return Contestant(
        name,
        family,
        build,
        settings,
        first_order=family != "second order",
        packages=(("river", "river"),),
        least=least,
        models=LINEAR_MODELS,
        by_row=True,
    )


_ALPHAS = (*grid("alpha", [0.005, 0.5]), *({"alpha": a, "l2": 0.0} for a in (0.005, 0.05, 0.5)))
_NEWTON = (*grid("diameter", [0.1, 0.3, 3.0, 10.0]), {"eps": 1e-5, "lr": 0.1})
CONTESTANTS = (
    _river("ftrl proximal", "adaptive", FTRLProximal, _ALPHAS),
    # Before 0.26 ε was the inverse at first, and the class was not exported.
    _river("online newton step", "second order", OnlineNewton, _NEWTON, least=(0, 26)),
)
