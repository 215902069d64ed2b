"""Deterministic kernels are asked for, of the compiler too, without loading it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys, torch
from tasuki.loop.exact import apply_settings, set_deterministic

apply_settings(threads=1, exact=True)
assert torch.are_deterministic_algorithms_enabled()
assert torch.is_deterministic_algorithms_warn_only_enabled()
assert "torch._inductor.config" not in sys.modules

import torch._inductor.config as compiler
assert compiler.deterministic  # loaded afterwards
set_deterministic(False)
assert not compiler.deterministic
apply_settings(threads=1, exact=True)
assert compiler.deterministic  # loaded before
"""


def test_a_start_does_not_load_the_compiler_which_is_deterministic_whenever_it_is_loaded():
    subprocess.run([sys.executable, "-c", CODE], check=True)
