"""Figure 6: a network sorts cells while their mixture shifts; Adam, with and without resets."""

from driftrate.paper.figure6.figure import CAPTION, TITLE, draw, pieces

__all__ = ["CAPTION", "TITLE", "draw", "pieces"]
