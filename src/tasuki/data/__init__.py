"""Sizes, buckets and order of the data (pure), and the readers and loaders on top of them.

This package file imports nothing: the order is used by processes that must start without torch.
"""
