"""Hedged: copies of a small network with different rates and memories, mixed online."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from driftrate.adapters._observe import Policy, check_version, policies
from driftrate.adapters.torch.hedged_copies import Copies
from driftrate.adapters.torch.hedged_losses import Loss, kind
from driftrate.adapters.torch.hedged_refuse import first_pass, refuse
from driftrate.errors import SignalError, StateError
from driftrate.learners import Mixer

# Found on development streams, the same for every stream: docs/hedged_networks.md.
MEMBERS = ((1.6, 0.99), (0.8, 0.99), (0.4, 0.98), (0.2, 0.98), (0.2, 0.997), (0.1, 0.997))
MIXER = Mixer(share=0.05)
SLOW = 0.01  # weight of the newest loss in the usual one, once older than 1/that
APART = 10.0  # times the middle copy's squared distance from the median
ABSURD = 50.0  # nats a label, or times twice the usual loss, above the mixture's
VERSION = 1


class Hedged:
    r"""A pool of copies of a network whose predictions are mixed; nothing to tune.

    Six copies with different first weights learn from the same batches, at rates r_k from 0.1 to
    1.6 and with memories of 50 to 333 steps (`Copies` has their step). One batched pass serves all.
    Their predictions are mixed by shares p_k, which follow the losses of the copies:

        prediction = Σ p_k f_k(x),     f_k probabilities (classes) or values (regressions)

    *Shares* are those of `Mixer`, at first in proportion to 1/r_k, and with a twentieth dealt out
    equally a step, so that no copy is ever far away. The noise of a mean loss over n labels is 1/n
    in nats, and in any other unit 2ℓ̄/n with the usual loss ℓ̄ of the mixture: twice the variance
    over n for squared losses.

    *Copies apart.* Values without bounds (squared, callable) could be ruined by one copy: those
    whose squared distance from the copies' median is ten times the middle copy's are left out
    of the prediction. So is, row by row, what is not finite.

    *Restarts.* A copy whose loss or gradient is not finite, or whose loss is 50 nats a label above
    the mixture's (100 times the usual loss in another unit), keeps a thousandth of its share and
    goes on from the weights and the memory of the copy with the largest. If no copy has a finite
    loss the batch is left out; on a second such batch in a row, if its numbers are finite, all
    copies start again from the weights of the given model.

    On an accelerator a step reads nothing back. The loss is one before the step: it is honest for
    prequential (test, then train) evaluation.

    Args:
        model: A network, small enough to be there six times; it is copied and stays as it is.
            It maps a batch x (rows, ...) to scores (rows, ...), and each row must be independent
            of the others. Device and dtype are the model's (copies of one in half precision keep
            their weights in float32). What cannot be stacked is refused by the name of the
            module: running statistics in training, dropout in training, updates in place.
            Parameters that do not require a gradient, and buffers, are shared.
        loss: "cross_entropy" (scores (rows, classes, ...), y whole numbers; predictions are
            softmax probabilities), "binary" (scores of any shape, y in [0, 1] of the same;
            predictions are probabilities), "squared" (the mean of (scores - y)²; predictions
            are means), or a callable on (scores, y) that returns a scalar mean: then scores are
            mixed as they are, and the mixture's loss is that of the mixed scores, which for a
            convex loss is at most the mean of the copies'.
        fresh: Whether all copies but the first draw their own first weights, with the
            `reset_parameters` of their modules, from torch's global generator. False for
            weights that are worth keeping: all copies start from the model's.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator ...>
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> pool = Hedged(net, loss="cross_entropy")
        >>> for step in range(100):
        ...     x = torch.randn(16, 4)
        ...     y = x[:, :3].argmax(dim=1)
        ...     loss = pool.learn(x, y)
        >>> bool(loss < 0.4), tuple(pool(x).shape)
        (True, (16, 3))
        >>> sorted(pool.record)
        ['loss', 'losses', 'memory', 'rate', 'restarts', 'shares', 'skipped', 'steps']

    Reference:
        Herbster and Warmuth (1998), "Tracking the best expert"; Duchi, Hazan and Singer (2011),
        "Adaptive subgradient methods", for the step without a memory.
    """

    def __init__(self, model: nn.Module, loss: str | Loss, *, fresh: bool = True) -> None:
        self.kind = kind(loss)
        refuse(model)
        rates, keeps = zip(*MEMBERS, strict=True)
        self.copies = Copies(model, [*rates], [*keeps], fresh)
        like = self.copies.usual
        self._equal = torch.full_like(like, 1.0 / len(like))
        # The first step of a fast copy may overshoot by far, and no loss has told yet.
        self._first = (1.0 / self.copies.rates) / (1.0 / self.copies.rates).sum()
        self._still = zero = like.new_zeros(())
        whole = torch.zeros((), dtype=torch.int64, device=like.device)
        self._state = {
            "shares": self._first.clone(),
            "losses": torch.full_like(like, torch.nan),
            "loss": zero + torch.nan,
            "level": zero.clone(),
            "steps": whole.clone(),
            "skipped": whole.clone(),
            "silent": whole.clone(),
            "restarts": whole.clone(),
        }
        self._checked = False

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the prediction of the mixture, (rows, ...): probabilities, or means."""
        with self._watched(lambda: self.copies.call(self.copies.start(), x)):
            scores = self.copies.scores(x)
        return self._mixture(scores)

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Take one step with every copy, and return the mixture's loss before it.

        Args:
            x: The batch, (rows, ...).
            y: Its labels.

        Returns:
            The mean loss, a scalar on the model's device.
        """
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or y.numel() == 0:
            got = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (x, y)]
            raise SignalError(f"Hedged.learn needs tensors x and y with rows, got {got}")
        copies, now = self.copies, self._state
        with self._watched(lambda: self.kind.loss(copies.call(copies.start(), x), y)):
            gradients, losses, scores = copies.pull(self.kind, x, y)
        self._checked = True
        loss = self.kind.mixed(self._mixture(scores), y).to(now["loss"])
        losses = losses.to(now["losses"])
        norms = torch.linalg.vector_norm(gradients, dim=1)
        fine = torch.isfinite(losses) & torch.isfinite(norms)
        heard = fine.any()
        level = self._level(loss)
        reference = torch.where(torch.isfinite(loss), loss, level)
        unit, usual = torch.ones_like(level), torch.ones_like(level)
        if not self.kind.nats:
            # A loss that rose for the mixture too is a shift, not a copy that explodes.
            unit, usual = 2.0 * level, 2.0 * torch.maximum(level, reference.abs())
        broken = heard & (~fine | (losses - reference > ABSURD * usual))
        shares = self._shares(losses, reference, unit / y.numel(), broken)

        source = torch.where(broken, -1.0, shares).argmax()
        silent = (now["silent"] + 1) * (torch.isfinite(x).all() & torch.isfinite(y).all() & ~heard)
        anew = silent > 1
        copies.step(gradients, norms, fine)
        copies.restart(broken, source, anew)
        now["shares"].copy_(
            torch.where(anew, self._first, torch.where(heard, shares, now["shares"]))
        )
        now["losses"].copy_(losses)
        now["loss"].copy_(loss)
        now["level"].copy_(torch.where(heard, level, now["level"]))
        now["steps"] += heard
        now["skipped"] += ~heard
        now["silent"].copy_(silent * ~anew)
        now["restarts"] += broken.sum() + anew * len(losses)
        return loss

    @property
    def record(self) -> dict[str, Any]:
        """What a logger sees of the last step, as Python numbers; reading it waits for the device.

        `loss`: of the mixture. `losses`: of the copies. `shares`: of the copies, from now on.
        `memory`: Σ p_k/(1 - κ_k), the steps that the pool believes to be worth remembering.
        `rate`: Σ p_k r_k. `steps`: batches learnt. `skipped`: batches left out. `restarts`: of
        copies.
        """
        shares = self._state["shares"]
        found = {
            **{name: self._state[name] for name in ("loss", "losses", "shares")},
            "memory": (shares / (1.0 - self.copies.keeps)).sum(),
            "rate": (shares * self.copies.rates).sum(),
            **{name: self._state[name] for name in ("steps", "skipped", "restarts")},
        }
        return {name: value.tolist() for name, value in found.items()}

    @torch.no_grad()
    def notify_shift(
        self, policy: Policy = "reset", *, moments: Policy | None = None, decay: float = 0.5
    ) -> None:
        """Say that the data have just shifted.

        Args:
            policy: What happens to the shares: "reset" makes them equal, "decay" moves them there
                by 1 - `decay`, "keep" does nothing.
            moments: The same for the sums of squared gradients, of which a part is kept: smaller
                sums make longer steps. None: "keep", because copies that rest well have short
                steps, and others have long ones: shares decide.
            decay: What "decay" keeps, in [0, 1].
        """
        kept, held = policies(policy, "keep" if moments is None else moments, decay)
        shares = self._state["shares"]
        shares.copy_(kept * shares + (1.0 - kept) * self._equal)
        self.copies.second.mul_(held)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: tensors and numbers, for `torch.save`."""
        tensors = {"weights": self.copies.weights, "second": self.copies.second}
        tensors |= {"usual": self.copies.usual, **self._state}
        return {
            "version": VERSION,
            "loss": self.kind.name,
            "tensors": {name: value.clone() for name, value in tensors.items()},
            "model": {n: v.clone() for n, v in self.copies.model.state_dict().items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, bit by bit; the pool must be of a model of the same shape.

        Args:
            state_dict: What `state_dict` returned, before or after a journey through `torch.save`.
        """
        mine = self.state_dict()
        if not isinstance(state_dict, dict) or state_dict.keys() != mine.keys():
            raise StateError("Hedged.load_state_dict needs what state_dict() returned")
        check_version(state_dict["version"], "pool", VERSION)
        if state_dict["loss"] != self.kind.name:
            saved = state_dict["loss"]
            raise StateError(f"the saved pool has the loss {saved!r}, this one {self.kind.name!r}")
        for part in ("tensors", "model"):
            saved, own = (_layout(each[part]) for each in (state_dict, mine))
            other = next((n for n in {**own, **saved} if saved.get(n) != own.get(n)), None)
            if other is not None:
                raise StateError(
                    f"the saved pool is of another model: {other!r} is {saved.get(other)}, here"
                    f" {own.get(other)}"
                )
        tensors = state_dict["tensors"]
        for name in ("weights", "second", "usual"):
            getattr(self.copies, name).copy_(tensors[name])
        for name, value in self._state.items():
            value.copy_(tensors[name])
        self.copies.model.load_state_dict(state_dict["model"])

    def _watched(self, alone: Any) -> Any:
        """Return what watches the first passes, and nothing after the first learnt batch."""
        return nullcontext() if self._checked else first_pass(self.copies.model, alone)

    def _mixture(self, scores: Tensor) -> Tensor:
        """Return the mixed values, (rows, ...), of the scores of the copies, (K, rows, ...)."""
        values = self.kind.values(scores.flatten(0, 1))
        values = values.reshape(*scores.shape[:2], *values.shape[1:]).movedim(0, 1)
        flat = values.flatten(2) if values.ndim > 2 else values[..., None]
        gone = ~torch.isfinite(flat).all(dim=-1)
        if not self.kind.nats:
            known = torch.where(torch.isfinite(flat), flat, torch.nan)
            middle = known.nanmedian(dim=1, keepdim=True).values
            apart = (known - middle).square().nanmean(dim=(0, 2)).nan_to_num(nan=torch.inf)
            gone = gone | (apart > APART * apart.sort().values[len(apart) // 2])
        shares = self._state["shares"].to(flat).expand(gone.shape)
        nothing = torch.full_like(flat[:, 0], torch.nan)
        mixed: Tensor = MIXER.mix(shares, flat, gone, nothing)[0]
        return mixed.reshape(values[:, 0].shape)

    def _level(self, loss: Tensor) -> Tensor:
        """Return the usual size of the mixture's loss, with this batch; outliers are clipped."""
        before = self._state["level"]
        weight = (1.0 / (self._state["steps"] + 1).to(before)).clamp_min(SLOW)
        size = torch.where(before > 0.0, torch.minimum(loss.abs(), 10.0 * before), loss.abs())
        after = before + weight * (size - before)
        return torch.where(torch.isfinite(after), after, before)

    def _shares(self, losses: Tensor, reference: Tensor, noise: Tensor, broken: Tensor) -> Tensor:
        """Return the shares after a batch; broken copies keep a thousandth of theirs."""
        shares = MIXER.update(
            self._state["shares"],
            losses,
            reference,
            trust=MIXER.trust(noise),
            speed=torch.ones_like(losses),
            prior=self._equal,
            jump=self._still,
            broken=broken,
        )
        kept: Tensor = MIXER.mix(shares, losses[:, None], broken, losses[:1])[1]
        return kept


def _layout(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: f"{tuple(value.shape)} of {value.dtype}" for name, value in tensors.items()}
