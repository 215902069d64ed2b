"""Deterministic kernels are asked for, of the compiler too, without loading it."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys, torch
from tasuki.loop.exact import apply_settings
{before}
apply_settings(threads=1, exact=True)
assert torch.are_deterministic_algorithms_enabled()
assert torch.is_deterministic_algorithms_warn_only_enabled()
print("torch._inductor.config" in sys.modules)
import torch._inductor.config
print(torch._inductor.config.deterministic)
"""


def said_by(before: str) -> list[str]:
    code = LOADED.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_start_does_not_load_the_compiler_which_is_deterministic_once_it_is_loaded():
    assert said_by("") == ["False", "True"]


def test_a_compiler_that_a_recipe_has_loaded_is_deterministic_too():
    assert said_by("import torch._inductor.config") == ["True", "True"]
