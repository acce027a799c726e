"""The Optax adapter; `driftrate.optax` is its door."""
