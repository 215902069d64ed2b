"""A person in a project with warm workers, and a real cluster, for faults that they meet."""

from tests.commands.conftest import here, project, warm_python  # noqa: F401
from tests.slurm.conftest import cluster  # noqa: F401
