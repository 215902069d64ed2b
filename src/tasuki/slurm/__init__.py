"""Slurm: what it reports, how it is asked, job scripts that users can read, and submitting once.

Standard library only. Text, not JSON: its JSON changes from version to version, and older ones
have none.
"""
