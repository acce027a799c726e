"""Ten seconds in a plain terminal: a rate that goes up at a jump and comes down.

Use: `python -m driftrate.demo`
"""
