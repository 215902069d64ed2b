"""Metrics out: a process of its own beside an attempt, which follows the run's files.

The truth is `metrics/*.jsonl`. What is shown elsewhere is made from it, so a sink can neither stop,
slow nor change a training; nothing here imports torch, and no rank knows that it exists.
"""
