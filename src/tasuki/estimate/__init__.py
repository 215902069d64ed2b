"""Memory and time, each number with its source: so far measured and given times only."""
