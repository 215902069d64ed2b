"""Does the trade of micro-batches, accumulation, checkpointing and ranks keep the gradient?

`tasuki equiv` asks (commands/equiv.py); `child.py` answers. Both sides of the comparison are made
by the real step engine, on the user's own model and data, in float64, where rounding is far below
anything that a wrong weight or a mixed batch does. Where they differ, `causes.py` finds out why by
experiments: each possible cause is put to rest on both sides, and let live alone.
"""
