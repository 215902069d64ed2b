"""Slurm: what it says, and how it is asked. Stdlib only.

Text, not JSON: its JSON changes from version to version, and older ones have none.
"""
