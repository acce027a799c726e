"""FTRL-proximal and the online Newton step: River's optimizers in River's own linear models.

They step row by row. River is under the 3-clause BSD licence.
"""

from __future__ import annotations

from typing import Any

from driftrate.race.contestants.base import LINEAR_MODELS, Contestant, grid
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
    r"""`optim.Newton`: with g the gradient of a row,

        A ← A + g gᵀ,    θ ← θ - η A⁻¹ g,    A = ε I at first,

    over the weights of each score alone.

    Reference:
        Hazan, Agarwal and Kale (2007), "Logarithmic regret algorithms for online convex
        optimization", Machine Learning 69.
    """

    def optimizer(self, **options: Any) -> Any:
        """Return the optimizer."""
        from river import optim

        return optim.Newton(**options)


def _river(name: str, family: str, build: Any, settings: Any) -> Contestant:
    return Contestant(
        name,
        family,
        build,
        settings,
        first_order=family != "second order",
        packages=(("river", "river"),),
        models=LINEAR_MODELS,
        by_row=True,
    )


_ALPHAS = (*grid("alpha", [0.005, 0.5]), *({"alpha": a, "l2": 0.0} for a in (0.005, 0.05, 0.5)))
_NEWTON = tuple(
    {"eps": eps, "lr": lr}
    for lr in (0.1, 0.5, 1.0)
    for eps in (1e-5, 1e-1, 1e1)
    if (lr, eps) != (0.1, 1e-5)
)
CONTESTANTS = (
    _river("ftrl proximal", "adaptive", FTRLProximal, _ALPHAS),
    _river("online newton step", "second order", OnlineNewton, _NEWTON),
)
