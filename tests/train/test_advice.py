"""What went wrong and what to write instead: advice that can be followed as it stands."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tests.commands.person import Project
from tests.unit.planning.test_cut import HOUR, work
from torch import nn

from tasuki.data.split import resolve_batch
from tasuki.errors import PlanError
from tasuki.planning.cut import cut_into_jobs
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
import os
import torch
from recipes import Learner


class Hungry(Learner):
    """A real allocation that no machine can serve, for more than `room` samples at once."""

    def __init__(self, room=4, trap=None, **more):
        super().__init__(**more)
        self.room, self.trap, self.steps = room, trap, 0

    def sample_sizes(self, dataset):
        return [512] * len(dataset)

    def loss(self, model, batch):
        self.steps += 1
        if self.trap and self.steps > 10 and os.path.exists(self.trap):
            os.unlink(self.trap)
            torch.empty(10**15)
        if not self.trap and len(batch[0]) > self.room:
            torch.empty(10**15)
        return super().loss(model, batch)
'''


def hungry(project: Any, **more: Any) -> Project:
    made: Project = project(recipe="hungry:Hungry", **more)
    (made.folder / "hungry.py").write_text(HUNGRY)
    return made


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
    made = hungry(project, params={"room": 0})
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


def test_a_micro_batch_that_does_not_fit_is_halved_and_the_run_goes_on(project, here):
    made = hungry(project)
    said = here(made.folder, "run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", f"{said}\n{made.logs()}"
    assert said.run["attempts"] == 1
    words = "step 0 ran out of memory with a micro-batch of 8 samples (it asked for 4,000 TB more)"
    assert words in " ".join(said.err.split())


def test_memory_that_ran_out_after_progress_is_survived_in_the_same_attempt(project, here):
    made = hungry(project, params={"trap": "trap"})
    (made.folder / "trap").touch()
    said = here(made.folder, "run", "--json")
    assert said.code == 0 and said.run["state"] == "complete", f"{said}\n{made.logs()}"
    assert said.run["attempts"] == 1 and not (made.folder / "trap").exists()


def test_an_evaluation_that_runs_out_of_memory_says_so(project, here):
    made = hungry(
        project,
        params={"room": 4, "trap": None},
        defaults__micro_batch=4,
        experiments__exp__evaluate={"data": "d"},
        experiments__exp__stages=[{"name": "one", "data": "d", "steps": 2}],
    )
    path = made.folder / "hungry.py"
    path.write_text(path.read_text().replace("> self.room", "> self.room or not model.training"))
    said = here(made.folder, "run", "--json")
    assert said.run["state"] == "failed", said
    assert said.run["reason"] == (
        "evaluating stage `one` ran out of memory with a batch of 1 sample of size 512 (it asked "
        "for 4,000 TB more)"
    )
    assert "more memory" in said.run["hint"] and "checkpointing" not in said.run["hint"]


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


def test_a_written_accumulation_is_named_with_the_micro_batch_so_that_both_agree():
    stage = ResolvedStage(name="a", effective_batch=24, micro_batch=6, accumulation=2)
    hint = memory_hint(stage, CPU, ranks=2)
    assert "`micro_batch: 3` and `accumulation: 4` (the effective batch stays 24)" in hint
    assert "`tasuki run --accept-change micro_batch --accept-change accumulation`" in hint
    assert resolve_batch(24, 3, 4, 2).effective_batch == 24


def test_where_the_micro_batch_is_one_nothing_smaller_is_advised():
    hint = memory_hint(ResolvedStage(name="a", effective_batch=4, micro_batch=1), CPU)
    assert "micro_batch" not in hint and "more memory" in hint


def test_a_cost_budget_is_what_is_made_smaller():
    buckets = Buckets(kind="cost", cost="nodes", budget=200_000)
    assert "`budget: 100000`" in memory_hint(ResolvedStage(name="a", buckets=buckets), CPU)


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


@pytest.mark.parametrize(
    ("stage", "limit_s", "words"),
    [
        (work(wall_s=HOUR, save_s=600.0), 600.0, ("longer `cluster.time_limit`",)),
        (work(wall_s=1e9, total_steps=10**9), 60.0, ("longer `clu", "fewer `epochs`", "split")),
        (
            work(evaluates=True, evaluate_s=2 * HOUR),
            HOUR,
            ("longer `cluster.time_limit`", "split the data", "`evaluate.reserve`"),
        ),
    ],
    ids=["save", "jobs", "evaluation"],
)
def test_what_does_not_fit_a_job_says_what_would(stage, limit_s, words):
    with pytest.raises(PlanError) as caught:
        cut_into_jobs([stage], limit_s=limit_s)
    assert all(word in caught.value.hint for word in words), caught.value.hint
