"""HDF5 files of samples: their layouts, how they are read, checked, merged and split.

This package file imports nothing: h5py is an extra, asked for where a file is opened.
"""
