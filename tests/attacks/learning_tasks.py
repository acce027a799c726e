"""Small learning tasks on which an optimizer may fail, one row of `TASKS` each.

A task is a model and a loss at each step, drawn from a seed. Names say what is unusual: the scale
of the loss, of the inputs, of the targets or of the first weights; the model; how the target moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from learning_models import (
    Residual,
    Transformer,
    biases_alone,
    drawn_with,
    identity_rnn,
    lora,
    mlp,
    norms_alone,
    scalar,
    small_table,
    sparsely,
    thirtyfold,
    tied_tables,
    with_small_head,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

Build = Callable[[], nn.Module]


class Task:
    """A model and the loss of each step.

    Args:
        seed: Of the weights, of the target and of the batches.
        build: Makes the model.
        steps: How many there are.
        weight: What the loss is multiplied by before the gradient is taken, by step. The score is
            the loss without it.
    """

    shift_of_seed = 0  # what tells the generator's seed from that of the weights

    def __init__(
        self,
        seed: int,
        build: Build,
        steps: int,
        weight: Callable[[int], float] = lambda _: 1.0,
    ) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed + self.shift_of_seed)
        self.model: Any = build()
        self.steps = steps
        self.weight = weight

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what the optimizer is made with."""
        return (p for p in self.model.parameters() if p.requires_grad)

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Do what a loop would do before a step."""

    def loss(self, step: int) -> Tensor:
        """Draw a batch and return its loss."""
        raise NotImplementedError

    def clip(self) -> None:
        """Shorten the gradients."""

    def score(self, step: int, loss: Tensor) -> float:
        """Return how well the model does before the step."""
        return float(loss.detach())

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def integers(self, end: int, *shape: int) -> Tensor:
        return torch.randint(0, end, shape, generator=self.generator)


# Regression by a network.


def teacher(seed: int, inputs: int = 10, width: int = 32) -> Callable[[Tensor], Tensor]:
    """Return a random function to be learned."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(inputs, width, generator=generator) / inputs**0.5
    second = torch.randn(width, 1, generator=generator) / width**0.5
    return lambda x: torch.relu(x @ first * 2) @ second


class Regression(Task):
    """A random function of ten inputs, with noise of 0.1.

    Args:
        seed: Of everything.
        build: Makes the model.
        steps: How many there are.
        rows: Of a batch.
        inputs: What the model sees of the inputs.
        targets: What it sees of the targets.
        redrawn: Seeds of other functions, by the step at which they begin.
        clip: The largest norm of a gradient.
        options: As of `Task`.
    """

    shift_of_seed = 100

    def __init__(
        self,
        seed: int,
        build: Build = mlp,
        steps: int = 1500,
        *,
        rows: int = 32,
        inputs: Callable[[Tensor], Tensor] = lambda x: x,
        targets: Callable[[Tensor], Tensor] = lambda y: y,
        redrawn: Mapping[int, int] | None = None,
        clip: float = math.inf,
        **options: Any,
    ) -> None:
        super().__init__(seed, build, steps, **options)
        self.function = teacher(seed + 7)
        self.rows = rows
        self.inputs = inputs
        self.targets = targets
        self.redrawn = redrawn or {}
        self.longest = clip

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.normal(self.rows, 10)
        return x, self.function(x) + 0.1 * self.normal(self.rows, 1)

    def loss(self, step: int) -> Tensor:
        if step in self.redrawn:
            self.function = teacher(self.redrawn[step])
        x, y = self.draw(step)
        return functional.mse_loss(self.model(self.inputs(x)), self.targets(y))

    def clip(self) -> None:
        if self.longest < math.inf:
            nn.utils.clip_grad_norm_(self.parameters(), self.longest)


class Checked(Regression):
    """The score is the error on other rows, without noise."""

    def score(self, step: int, loss: Tensor) -> float:
        if step % 20 == 0:
            x = torch.randn(500, 10, generator=torch.Generator().manual_seed(5))
            with torch.no_grad():
                self.checked = float(functional.mse_loss(self.model(x), self.function(x)))
        return self.checked


class VariedBatches(Checked):
    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        self.rows = (1, 2, 3, 64, 7, 256, 1, 1)[step % 8]
        return super().draw(step)


