"""Simulation: SGD on a stream, over many seeds and schedules at once, with exact regret."""

from driftrate.simulation.clairvoyant import Clairvoyant, GreedyRate
from driftrate.simulation.engine import Record
from driftrate.simulation.run import Run, Terms
from driftrate.simulation.simulate import simulate

__all__ = ["Clairvoyant", "GreedyRate", "Record", "Run", "Terms", "simulate"]
