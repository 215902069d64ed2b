"""What the user asks for: frozen values, their loading and checking.

This package file imports nothing: `names` is used by processes that must start without msgspec.
"""
