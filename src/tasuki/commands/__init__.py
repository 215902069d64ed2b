"""One file per verb: read, decide, act. Returns values, prints nothing, imports no torch."""
