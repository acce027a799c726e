"""The Keras adapter; `driftrate.keras` is its door."""
