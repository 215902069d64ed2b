"""Checkpoints: complete, committed, immutable state of a run at a step.

`codec`, `parts`, `difference` and `weights` need torch; the rest (commit, verify, lineage,
retention) does not: a checkpoint can be looked for, checked and pruned without importing it.
Nothing here decides when to save or what belongs to a state: that is `runtime`'s.
"""
