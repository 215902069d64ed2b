"""Files of samples made better: merged, split, checked and cleaned (`tasuki data`).

Works on whole HDF5 files, block by block, in a child process (work.py); never changes a source.
This package file imports nothing.
"""
