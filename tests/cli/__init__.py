"""The command line as people use it: real processes, real files, a real terminal."""
