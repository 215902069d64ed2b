"""What the scheduler says about this job: when it ends, why a notice came. Stdlib only."""
