"""Memory and time, each number with its source and, where it is not measured, its error bar."""
