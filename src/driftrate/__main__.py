"""`python -m driftrate`: the command line."""

from driftrate.cli import app

app(prog_name="driftrate")
