"""A page on which learners chase a target, with the library's own rates in the browser."""

from driftrate.playground.build import build

__all__ = ["build"]
