"""A quick tick for a private controller: time limits and graces end within a second.

slurmctld looks at them every 30 s, a number that is compiled in. It asks `difftime` how long ago it
looked last, and compares the answer with 30.0. A small library in front of libc answers that one
question with thirty times the truth; every other caller gets the truth. How the caller goes on is
read from its machine code, so this works on x86-64 only; elsewhere, or without a C compiler, the
cluster keeps the stock tick, and tests take longer. Never near a cluster that is not a test's.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

_SOURCE = r"""
#include <stdint.h>
#include <string.h>
#include <time.h>

/* comisd xmm0, [rip + offset]: what the caller compares our answer with. */
static const unsigned char COMPARE[] = {0x66, 0x0f, 0x2f, 0x05};

double difftime(time_t later, time_t earlier)
{
    const unsigned char *next = __builtin_return_address(0);
    double seconds = (double)(later - earlier), limit;
    int32_t offset;

    if (memcmp(next, COMPARE, sizeof COMPARE) != 0)
        return seconds;
    memcpy(&offset, next + sizeof COMPARE, sizeof offset);
    memcpy(&limit, next + sizeof COMPARE + sizeof offset + offset, sizeof limit);
    return limit == 30.0 ? 30.0 * seconds : seconds;
}
"""
_COMPILE_WITHIN_S = 60.0


def preload_for_a_quick_tick(folder: Path) -> Path | None:
    """The library, compiled into the folder; None where there can be none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or platform.machine() != "x86_64":
        return None
    library, source = folder / "tick.so", folder / "tick.c"
    if library.exists():
        return library
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, timeout=_COMPILE_WITHIN_S, check=False)
    return library if done.returncode == 0 else None
