"""A real Slurm of one's own on this machine: controller, nodes, munge, in one folder.

For tests, ours and the users': what a mock of Slurm would say is what its author believed. Needs
Debian's slurmctld, slurmd, slurm-client and munge; no root, no systemd, no containers.

    with Cluster(folder) as cluster:
        cluster.run("sbatch", "job.sh")

`python -m tasuki.testing.slurm up FOLDER` and `down FOLDER` do the same for people.
"""

from tasuki.testing.slurm.cluster import Cluster, missing_programs
from tasuki.testing.slurm.conf import PARTITIONS, Partition, Shape

__all__ = ["PARTITIONS", "Cluster", "Partition", "Shape", "missing_programs"]
