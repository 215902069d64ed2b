"""Pure: which item runs when, and on which GPUs, so that all of them end early. No clock, no disk.

`pack.py` is the way in; `lanes.py` and `repack.py` are for those who carry a schedule out.
"""
