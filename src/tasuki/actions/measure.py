"""Ask a child process with torch how long the steps of a stage take here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from tasuki.errors import EXIT_FAILED, TasukiError
from tasuki.spec.resolved import ResolvedExperiment, to_plain

_WITHIN_S = 300


class MeasureFailed(TasukiError):
    """The child could not measure; its words."""


def measure_stages(
    experiment: ResolvedExperiment,
    stages: Sequence[str],
    *,
    folder: str,
    ranks: int,
    cpus: int,
    device: str,
    python: str,
    environment: dict[str, str],
) -> dict[str, dict[str, Any]]:
    """By stage: total_steps, step_s, start_s, save_s. Nothing is written anywhere."""
    reader, writer = os.pipe()
    order = {
        "experiment": to_plain(experiment),
        "stages": list(stages),
        "folder": folder,
        "ranks": ranks,
        "cpus": cpus,
        "device": device,
    }
    try:
        child = subprocess.Popen(
            [python, "-P", "-B", "-m", "tasuki.train.measure", str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONHASHSEED": "0"},
            cwd=folder,
            pass_fds=[writer],
        )
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        try:
            _, err = child.communicate(json.dumps(order).encode(), timeout=_WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return {}
        raw = answers.read()
    return _read_answer(raw, err.decode(errors="replace"))


def _read_answer(raw: bytes, err: str) -> dict[str, dict[str, Any]]:
    try:
        answer = json.loads(raw)
    except ValueError:
        last = err.strip().splitlines()[-1:] or ["no word"]
        raise MeasureFailed(f"the steps could not be measured: {last[0]}") from None
    if "error" in answer:
        failed = MeasureFailed(answer["error"], hint=answer.get("hint", ""))
        failed.exit_code = EXIT_FAILED
        raise failed
    stages: dict[str, dict[str, Any]] = answer["stages"]
    return stages
