"""`allocator`: what torch is told about GPU memory, and that it hears it."""

from __future__ import annotations

import pytest
import torch
from tests.commands.projects import make_project

from tasuki.errors import SpecError, UsageError
from tasuki.spec.allocator import parse_allocator
from tasuki.spec.load import load_spec
from tasuki.train.allocator import VARIABLES, choose_allocator

WRITTEN = {
    "expandable_segments": "expandable_segments:True",
    "expandable_segments:false": "expandable_segments:False",
    "max_split_size_mb:512": "max_split_size_mb:512",
    "expandable_segments, max_split_size_mb:512": "expandable_segments:True,max_split_size_mb:512",
    "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8": (
        "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8"
    ),
    "backend:native": "backend:native",
}

LISTENER = """
from pathlib import Path

import torch
from recipes import Learner

Path("heard").write_text(torch._C._accelerator_getAllocatorSettings())
Listener = type("Listener", (Learner,), {"__module__": __name__})
"""


@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_written_becomes_what_torch_reads(written):
    settings = parse_allocator(written)
    assert settings == WRITTEN[written]
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        before = torch._C._accelerator_getAllocatorSettings()
        torch._C._accelerator_setAllocatorSettings(settings)  # raises what a GPU job would meet
        torch._C._accelerator_setAllocatorSettings(before or "expandable_segments:False")


@pytest.mark.parametrize(
    ("written", "words", "hint"),
    [
        ("expandable_segment", "`expandable_segment` is no option", "`expandable_segments`"),
        ("quick", "`quick` is no option", "max_split_size_mb:512"),
        ("max_split_size_mb", "at least 20", "`max_split_size_mb:512`"),
        ("max_split_size_mb:5", "at least 20, not `5`", "`max_split_size_mb:512`"),
        ("garbage_collection_threshold:1.0", "smaller than 1.0", ":0.8`"),
        ("expandable_segments:yes", "True or False, not `yes`", ":True`"),
        (" ", "", ""),
    ],
)
def test_an_option_that_torch_does_not_have_is_refused_in_words(written, words, hint):
    with pytest.raises(UsageError) as caught:
        parse_allocator(written)
    assert words in caught.value.message and hint in caught.value.hint


def test_such_an_option_is_refused_when_the_spec_is_read_with_its_line(tmp_path):
    made = make_project(tmp_path / "p", defaults__allocator="quick")
    with pytest.raises(SpecError, match=r"tasuki\.yaml:1"):
        load_spec(str(made.folder), environ={})


def test_without_a_word_in_the_spec_gpu_workers_get_segments_that_grow():
    assert choose_allocator(None, {}, device="cuda").variables == dict.fromkeys(
        VARIABLES, "expandable_segments:True"
    )
    assert choose_allocator(None, {}, device="cpu").variables == {}


@pytest.mark.parametrize("name", [*VARIABLES, "PYTORCH_HIP_ALLOC_CONF"])
def test_what_a_person_exported_stays_unless_the_spec_says_otherwise(name):
    exported = {name: "max_split_size_mb:64"}
    left = choose_allocator(None, exported, device="cuda")
    assert left.variables == {} and left.note == ""
    ruled = choose_allocator("expandable_segments", exported, device="cuda")
    assert set(ruled.variables.values()) == {"expandable_segments:True"}
    assert f"{name}=max_split_size_mb:64" in ruled.note and "expandable_segments" in ruled.note


def test_default_leaves_torch_alone_and_the_same_word_twice_needs_none_in_the_log():
    for exported in ({}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}):
        assert choose_allocator("default", exported, device="cuda").variables == {}
    exported = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert choose_allocator("max_split_size_mb:64", exported, device="cuda").note == ""


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_getAllocatorSettings"), reason="torch cannot be asked"
)
def test_a_worker_s_torch_has_read_the_setting_and_the_numbers_are_the_same(
    project, real_project, here
):
    stages = [{"name": "one", "data": "d", "steps": 5}]
    real = real_project("real", recipe="listener:Listener", stages=stages)
    (real.folder / "listener.py").write_text(LISTENER)
    real.change(defaults__allocator="expandable_segments,max_split_size_mb:512")
    said = here(real.folder, "run", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert said.code == 0, real.logs()
    heard = (real.folder / "heard").read_text()
    assert heard == "expandable_segments:True,max_split_size_mb:512"
    assert real.logs().count("of the spec counts, not PYTORCH_CUDA_ALLOC_CONF=") == 1
    plain = project("plain", stages=stages)
    assert here(plain.folder, "run").code == 0, plain.logs()
    weights = [made.run().stage("one").weights.read_bytes() for made in (real, plain)]
    assert weights[0] == weights[1]
