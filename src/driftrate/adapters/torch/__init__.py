"""The parts of `driftrate.torch`."""
