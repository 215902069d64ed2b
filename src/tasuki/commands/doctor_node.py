"""What the test job of `tasuki doctor` runs on its node: try what a training job needs.

It is copied into the job's folder and runs there under the Python of jobs (`doctor_job.py`). Only
the standard library may be imported: that this Python has no tasuki is one possible finding.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HEARTBEAT_S = 0.05
SIGNALS = {signal.SIGTERM, signal.SIGCONT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}


def main(folder: Path) -> None:
    codes = json.loads((folder / "checks.json").read_text())
    python = {"name": "Python", "output": f"{sys.version.split()[0]}, {sys.executable}"}
    checks = [python, *(run_check(name, code) for name, code in codes.items())]
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    (folder / "facts.json").write_text(json.dumps({"node": node, "checks": checks}))
    wait_for_kill(folder)


def run_check(name: str, code: str) -> dict[str, str]:
    """Keep the last line of stdout, or of stderr where the code fails."""
    command = (sys.executable, "-B", "-c", code)
    # No timeout: a first import of torch from a network file system takes minutes.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        error = done.stderr.strip().rpartition("\n")[2]
        return {"name": name, "error": error or f"exit status {done.returncode}"}
    return {"name": name, "output": done.stdout.strip().rpartition("\n")[2] or "ok"}


def wait_for_kill(folder: Path) -> None:
    """Write a line for each signal and, from the first SIGTERM on, one for each 50 ms alive.

    Blocked signals stay pending until `sigtimedwait` takes them. So none is lost, and none ends
    this process: the last line is the moment of SIGKILL.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    log = os.open(folder / "signals.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    (folder / "ready").touch()
    is_terminated = False
    while True:
        received = signal.sigtimedwait(SIGNALS, HEARTBEAT_S)
        name = signal.Signals(received.si_signo).name if received else "alive"
        is_terminated = is_terminated or name == "SIGTERM"
        if received or is_terminated:
            os.write(log, f"{time.time():.3f} {name}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
