"""A job's life on a node: lanes, processes, signals, outcome.

Run as `python -m tasuki.supervisor JOB_DIR`.

Standard library only and no torch: it owns signals from its first line, and an attempt on a
finished run ends in milliseconds. It decides nothing: `relay` does.
"""
