"""One line in a PyTorch loop: a rate that follows the shift in the data.

    import driftrate.torch

    rate = driftrate.torch.attach(optimizer, schedule)
    optimizer = driftrate.torch.Pursuit(model.parameters())  # for networks, nothing to tune
    pool = driftrate.torch.Hedged(model, loss="cross_entropy")  # copies of a small one

With `attach` the loop stays as it is. `rate.state_dict()` goes into the checkpoint beside the
optimizer's, `rate.record` to the logger, and `rate` itself to frameworks that ask for an
`LRScheduler`.
"""

from driftrate.errors import needs

with needs("driftrate.torch", "torch"):
    from driftrate.adapters.torch.attach import attach
    from driftrate.adapters.torch.hedged import Hedged
    from driftrate.adapters.torch.pursuit import Pursuit
    from driftrate.adapters.torch.rate import Rate

__all__ = ["Hedged", "Pursuit", "Rate", "attach"]