class HeavyTails(Checked):
    """Noise of Cauchy."""

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.normal(self.rows, 10)
        noise = torch.tan(math.pi * (self.uniform(self.rows, 1) - 0.5))
        return x, self.function(x) + 0.1 * noise.clamp(-1e3, 1e3)


class Rotating(Regression):
    """The target turns at every step."""

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.normal(self.rows, 10)
        along = math.cos(step / 30) * x[:, :1] + math.sin(step / 30) * x[:, 1:2]
        return x, torch.tanh(2 * along)


class Flipping(Regression):
    """The target changes its sign every hundred steps."""

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        x = self.normal(self.rows, 10)
        return x, self.function(x) * (1 if (step // 100) % 2 else -1)


class Frozen(Regression):
    """The first layer rests for a third of the time."""

    def before(self, step: int, optimizer: Optimizer) -> None:
        if step in (0, 1000, 2000):
            first = self.model[0].requires_grad_(step != 1000)
            first.zero_grad()


class AddedGroup(Regression):
    """The last layer is trained from step 100 on."""

    def parameters(self) -> Iterator[nn.Parameter]:
        layers: nn.Sequential = self.model[:-1]
        return layers.parameters()

    def before(self, step: int, optimizer: Optimizer) -> None:
        if step == 100:
            optimizer.add_param_group({"params": list(self.model[-1].parameters())})


# Linear models.


class OneWeight(Task):
    """A product of one input and one weight."""

    def __init__(
        self, seed: int, build: Build, steps: int = 2000, *, target: float = 5.0, noise: float = 0.1
    ) -> None:
        super().__init__(seed, build, steps)
        self.target = target
        self.noise = noise

    def loss(self, step: int) -> Tensor:
        x, noise = self.normal(16), self.noise * self.normal(16)
        weight: Tensor = self.model.weight.reshape(())
        return (weight * x - self.target * x + noise).square().mean()


class Linear(Task):
    """A linear function of some inputs.

    Args:
        seed: Of everything.
        steps: How many there are.
        inputs: How many.
        rows: Of a batch.
        start: Draws the first weights and biases, each tensor; torch's own if None.
        spread: Deviations of the inputs, in a rotated basis.
        classes: Whether the target is the sign.
    """

    shift_of_seed = 100

    def __init__(
        self,
        seed: int,
        steps: int = 2000,
        *,
        inputs: int = 20,
        rows: int = 16,
        start: Callable[[Tensor], Any] | None = None,
        spread: Tensor | None = None,
        classes: bool = False,
    ) -> None:
        super().__init__(seed, lambda: nn.Linear(inputs, 1), steps)
        self.target = self.normal(inputs)
        self.rows = rows
        self.mixing = torch.eye(inputs)
        self.classes = classes
        if spread is not None:
            self.mixing = torch.linalg.qr(self.normal(inputs, inputs))[0] * spread
        if start is not None:
            with torch.no_grad():
                for p in self.model.parameters():
                    start(p)

    def loss(self, step: int) -> Tensor:
        x = self.normal(self.rows, len(self.target)) @ self.mixing.t()
        y, guess = x @ self.target, self.model(x)[:, 0]
        if self.classes:
            return functional.binary_cross_entropy_with_logits(guess, (y > 0).float())
        return functional.mse_loss(guess, y + 0.1 * self.normal(self.rows))


class SparseInputs(Task):
    """One input in fifty is there."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, partial(mlp, 200, 32), steps)
        self.target = self.normal(200)

    def loss(self, step: int) -> Tensor:
        x = (self.uniform(32, 200) < 0.02).float()
        return functional.mse_loss(self.model(x)[:, 0], x @ self.target)


# Tables of rows.


class Table(Task):
    """Rows of a table, each with a target of its own, visited as often as `shares` say."""

    shift_of_seed = 500

    def __init__(self, seed: int, steps: int, shares: Tensor) -> None:
        super().__init__(seed, lambda: nn.Embedding(len(shares), 8), steps)
        self.target = self.normal(len(shares), 8)
        self.shares = shares

    def loss(self, step: int) -> Tensor:
        rows = torch.multinomial(self.shares, 16, True, generator=self.generator)
        return functional.mse_loss(self.model(rows), self.target[rows])


class TableAndNetwork(Task):
    """A network on rows of a table that start within 10⁻⁴ of 0, as Instant-NGP's do."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, lambda: nn.Sequential(nn.Embedding(200, 8), mlp(8, 32)), steps)
        nn.init.uniform_(self.model[0].weight, -1e-4, 1e-4)
        self.target = self.normal(200)

    def loss(self, step: int) -> Tensor:
        rows = self.integers(200, 64)
        return functional.mse_loss(self.model(rows)[:, 0], self.target[rows])


class Factorisation(Task):
    """A matrix of rank 3 as a product of two tables."""

    def __init__(self, seed: int, steps: int, std: float) -> None:
        def build() -> nn.ModuleList:
            return nn.ModuleList([small_table(100, std), small_table(80, std)])

        super().__init__(seed, build, steps)
        self.target = self.normal(100, 3) @ self.normal(3, 80)

    def loss(self, step: int) -> Tensor:
        i, j = self.integers(100, 64), self.integers(80, 64)
        first, second = self.model
        return functional.mse_loss((first(i) * second(j)).sum(1), self.target[i, j])


class Tied(Task):
    """A chain of 30 symbols; one table serves as embedding and as head."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, tied_tables, steps)
        self.chances = torch.softmax(3 * self.normal(30, 30), 1)

    def loss(self, step: int) -> Tensor:
        table, head, inner = self.model
        x = self.integers(30, 32)
        y = torch.multinomial(self.chances[x], 1, generator=self.generator)[:, 0]
        return functional.cross_entropy(head(torch.tanh(inner(table(x)))), y)


# Pictures and sequences.


class Pictures(Task):
    """Ten noisy templates of 12 × 12."""

    def __init__(self, seed: int, steps: int, layers: Sequence[Build], inner: int = 256) -> None:
        def build() -> nn.Sequential:
            return nn.Sequential(*(one() for one in layers), nn.Flatten(), nn.Linear(inner, 10))

        super().__init__(seed, build, steps)
        self.templates = self.normal(10, 1, 12, 12)

    def loss(self, step: int) -> Tensor:
        y = self.integers(10, 32)
        x = self.templates[y] + 1.5 * self.normal(32, 1, 12, 12)
        return functional.cross_entropy(self.model(x), y)


class Adding(Task):
    """The sum of the marked numbers of a sequence."""

    def __init__(
        self, seed: int, cell: Callable[..., nn.Module], steps: int, length: int = 10
    ) -> None:
        def build() -> nn.ModuleList:
            return nn.ModuleList([cell(2, 32, batch_first=True), nn.Linear(32, 1)])

        super().__init__(seed, build, steps)
        self.length = length

    def loss(self, step: int) -> Tensor:
        x = self.uniform(32, self.length, 2)
        x[:, :, 1] = (self.uniform(32, self.length) < 0.2).float()
        cell, head = self.model
        states, _ = cell(x)
        return functional.mse_loss(
            head(states[:, -1]), (x[:, :, 0] * x[:, :, 1]).sum(1, keepdim=True)
        )


class Copying(Task):
    """Eight random symbols are to be said again."""

    def loss(self, step: int) -> Tensor:
        half = self.integers(20, 16, 8)
        x = torch.cat([half, half], 1)
        return functional.cross_entropy(self.model(x)[:, 7:-1].reshape(-1, 20), half.reshape(-1))


# Others.


class NewClasses(Task):
    """Two of ten classes at a time."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, partial(mlp, 20, 64, 10), steps)
        self.centres = 3 * self.normal(10, 20)

    def loss(self, step: int) -> Tensor:
        y = self.integers(2, 32) + 2 * (step // 300 % 5)
        return functional.cross_entropy(self.model(self.centres[y] + 2 * self.normal(32, 20)), y)


class LearnedDeviation(Task):
    """A Gaussian likelihood whose log deviation is a scalar; the noise grows a hundredfold."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, partial(mlp, 5, 32), steps)
        self.model.log_deviation = nn.Parameter(torch.tensor(0.0))
        self.target = self.normal(5)

    def loss(self, step: int) -> Tensor:
        x = self.normal(64, 5)
        y = x @ self.target + (0.01 if step < 1500 else 1.0) * self.normal(64)
        log_deviation: Tensor = self.model.log_deviation
        square: Tensor = (self.model(x)[:, 0] - y).square()
        return (square / (2 * torch.exp(2 * log_deviation)) + log_deviation).mean()


class Bandit(Task):
    """REINFORCE, whose gradients are nearly all noise; the score is the regret."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, partial(mlp, 4, 32, 5, act=nn.Tanh), steps)
        self.worth = self.normal(4, 5)

    def loss(self, step: int) -> Tensor:
        x = self.normal(16, 4)
        chances = functional.log_softmax(self.model(x), 1)
        taken = torch.multinomial(chances.exp().detach(), 1, generator=self.generator)
        worth = x @ self.worth
        mean = worth.gather(1, taken)
        self.regret = float((worth.max(1, keepdim=True)[0] - mean).mean())
        return -(chances.gather(1, taken) * (mean + self.normal(16, 1))).mean()

    def score(self, step: int, loss: Tensor) -> float:
        return self.regret


def times(weight: float, start: int = 0, end: int = 10_000) -> Callable[[int], float]:
    """Return a weight that holds from one step to another, and 1 elsewhere."""
    return lambda step: weight if start <= step < end else 1.0


def rescaled(weight: float) -> Callable[[int], Task]:
    """Return a task whose loss is multiplied, and its target replaced, at half time."""
    return partial(Regression, steps=3000, weight=times(weight, 1500), redrawn={1500: 999})


def of(build: Build, steps: int = 2000) -> Callable[[int], Task]:
    """Return the plain task for another model."""
    return partial(Regression, build=build, steps=steps)


_MIXED = torch.logspace(-3, 3, 10)
_CONV, _STRIDED = partial(nn.Conv2d, 1, 8, 3), partial(nn.Conv2d, 8, 16, 3, stride=2)
_DEPTHWISE, _POINTWISE = partial(nn.Conv2d, 8, 8, 3, groups=8), partial(nn.Conv2d, 8, 16, 1)

TASKS: dict[str, Callable[[int], Task]] = {
    "plain": Regression,
    "long": partial(Regression, steps=6000),
    # The loss and its gradient.
    "zero for 1000 steps": partial(Regression, steps=3000, weight=times(0.0, 0, 1000)),
    "zero from 500 to 1500": partial(Regression, steps=3500, weight=times(0.0, 500, 1500)),
    "zero from 500 to 2500": partial(Regression, steps=3000, weight=times(0.0, 500, 2500)),
    "times 1e6 at half time": rescaled(1e6),
    "times 1e3 at half time": rescaled(1e3),
    "times 1e-3 at half time": rescaled(1e-3),
    "times 1e-6 at half time": rescaled(1e-6),
    "times 1e6 for 20 steps": partial(
        Regression,
        steps=4000,
        weight=times(1e6, 500, 520),
        redrawn={1000: 1990, 2000: 2990, 3000: 3990},
    ),
    "times 1e10": partial(Regression, weight=times(1e10)),
    "times 1e-10": partial(Regression, weight=times(1e-10)),
    "clipped at 0.01": partial(Regression, steps=2000, clip=0.01),
    "clipped at 1": partial(Regression, steps=2000, clip=1.0),
    # Units.
    "targets of 1e4": partial(Regression, steps=3000, targets=lambda y: 1e4 * y),
    "targets of 1e2": partial(Regression, steps=3000, targets=lambda y: 1e2 * y),
    "targets of 1e-4": partial(Regression, steps=3000, targets=lambda y: 1e-4 * y),
    "targets about 1e3": partial(Regression, steps=3000, targets=lambda y: y + 1e3),
    "inputs of 1e3": partial(Regression, steps=2000, inputs=lambda x: 1e3 * x),
    "inputs of 1e-3": partial(Regression, steps=3000, inputs=lambda x: 1e-3 * x),
    "inputs about 100": partial(Regression, steps=2000, inputs=lambda x: x + 100),
    "inputs in mixed units": partial(Regression, steps=3000, inputs=lambda x: _MIXED * x),
    # Linear models.
    "one weight": partial(OneWeight, build=partial(nn.Linear, 1, 1, bias=False), noise=0.0),
    "a scalar": partial(OneWeight, build=scalar),
    "a scalar far away": partial(OneWeight, build=scalar, steps=3000, target=1000.0),
    "linear": Linear,
    "linear from 0": partial(Linear, start=nn.init.zeros_),
    "linear from 1e-6": partial(Linear, start=partial(nn.init.normal_, std=1e-6)),
    "linear from 100": partial(Linear, start=partial(nn.init.normal_, std=100.0)),
    "linear from sparse weights": partial(Linear, start=sparsely),
    "badly conditioned": partial(Linear, steps=3000, spread=torch.logspace(-2, 1, 20)),
    "separable classes": partial(Linear, steps=4000, inputs=5, rows=32, classes=True),
    "sparse inputs": partial(SparseInputs, steps=3000),
    # First weights.
    "head of 0.01": of(partial(with_small_head, partial(nn.init.orthogonal_, gain=0.01))),
    "head of 1e-4": of(partial(with_small_head, partial(nn.init.normal_, std=1e-4))),
    "LoRA from 0": of(partial(lora, 0.0)),
    "LoRA from 1e-6": of(partial(lora, 1e-6)),
    "thirty times the usual": of(thirtyfold),
    "table of 1e-4 and a network": partial(TableAndNetwork, steps=3000),
    "factorisation from 0.01": partial(Factorisation, steps=3000, std=0.01),
    # What learns.
    "batch norms alone": of(partial(norms_alone, nn.BatchNorm1d)),
    "layer norms alone": of(partial(norms_alone, nn.LayerNorm)),
    "group norms alone": of(partial(norms_alone, partial(nn.GroupNorm, 8))),
    "biases alone": of(biases_alone),
    "a table": partial(Table, steps=2000, shares=torch.ones(100)),
    "a table by Zipf's law": partial(Table, steps=4000, shares=1 / torch.arange(1.0, 501.0)),
    "tied tables": partial(Tied, steps=2000),
    "a frozen layer": partial(Frozen, build=partial(mlp, depth=2), steps=3000, redrawn={2000: 77}),
    "an added layer": partial(AddedGroup, build=partial(mlp, depth=2), steps=2500),
    # Depth and structure.
    "batch norm": of(partial(mlp, depth=3, norm=nn.BatchNorm1d)),
    "15 layers of ReLU": of(partial(mlp, width=32, depth=15), 1500),
    "30 layers of tanh": of(partial(mlp, width=32, depth=30, act=nn.Tanh), 1500),
    "30 layers of ReLU": of(partial(drawn_with, 1.0, 30), 1000),
    "50 layers that explode": of(partial(drawn_with, 1.5, 50), 400),
    "40 residual blocks": of(Residual, 400),
    "convolutions": partial(Pictures, steps=400, layers=(_CONV, nn.ReLU, _STRIDED, nn.ReLU)),
    "depthwise convolutions": partial(
        Pictures,
        steps=400,
        layers=(
            *(_CONV, partial(nn.BatchNorm2d, 8), nn.ReLU),
            *(_DEPTHWISE, partial(nn.BatchNorm2d, 8), nn.ReLU),
            *(_POINTWISE, partial(nn.BatchNorm2d, 16), nn.ReLU),
        ),
        inner=16 * 64,
    ),
    "convolutions and group norm": partial(
        Pictures,
        steps=400,
        layers=(
            *(_CONV, partial(nn.GroupNorm, 2, 8), nn.ReLU),
            *(_STRIDED, partial(nn.GroupNorm, 4, 16), nn.ReLU),
        ),
    ),
    "GRU": partial(Adding, steps=500, cell=nn.GRU),
    "LSTM": partial(Adding, steps=500, cell=nn.LSTM),
    "recurrent tanh": partial(Adding, steps=500, cell=nn.RNN),
    "recurrent ReLU from the identity": partial(Adding, steps=400, cell=identity_rnn, length=25),
    "transformer, norm first": partial(Copying, build=partial(Transformer, True), steps=400),
    "transformer, norm last": partial(Copying, build=partial(Transformer, False), steps=400),
    # Batches, noise and shift.
    "batches of all sizes": partial(VariedBatches, steps=3000),
    "batches of one": partial(Regression, steps=4000, rows=1),
    "heavy tails": partial(HeavyTails, steps=3000),
    "a target that turns": partial(Rotating, steps=3000),
    "a target that flips": partial(Flipping, steps=3000),
    "new classes": partial(NewClasses, steps=3000),
    "a learned deviation": partial(LearnedDeviation, steps=3000),
    "a bandit": partial(Bandit, steps=4000),
}
