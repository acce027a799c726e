"""A small decoder over bytes."""

from __future__ import annotations

import torch
from torch import nn


class _Layer(nn.Module):
    """Attention to what came before, then two linear maps, each with its norm and its shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asks = nn.Linear(width, 3 * width)
        self.answers = nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        rows, places, width = x.shape
        parts = self.asks(self.first(x)).view(rows, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answers(seen.transpose(1, 2).reshape(rows, places, width))
        shortcut: torch.Tensor = x + self.wide(self.second(x))
        return shortcut


class Decoder(nn.Module):
    """Scores of the next byte, (rows, places, outputs), at every place of (rows, places)."""

    def __init__(self, width: int, layers: int, heads: int, context: int, outputs: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(outputs, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, outputs)
        # Torch draws embeddings with deviation 1, beside which the layers' shortcuts are nothing.
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        here = self.places.weight[: x.shape[1]]
        scores: torch.Tensor = self.scores(self.norm(self.layers(self.bytes(x) + here)))
        return scores
