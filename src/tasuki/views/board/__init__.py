"""The board: a web page on this machine that shows runs while they run.

A thin face: what it shows comes from a `Source` (source.py), which `tasuki board` fills. Needs the
extra `board`; nothing outside of this package imports starlette or uvicorn.
"""
