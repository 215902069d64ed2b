"""Run and job folders: the only place that knows file names.

Standard library only: the supervisor and `tasuki status` start in milliseconds. Nothing here
decides anything; decisions are `relay`'s.
"""
