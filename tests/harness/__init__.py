"""What fault tests are made of: a project that is easy to disturb, and a process that has torch
imported already and forks real supervisors and workers in milliseconds."""
