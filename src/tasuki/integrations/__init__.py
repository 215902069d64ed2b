"""One's own loop, and thin adapters for frameworks, on `runtime`.

`tasuki.open_run()` is the way in (open.py); run.py is what people write against, loop.py what
adapters are built on. Nothing here knows recipes.
"""
