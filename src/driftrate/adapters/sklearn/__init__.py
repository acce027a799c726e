"""What drives the estimators of `driftrate.sklearn`: losses, the pool of rates, one schedule."""
