"""The run folder and the job folder: the only place where processes meet, and their file names.

Standard library only: the supervisor and `tasuki status` start in milliseconds.
"""
