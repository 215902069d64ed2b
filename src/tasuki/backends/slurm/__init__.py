"""Slurm as a backend: scripts that people can read, and jobs that are submitted once."""
