"""Settings for the whole test run."""

import os

# Keras looks for TensorFlow unless told otherwise; the doctests of driftrate.keras run on torch.
os.environ.setdefault("KERAS_BACKEND", "torch")
