"""The fixtures of the command line's tests: a person in a project with warm workers."""

from tests.cli.conftest import here, project, real_project, warm_python  # noqa: F401
