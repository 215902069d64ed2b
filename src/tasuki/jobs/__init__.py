"""A job's life on its node: slots, processes, signals, outcome; and the scheduler of this machine.

A supervisor runs as `python -m tasuki.jobs JOB_FOLDER`. Standard library only and no torch: it
owns signals from its first line, and an attempt on a completed run ends in milliseconds.
"""
