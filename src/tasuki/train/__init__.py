"""A worker's work: the step engine, the training of a stage, evaluation, measuring.

Run as `python -m tasuki.train`; `tasuki.train.worker.main` is the same, callable in a process that
has torch already.
"""
