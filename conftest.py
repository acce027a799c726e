"""Settings for the whole test run."""

import os

from hypothesis import settings

# Keras looks for TensorFlow unless told otherwise; the doctests of driftrate.keras run on torch.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The same examples in every run, however slow: a failure is a change's, not the day's.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
