"""`python -m tasuki`: the same as `tasuki`."""

from __future__ import annotations

import sys

from tasuki.cli import main

sys.exit(main())
