"""Settings for the whole test run."""

import os
from importlib.util import find_spec

from hypothesis import settings

# This one is written in Triton, which torch for the CPU comes without.
collect_ignore = [] if find_spec("triton") else ["src/driftrate/simulation/fused_kernel.py"]

# Keras looks for TensorFlow unless told otherwise; the doctests of driftrate.keras run on torch.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The same examples in every run, however slow: a failure is a change's, not the day's.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
