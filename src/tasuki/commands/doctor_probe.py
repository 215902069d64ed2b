"""The probe of `tasuki doctor --live`: what a job lives through on a node, written down.

Copied beside its results and run there as a script, by whatever Python the jobs shall use: standard
library only, nothing of tasuki's. Twice in one job: as the batch process, which starts itself as an
srun step. Both say every 50 ms that they are alive and do not obey signals, so that the moment of
the KILL is known. doctor_live.py submits it and reads what it wrote.

    probe.py batch|step FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_BEAT_S = 0.05
_LINGER_S = 60.0
"""The batch process outlives its step this long, to see its own KILL."""
_ASK_WITHIN_S = 30.0
_IMPORT_WITHIN_S = 300.0
_HEARD = ("TERM", "CONT", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "XCPU")
_IMPORT = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
module, _, name = sys.argv[2].partition(":")
getattr(importlib.import_module(module), name)
"""


def main(role: str, folder: Path) -> int:
    start = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    hear_signals(folder / f"signals.{start}.{role}")
    start_beating(folder / f"beat.{start}.{role}")
    if role == "batch":
        return be_batch(folder, start)
    if is_requeued(folder, start):
        return 0  # the sooner we leave, the sooner we are back
    write(folder / f"ready.{start}.json", {"at": time.time()})
    while True:
        time.sleep(60)


def hear_signals(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hear(number: int, _frame: FrameType | None) -> None:
        os.write(log, f"{time.time():.3f} {signal.Signals(number).name[3:]}\n".encode())

    for name in _HEARD:
        signal.signal(getattr(signal, f"SIG{name}"), hear)


def start_beating(path: Path) -> None:
    """In a thread that signals pass by: one that it took would not wake the main thread, which
    alone runs handlers. The kernel gives it the second of two signals in a row."""
    heard = [getattr(signal, f"SIG{name}") for name in _HEARD]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    threading.Thread(target=beat, args=(path,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)


def beat(path: Path) -> None:
    """The time of the last sign of life."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    while True:
        os.pwrite(file, f"{time.time():.3f}\n".encode(), 0)
        time.sleep(_BEAT_S)


def be_batch(folder: Path, start: int) -> int:
    step = subprocess.Popen(["srun", "--ntasks=1", sys.executable, __file__, "step", str(folder)])
    status = step.wait()
    if (folder / f"ready.{start}.json").exists():
        time.sleep(_LINGER_S)
    return status


def is_requeued(folder: Path, start: int) -> bool:
    """Look around at the first start, and ask for a second one."""
    if start > 0:
        return False
    write(folder / "facts.json", look(json.loads((folder / "order.json").read_text())))
    answer = ask("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
    write(folder / "requeue.json", answer)
    return bool(answer["ok"])


def look(order: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "python": sys.executable,
        "python_version": ".".join(str(part) for part in sys.version_info[:3]),
        "runs": try_writing(Path(order["runs"])),
        "scontrol": ask("scontrol", "show", "job", os.environ["SLURM_JOB_ID"]),
        "shm_bytes": shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        "recipe": try_import(order) if order["recipe"] else None,
    }


def try_writing(runs: Path) -> dict[str, Any]:
    if not runs.is_dir():
        return {"is_visible": False, "words": f"{runs} is no folder there"}
    path = runs / f".doctor-{os.getpid()}.tmp"
    try:
        path.write_text("probe\n")
        path.unlink()
    except OSError as error:
        return {"is_visible": True, "words": f"{error.strerror}: {runs}"}
    return {"is_visible": True, "words": ""}


def try_import(order: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    command = [sys.executable, "-B", "-c", _IMPORT, order["folder"], order["recipe"]]
    told = ask(*command, within_s=_IMPORT_WITHIN_S, cwd=order["folder"])
    told["words"] = told["words"].splitlines()[-1] if told["words"] else ""
    return {**told, "name": order["recipe"], "seconds": round(time.monotonic() - began, 2)}


def ask(*command: str, within_s: float = _ASK_WITHIN_S, cwd: str | None = None) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=within_s,
            check=False,
        )
    except FileNotFoundError as error:
        return {"ok": False, "words": f"there is no {error.filename} there"}
    except subprocess.TimeoutExpired:
        return {"ok": False, "words": f"no answer within {within_s:g} s"}
    return {"ok": done.returncode == 0, "words": done.stderr.decode(errors="replace").strip()}


def write(path: Path, value: object) -> None:
    """Whole or not there, for whoever looks from another machine."""
    temp = path.with_name(f".{path.name}.tmp")
    temp.write_text(json.dumps(value))
    temp.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
