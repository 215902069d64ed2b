"""`python -m tools.docs [OUT]`: write the generated pages anew, then the site, to `.work/site`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.docs.generate import write
from tools.docs.pages import ROOT
from tools.docs.site import BrokenSite, build


def main() -> int:
    os.environ["COLUMNS"] = "100"
    for name in write():
        print(f"written anew: docs/{name}")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".work" / "site"
    try:
        count = build(out)
    except BrokenSite as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} pages: {out}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
