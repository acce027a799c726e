"""The models of the learning tasks: usual ones, and ones with an unusual start or part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def mlp(
    inputs: int = 10,
    width: int = 64,
    outputs: int = 1,
    depth: int = 1,
    act: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(depth):
        layers.append(nn.Linear(width if index else inputs, width))
        layers += [norm(width)] if norm is not None else []
        layers.append(act())
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def linears(model: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in model if isinstance(layer, nn.Linear)]


def with_small_head(start: Callable[[Tensor], Any]) -> nn.Sequential:
    """Return a network as of reinforcement learning, whose last layer starts near 0."""
    model = mlp(depth=2, act=nn.Tanh)
    head = linears(model)[-1]
    start(head.weight)
    nn.init.zeros_(head.bias)
    return model


def drawn_with(gain: float, depth: int) -> nn.Sequential:
    """Return a deep network whose weights have `gain` times the deviation of He et al. (2015)."""
    model = mlp(width=32, depth=depth)
    for layer in linears(model):
        nn.init.normal_(layer.weight, std=gain * math.sqrt(2 / layer.in_features))
    return model


def norms_alone(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Return a network of which only the normalisation learns."""
    model = mlp(width=128, depth=2, norm=norm)
    for layer in linears(model):
        layer.requires_grad_(False)
    return model


def biases_alone() -> nn.Sequential:
    model = mlp(width=128, depth=2)
    for layer in linears(model):
        layer.weight.requires_grad_(False)
    return model


def thirtyfold() -> nn.Sequential:
    """Return a network with thirty times the usual weights, as of a badly scaled pretraining."""
    model = mlp(depth=2, norm=nn.LayerNorm)
    with torch.no_grad():
        for layer in linears(model):
            layer.weight.mul_(30)
    return model


class LowRank(nn.Module):
    """A frozen layer with LoRA's A and B."""

    def __init__(self, layer: nn.Linear, std: float, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.randn(layer.out_features, rank) * std)

    def forward(self, x: Tensor) -> Tensor:
        frozen: Tensor = self.layer(x)
        return frozen + 2 * x @ self.down.t() @ self.up.t()


def lora(std: float) -> nn.Sequential:
    layers = mlp(depth=2)
    return nn.Sequential(
        *(LowRank(one, std) if isinstance(one, nn.Linear) else one for one in layers)
    )


class Residual(nn.Module):
    """Forty blocks without normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(40))
        self.last = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        y: Tensor = self.last(x)
        return y


def scalar() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(0.1))
    return model


def sparsely(p: Tensor) -> None:
    """Leave one weight in twenty, and that at a hundredth."""
    if p.dim() > 1:
        p.mul_((torch.rand_like(p) < 0.05) * 0.01)


def small_table(rows: int, std: float) -> nn.Embedding:
    table = nn.Embedding(rows, 8)
    nn.init.normal_(table.weight, std=std)
    return table


def tied_tables() -> nn.ModuleList:
    """Return an embedding, a head with the same weights, and what lies between."""
    table, head = nn.Embedding(30, 32), nn.Linear(32, 30, bias=False)
    head.weight = table.weight
    return nn.ModuleList([table, head, nn.Linear(32, 32)])


def identity_rnn(*sizes: int, **options: Any) -> nn.RNN:
    """Return a ReLU recurrent network that starts at the identity (Le et al. 2015)."""
    cell = nn.RNN(*sizes, nonlinearity="relu", **options)
    nn.init.eye_(cell.get_parameter("weight_hh_l0"))
    return cell


class Transformer(nn.Module):
    """Two blocks, 32 wide."""

    def __init__(self, pre: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 32)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=pre)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 20)
        self.mask = nn.Transformer.generate_square_subsequent_mask(16)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.blocks(self.table(x) + self.places, mask=self.mask, is_causal=True)
        scores: Tensor = self.head(inner)
        return scores
