"""`python -m tasuki.train --job … --run … --claim … --fd …`: one rank of one phase."""

from __future__ import annotations

import sys

from tasuki.train.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
