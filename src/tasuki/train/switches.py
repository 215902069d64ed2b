"""In words, which of a stage's switches are in force on this device, and which gain nothing there.

Pure. What a recipe, a compiler or a model cannot do is said where it shows.
"""

from __future__ import annotations

from tasuki.spec.resolved import ResolvedStage


def in_force(stage: ResolvedStage, *, device: str) -> str:
    """One line for the log."""
    is_gpu = device == "cuda"
    precision = "fp32" if stage.precision == "tf32" and not is_gpu else stage.precision
    words = [f"Computing in {precision}"]
    if stage.compile is not False:
        words.append("compiled" if stage.compile is True else f"compiled ({stage.compile})")
    if stage.offload:
        words.append("optimizer on the host")
    return "; ".join(words)


def without_gain(stage: ResolvedStage, *, device: str) -> list[str]:
    """Warnings."""
    if stage.offload and device != "cuda":
        return [
            "`offload: true` gains nothing here: without a GPU the optimizer is on the host anyway"
        ]
    return []
