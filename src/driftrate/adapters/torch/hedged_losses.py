"""What the copies are trained on, what of them is mixed, and what the mixture's loss is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from driftrate.errors import ConfigError, SignalError

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """A loss, and how predictions under it are mixed.

    Args:
        name: What a saved pool says of it.
        loss: The mean loss of scores (rows, ...) on labels, a scalar.
        values: What is mixed: a copy's scores (rows, ...) as probabilities, or as they are.
        mixed: The mean loss of mixed values on labels.
        nats: Whether exp(-loss) is a chance: the loss has a unit, and values are bounded.
    """

    name: str
    loss: Loss
    values: Callable[[Tensor], Tensor]
    mixed: Loss
    nats: bool


def kind(loss: str | Loss) -> Kind:
    """Return the kind of a loss: by name, or of a callable on (scores, labels).

    Example:
        >>> kind("squared").loss(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.0])).item()
        2.0
        >>> kind("huber")
        Traceback (most recent call last):
        driftrate.errors.ConfigError: Hedged: loss must be cross_entropy, binary, squared or ...
    """
    if isinstance(loss, str) and loss in _KINDS:
        return _KINDS[loss]
    if not callable(loss):
        known = f"{', '.join([*_KINDS][:-1])}, {[*_KINDS][-1]}".replace(", squared", ", squared or")
        raise ConfigError(f"Hedged: loss must be {known} a callable, got {loss!r}")

    def scalar(scores: Tensor, labels: Tensor) -> Tensor:
        value = loss(scores, labels)
        if not isinstance(value, Tensor) or value.ndim != 0:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SignalError(f"Hedged: loss(scores, y) must return a scalar tensor, got {got}")
        return value

    return Kind("callable", scalar, _wide, scalar, nats=False)


def _wide(scores: Tensor) -> Tensor:
    """Return scores in float32 at least: a loss in half precision is hardly one."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _log(chances: Tensor) -> Tensor:
    return chances.clamp_min(torch.finfo(chances.dtype).tiny).log()


def _like(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the labels in shape and dtype of the scores: (rows,) and (rows, 1) are the same."""
    if labels.numel() != scores.numel() or labels.shape[:1] != scores.shape[:1]:
        raise SignalError(
            f"Hedged: scores are {tuple(scores.shape)} and y is {tuple(labels.shape)}: they must"
            " be of one shape"
        )
    return labels.reshape(scores.shape).to(scores.dtype)


def _classes(log_chances: Tensor, labels: Tensor) -> Tensor:
    want = (*log_chances.shape[:1], *log_chances.shape[2:])
    if log_chances.ndim < 2 or tuple(labels.shape) != want or labels.is_floating_point():
        raise SignalError(
            "Hedged: cross_entropy needs scores (rows, classes, ...) and whole numbers y"
            f" (rows, ...), got {tuple(log_chances.shape)} and {tuple(labels.shape)} of"
            f" {labels.dtype}"
        )
    labels = labels.long()
    total = functional.nll_loss(log_chances, labels, reduction="sum")
    # A batch of which every label is ignored (-100, torch's mark) has a loss of 0.
    return total / (labels != -100).sum().clamp_min(1)


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    if scores.ndim < 2:
        return _classes(scores, labels)
    return _classes(functional.log_softmax(_wide(scores), dim=1), labels)


def _binary(scores: Tensor, labels: Tensor) -> Tensor:
    scores = _wide(scores)
    return functional.binary_cross_entropy_with_logits(scores, _like(scores, labels))


def _chance(chances: Tensor, labels: Tensor) -> Tensor:
    labels = _like(chances, labels)
    # Beside 1 chances are eps apart, and 1 - chance is 0 where it only is too small to tell.
    other = (1.0 - chances).clamp_min(torch.finfo(chances.dtype).eps)
    return -(labels * _log(chances) + (1.0 - labels) * other.log()).mean()


def _squared(scores: Tensor, labels: Tensor) -> Tensor:
    scores = _wide(scores)
    return (scores - _like(scores, labels)).square().mean()


_KINDS = {
    "cross_entropy": Kind(
        "cross_entropy",
        _cross_entropy,
        lambda scores: functional.softmax(_wide(scores), dim=1),
        lambda chances, labels: _classes(_log(chances), labels),
        nats=True,
    ),
    "binary": Kind("binary", _binary, lambda s: torch.sigmoid(_wide(s)), _chance, nats=True),
    "squared": Kind("squared", _squared, _wide, _squared, nats=False),
}
