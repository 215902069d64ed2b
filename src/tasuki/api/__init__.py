"""Every verb as one Python function that returns the values of `--json`.

Thin: the same actions as the command line, without its talk. Files are its groups of verbs; names
are taken from here by `tasuki/__init__.py` when one is used.
"""
