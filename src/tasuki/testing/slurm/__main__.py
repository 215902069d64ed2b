"""`python -m tasuki.testing.slurm up FOLDER`, and `down FOLDER`: a cluster to try things on."""

from __future__ import annotations

import sys
from pathlib import Path

from tasuki.errors import EXIT_USAGE, TasukiError
from tasuki.testing.slurm.cluster import Cluster


def main(arguments: list[str]) -> int:
    match arguments:
        case ["up", folder]:
            cluster = Cluster(Path(folder))
            cluster.start()
            names = ", ".join(partition.name for partition in cluster.shape.partitions)
            sys.stdout.write(f"export SLURM_CONF={cluster.folder}/slurm.conf\n")
            sys.stderr.write(
                f"{cluster.shape.nodes} nodes with {cluster.shape.gpus} GPUs that are none; "
                f"partitions {names}\nend it with: python -m tasuki.testing.slurm down {folder}\n"
            )
        case ["down", folder]:
            Cluster(Path(folder)).stop()
        case _:
            sys.stderr.write("usage: python -m tasuki.testing.slurm up|down FOLDER\n")
            return EXIT_USAGE
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TasukiError as error:
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)
