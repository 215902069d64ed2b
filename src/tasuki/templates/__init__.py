"""Files that `tasuki new` and `tasuki demo` copy; not imported."""
