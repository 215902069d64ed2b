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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEARTBEAT_S = 0.05
SIGNALS = {signal.SIGTERM, signal.SIGCONT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
TIMEOUT_S = 300.0  # a first import of torch from a network file system takes minutes
TRY_TASUKI = "import tasuki; print(tasuki.__version__)"
TRY_TORCH = "import torch; print(torch.__version__)"
# A driver that does not fit, or a GPU in exclusive use, fails only when memory is touched.
TRY_GPU = "import torch; torch.ones(1, device='cuda').item(); print(torch.cuda.get_device_name())"


def main(folder: Path) -> None:
    facts_file = folder / "facts.json"
    # Not SLURM_RESTART_COUNT: a preemption can requeue the job before it has tried anything.
    if not facts_file.exists():
        checks = list(try_everything(json.loads((folder / "order.json").read_text())))
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        write_json(facts_file, {"node": node, "checks": checks})
        # After a successful call Slurm kills this job at once and starts it again later.
        result = run("requeue", "scontrol", "requeue", os.environ["SLURM_JOB_ID"])
        if "error" not in result:
            return
    else:
        result = {"name": "requeue", "output": "came back"}
    facts = json.loads(facts_file.read_text())
    write_json(facts_file, {**facts, "checks": [*facts["checks"], result]})
    wait_for_kill(folder)


def try_everything(order: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield a name with an output, or with an error, for each check."""
    python = (sys.executable, "-B", "-c")
    yield {"name": "Python", "output": f"{sys.version.split()[0]}, {sys.executable}"}
    # This process runs in a subfolder of it, and wrote its results there.
    yield {"name": "runs folder", "output": order["runs_dir"]}
    yield run("tasuki", *python, TRY_TASUKI)
    yield run("torch", *python, TRY_TORCH)
    if order["has_gpu"]:
        yield run("GPU", *python, TRY_GPU)
    if order["recipe"]:  # `module:Class`, next to the spec
        module, _, name = order["recipe"].partition(":")
        yield run("recipe", *python, f"from {module} import {name}", cwd=order["folder"])


def run(name: str, *command: str, cwd: str | None = None) -> dict[str, str]:
    """Keep the last line of stdout, or of stderr where the command fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as failed:
        error = failed.stderr.strip().rpartition("\n")[2]
        return {"name": name, "error": error or f"exit status {failed.returncode}"}
    except (OSError, subprocess.TimeoutExpired) as failed:
        return {"name": name, "error": str(failed)}
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


def write_json(path: Path, value: object) -> None:
    """Replace a file in one step: a reader on another machine never sees half of it."""
    temp = path.with_name(f".{path.name}.tmp")
    temp.write_text(json.dumps(value))
    temp.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
