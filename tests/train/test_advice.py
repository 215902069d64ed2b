"""What went wrong and what to write instead: advice that can be followed as it stands."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from tasuki.data.split import resolve_batch
from tasuki.errors import PlanError
from tasuki.planning.cut import cut_into_jobs
from tasuki.planning.values import StageWork
from tasuki.runs.claims import list_claims
from tasuki.runs.control import last_said
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.advice import (
    OutOfMemory,
    explain_memory,
    explain_missing_data,
    is_out_of_memory,
)
from tasuki.train.shortage import find_shortage

HUNGRY = '''
import torch
from recipes import Learner


class Hungry(Learner):
    """A real allocation that no machine can serve."""

    def sample_sizes(self, dataset):
        return [512] * len(dataset)

    def loss(self, model, batch):
        torch.empty(10**15)
'''


def memory_hint(stage: ResolvedStage, error: BaseException, *, ranks: int = 1) -> str:
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    batch = resolve_batch(stage.effective_batch, micro, stage.accumulation, ranks)
    return explain_memory(stage, error, doing="x", batch=batch, ranks=ranks).hint


CUDA = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has …")
CPU = MemoryError()


# -- memory -------------------------------------------------------------------------------------


def test_out_of_memory_with_one_sample_fails_at_once_and_names_stage_batch_size_and_what_helps(
    project, here
):
    """What fits in smaller parts is survived: tests/resume."""
    made = project(recipe="hungry:Hungry")
    (made.folder / "hungry.py").write_text(HUNGRY)
    said = here(made.folder, "run", "--json")
    assert said.code == 1 and said.run["state"] == "failed", said
    assert said.run["reason"] == (
        "stage `one` ran out of memory at step 0 with a micro-batch of 1 sample of size 512 "
        "(it asked for 4,000 TB more); weights and gradients take 1.42 kB; the optimizer's states "
        "come on top"
    )
    told = last_said(made.run())
    assert told is not None
    assert told.hint.startswith("write `gradient_checkpointing: true` (slower, far less memory)")
    assert told.hint.endswith("then `tasuki run --accept-change gradient_checkpointing`")
    assert list_claims(made.run()) == [1]
    assert "Traceback" in made.logs()  # for who wants to know more


@pytest.mark.parametrize(
    "error",
    [
        CUDA,
        CPU,
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(error):
    assert is_out_of_memory(error)
    for raised in (lambda: torch.empty(10**15), lambda: np.empty(2**50), lambda: bytearray(2**60)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            raised()
        assert is_out_of_memory(caught.value)
    assert is_out_of_memory(raised_from(error))
    for other in (
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed "
                     "in a non-contiguous input."),
        OSError(errno.ENOSPC, "No space left on device"),
        OutOfMemory("explained already", hint="x"),
        ValueError("out of memory of what I wanted to say"),
    ):  # fmt: skip
        assert not is_out_of_memory(other)


def raised_from(cause: BaseException) -> ValueError:
    error = ValueError("the loss failed")
    error.__cause__ = cause
    return error


def test_where_one_sample_does_not_fit_a_card_it_says_what_is_held_and_which_card_is_larger():
    """As torch words it on a GPU."""
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12))
    optimizer = torch.optim.AdamW(model.parameters())
    error = torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.68 GiB "
        "of which 1.50 GiB is free. Including non-PyTorch memory, this process has 22.10 GiB"
    )
    found = find_shortage(model, optimizer, error)
    held = 2 * 12 * (64 * 64 + 64) * 4
    assert (found.held, found.blocks, found.over) == (held, 12, 1 << 30)
    assert found.in_words() == (
        "weights and gradients take 399 kB of 25.4 GB, and the sample needs more than the other "
        "25.4 GB; the optimizer's states come on top"
    )
    assert "inputs of the model's 12 blocks" in found.of_checkpointing()
    assert found.of_a_card() == " (more than 26.5 GB: rtx-5090 has 33.7 GB)"
    silent = find_shortage(model, optimizer, MemoryError())
    assert silent.in_words().startswith("weights and gradients take 399 kB;")
    assert silent.of_a_card() == ""


@pytest.mark.parametrize(
    ("keys", "ranks", "words"),
    [
        (
            {"effective_batch": 24, "micro_batch": 6, "accumulation": 2},
            2,
            [
                "`micro_batch: 3` and `accumulation: 4` (the effective batch stays 24)",
                "`tasuki run --accept-change micro_batch --accept-change accumulation`",
            ],
        ),
        ({"effective_batch": 4, "micro_batch": 1}, 1, ["more memory"]),
        (
            {"buckets": Buckets(kind="cost", cost="nodes", budget=200_000)},
            1,
            ["`budget: 100000`"],
        ),
    ],
    ids=["accumulation", "one", "cost"],
)
def test_what_splits_a_step_is_made_smaller_where_that_is_possible(keys, ranks, words):
    hint = memory_hint(ResolvedStage(name="a", **keys), CPU, ranks=ranks)
    assert all(word in hint for word in words), hint
    assert ("micro_batch" in hint) == ("accumulation" in keys)


def test_growing_segments_are_advised_on_gpus_that_do_not_have_them(monkeypatch):
    stage = ResolvedStage(name="a")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert "`allocator: expandable_segments`" in memory_hint(stage, CUDA)
    assert "allocator" not in memory_hint(stage, CPU)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "allocator" not in memory_hint(stage, CUDA)
    assert "(it asked for 2.50 GiB more)" in explain_memory(stage, CUDA, doing="x").message


def test_gradient_checkpointing_is_advised_where_it_is_off():
    for policy, is_advised in ((False, True), ("auto", True), (True, False), (2, False)):
        hint = memory_hint(ResolvedStage(name="a", gradient_checkpointing=policy), CPU)
        assert ("`gradient_checkpointing: true`" in hint) is is_advised


# -- data ---------------------------------------------------------------------------------------


def test_data_that_are_not_there_are_named_with_path_neighbour_and_how_to_make_them(project, here):
    made = project(recipe="NoData", stages=[{"name": "one", "data": "data/trian.h5"}])
    (made.folder / "data").mkdir()
    (made.folder / "data" / "train.h5").touch()
    said = here(made.folder, "run", "--json")
    assert said.code == 1 and said.run["state"] == "failed", said
    folder = made.folder / "data"
    assert f"there is nothing at {folder}/trian.h5" in said.run["reason"]
    assert f"the nearest in {folder} is `train.h5`" in said.run["reason"]
    for words in ("`tasuki data merge`", "`tasuki data split`", "own generator"):
        assert words in said.run["hint"]


def test_a_missing_hdf5_file_is_found_in_the_words_of_hdf5(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        h5py.File(tmp_path / "sets" / "test.h5")
    error = explain_missing_data("sets", "test", caught.value)
    assert f"there is nothing at {tmp_path}/sets/test.h5; {tmp_path} is empty" in error.message
    (tmp_path / "setz").mkdir()
    again = explain_missing_data("sets", "test", caught.value)
    assert f"the nearest in {tmp_path} is `setz`" in again.message


# -- time ---------------------------------------------------------------------------------------


HOUR = 3600.0
ONE = StageWork(
    experiment="exp",
    stage="one",
    wall_s=HOUR,
    from_step=0,
    total_steps=1000,
    start_s=10.0,
    save_s=2.0,
    evaluates=False,
    evaluate_s=None,
    source="given",
)


@pytest.mark.parametrize(
    ("facts", "limit_s", "words"),
    [
        ({"save_s": 600.0}, 600.0, ("longer `cluster.time_limit`",)),
        (
            {"wall_s": 1e9, "total_steps": 10**9},
            60.0,
            ("longer `clu", "fewer `epochs`", "split"),
        ),
        (
            {"evaluates": True, "evaluate_s": 2 * HOUR},
            HOUR,
            ("longer `cluster.time_limit`", "split the data", "`evaluate.reserve`"),
        ),
    ],
    ids=["save", "jobs", "evaluation"],
)
def test_what_does_not_fit_a_job_says_what_would(facts, limit_s, words):
    with pytest.raises(PlanError) as caught:
        cut_into_jobs([replace(ONE, **facts)], limit_s=limit_s)
    assert all(word in caught.value.hint for word in words), caught.value.hint
