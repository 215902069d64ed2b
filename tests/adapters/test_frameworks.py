"""What the adapters do to a framework around the training: versions, handlers, saves, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.subjects import FRAMEWORKS, HF, LIGHTNING

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.commands.status import describe_run
from tasuki.errors import UsageError
from tasuki.integrations import versions
from tasuki.integrations.versions import check_version
from tasuki.runs.runs import RunFolder
from tasuki.views.status import show_status

ROOT = Path(__file__).resolve().parents[2]
TASUKI = str(Path(sys.executable).parent / "tasuki")


@pytest.mark.parametrize(
    ("tested", "found"), [(versions.LIGHTNING, "2.6.6"), (versions.HF, "5.23.0")]
)
def test_a_tested_version_is_taken_without_a_word(tested, found):
    assert check_version(tested, found) is None


@pytest.mark.parametrize(
    ("tested", "found"), [(versions.LIGHTNING, "2.7.0rc1"), (versions.HF, "5.30.1")]
)
def test_another_version_of_the_series_is_taken_with_a_warning_that_names_both(tested, found):
    told = check_version(tested, found)
    assert told is not None and told.startswith("WARNING: ")
    assert found in told and tested.words in told


@pytest.mark.parametrize(
    ("tested", "found"),
    [
        (versions.LIGHTNING, "2.5.9"),
        (versions.LIGHTNING, "3.0.0"),
        (versions.HF, "4.57.1"),
        (versions.HF, "6.0"),
        (versions.HF, "unknown"),
    ],
)
def test_a_version_outside_of_the_series_is_refused_with_what_to_install(tested, found):
    with pytest.raises(UsageError) as refused:
        check_version(tested, found)
    assert found in refused.value.message
    assert f"tasuki[{tested.extra}]" in refused.value.hint


@pytest.mark.parametrize(("module", "package"), [(LIGHTNING, "lightning"), (HF, "transformers")])
def test_an_absent_framework_names_the_extra(module, package):
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == {package!r} else find(name, *a)
from tasuki.errors import UsageError
try:
    import {module}
except UsageError as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    extra = {"lightning": "lightning", "transformers": "hf"}[package]
    assert done.stdout == f'{package} is not installed | pip install "tasuki[{extra}]"\n'


def run_script(servers, framework: str, folder: Path, text: str, *words: str, **environment: str):
    """(exit status, what it said) of a script that may use the scripts' common parts."""
    lines = f"import sys\nsys.path.insert(0, {str(FRAMEWORKS)!r})\n"
    (folder / "train.py").write_text(lines + text)
    log = folder / "log"
    environment = {"TASUKI_SITE": "", **environment}
    started = servers[framework].start_script(folder / "train.py", *words, log=log, **environment)
    return started.wait(), log.read_text()


LIGHT = """
import lightning as pl, os, signal, torch
from lightning.pytorch.plugins.environments import SLURMEnvironment
from common import Net, Noisy
from tasuki.integrations.lightning import TasukiCallback
from torch.utils.data import DataLoader

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch):
        if self.trainer.global_step == 3:
            IN_STEP
        return self.net(**batch)["loss"]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

pl.seed_everything(1, verbose=False)
quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False)
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[TasukiCallback("runs/it")],
                     enable_model_summary=False, MORE **quiet)
trainer.fit(Module(), DataLoader(Noisy(), 4, shuffle=True))
"""


def light(in_step: str = "pass", more: str = "") -> str:
    return LIGHT.replace("IN_STEP", in_step).replace("MORE", more)


def test_lightning_does_not_requeue_what_tasuki_hands_over(servers, tmp_path):
    """Under srun Lightning would call `scontrol requeue` at SIGUSR1: here is one that tells."""
    called = tmp_path / "called"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $@ >> {called}\n")
    (tmp_path / "scontrol").chmod(0o755)
    status, said = run_script(
        servers,
        LIGHTNING,
        tmp_path,
        light(
            "from common import _wait_until_seen; os.kill(os.getpid(), signal.SIGUSR1); "
            "_wait_until_seen()",
            "plugins=[SLURMEnvironment(auto_requeue=True)],",
        ),
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        SLURM_JOB_NAME="bash",
    )
    assert status == 75, said
    assert "requeueing (SLURMEnvironment) are switched off" in said
    assert "Handing over at step 4 of 22" in said
    assert not called.exists()
    assert not list(tmp_path.glob("hpc_ckpt*"))


MANUAL = """
class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, index):
        loss = super().training_step(batch)
        self.manual_backward(loss)
        if index % 3 == 2:
            self.optimizers().step(); self.optimizers().zero_grad()
"""


def test_max_steps_of_a_module_that_steps_by_itself_limit_no_batches_and_saves_go_on(
    servers, tmp_path
):
    """They are steps of its optimizer, of which nobody knows how many batches each takes."""
    text = light("os.kill(os.getpid(), 9) if self.trainer.fit_loop.total_batch_idx == 10 else None")
    text = text.replace("trainer.fit(Module()", "trainer.fit(Manual()")
    text = text.replace('TasukiCallback("runs/it")', 'TasukiCallback("runs/it", save="2 steps")')
    text = text.replace("max_epochs=2", "max_steps=6")
    text = text.replace("pl.seed_everything", MANUAL + "pl.seed_everything")
    status, said = run_script(servers, LIGHTNING, tmp_path, text)
    assert status == -9, said
    run = RunFolder(tmp_path / "runs/it")
    assert max(found.step for found in list_checkpoints(run)) >= 8, said
    found = describe_run(run, now=0.0)
    assert found["step"] >= 8 and found["total_steps"] is None, found
    show_status({"format": 1, "runs": [found]}, folder="runs")
    text = text.replace("self.trainer.fit_loop.total_batch_idx == 10", "False")
    status, said = run_script(servers, LIGHTNING, tmp_path, text.replace("=6", "=7"))
    assert status == 1 and "`max_steps` changed since the last checkpoint: 6 before" in said, said
    status, said = run_script(servers, LIGHTNING, tmp_path, text)
    assert status == 0 and "Finished stage" in said, said
    (stage,) = describe_run(run, now=0.0)["stages"]
    assert 16 <= stage["steps"] <= 22, stage


def test_an_error_of_a_training_step_ends_the_attempt_and_is_named(servers, tmp_path):
    status, said = run_script(servers, LIGHTNING, tmp_path, light("1 / 0"))
    assert status == 1 and "ZeroDivisionError" in said
    (end,) = (tmp_path / "runs/it/claims").glob("*/end.json")
    told = json.loads(end.read_text())
    assert told["ending"] == "failed" and "ZeroDivisionError" in told["message"]


def test_what_lightning_cannot_resume_is_refused_in_words(servers, tmp_path):
    status, said = run_script(servers, LIGHTNING, tmp_path, light(more="overfit_batches=2,"))
    assert status == 1 and "error: `overfit_batches`" in said and "hint:" in said, said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


HUGGING = """
import os, signal, transformers
from common import Net, Noisy
from tasuki.integrations.hf import Trainer

class At(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 3:
            IN_STEP

args = transformers.TrainingArguments(output_dir="out", use_cpu=True, report_to=[], max_steps=8,
    disable_tqdm=True, remove_unused_columns=False, per_device_train_batch_size=4, MORE)
transformers.set_seed(1)
trainer = Trainer(Net(), args, train_dataset=Noisy(), callbacks=[At()], run="runs/it")
trainer.train(TRAIN)
"""


def hugging(in_step: str = "pass", more: str = "", train: str = "") -> str:
    found = HUGGING.replace("IN_STEP", in_step).replace("MORE", more)
    return found.replace("TRAIN", train)


def test_hf_neither_saves_by_itself_nor_answers_the_signal(servers, tmp_path):
    status, said = run_script(
        servers,
        HF,
        tmp_path,
        hugging(
            "from common import _wait_until_seen; os.kill(os.getpid(), signal.SIGTERM); "
            "_wait_until_seen()",
            "save_steps=2, enable_jit_checkpoint=True",
        ),
    )
    assert status == 75, said
    assert "`enable_jit_checkpoint` is switched off" in said
    assert "(`save_strategy`) are switched off" in said
    assert "Handing over at step 4 of 8" in said
    assert not list(tmp_path.glob("out/checkpoint-*"))


def test_status_has_the_loss_of_an_hf_training_that_logs_none_itself(servers, tmp_path):
    status, said = run_script(
        servers, HF, tmp_path, hugging("pass", "gradient_accumulation_steps=2")
    )
    assert status == 0, said
    (stage,) = describe_run(RunFolder(tmp_path / "runs/it"), now=0.0)["stages"]
    assert isinstance(stage["loss"], float) and 0 < stage["loss"] < 100


def test_hf_saves_models_only_where_the_best_one_is_wanted(servers, tmp_path):
    more = "save_steps=4, eval_steps=4, eval_strategy='steps', load_best_model_at_end=True"
    text = hugging(more=more).replace(
        "train_dataset=Noisy()", "train_dataset=Noisy(), eval_dataset=Noisy(8)"
    )
    status, said = run_script(servers, HF, tmp_path, text)
    assert status == 0, said
    names = {path.name for path in (tmp_path / "out/checkpoint-4").iterdir()}
    assert "model.safetensors" in names and "optimizer.pt" not in names
    assert "`save_only_model`" in said


def test_an_end_of_an_hf_training_that_fails_is_written_down_and_gives_signals_back(
    servers, tmp_path
):
    asks = """
before = signal.getsignal(signal.SIGTERM)
try:
    trainer.train()
finally:
    print("given back:", signal.getsignal(signal.SIGTERM) is before)
"""
    raises = json.dumps([{"at": "finish.begin", "do": "raise"}])
    text = hugging().replace("trainer.train()", asks)
    status, said = run_script(servers, HF, tmp_path, text, TASUKI_FAILPOINTS=raises)
    assert status == 1 and "given back: True" in said, said
    (end,) = (tmp_path / "runs/it/claims").glob("*/end.json")
    assert json.loads(end.read_text())["ending"] == "failed", said
    status, said = run_script(servers, HF, tmp_path, text)
    assert status == 0 and (tmp_path / "runs/it/training_complete.marker").exists(), said


def test_hf_is_told_that_a_checkpoint_of_its_own_is_not_what_is_resumed(servers, tmp_path):
    status, said = run_script(servers, HF, tmp_path, hugging(train="'out/checkpoint-4'"))
    assert status == 1 and "tasuki goes on from its own checkpoints" in said, said
    assert not (tmp_path / "runs").exists()


_STRIKE = (
    "from common import _wait_until_seen; "
    "os.environ.get('STRIKE') and (os.kill(os.getpid(), signal.SIGTERM), _wait_until_seen())"
)


def test_hf_with_ignore_data_skip_repeats_no_data_after_a_handover_and_is_told_so(
    servers, tmp_path
):
    text, weights = hugging(_STRIKE, "ignore_data_skip=True"), []
    for name in ("whole", "struck"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "struck":
            status, said = run_script(servers, HF, folder, text, STRIKE="yes")
            assert status == 75 and "`ignore_data_skip` is switched off" in said, said
        status, said = run_script(servers, HF, folder, text)
        assert status == 0, said
        weights += [p.read_bytes() for p in folder.glob("runs/it/stages/*/weights.safetensors")]
    assert len(weights) == 2 and weights[0] == weights[1]


def test_a_stream_without_a_length_is_refused_by_hf_in_words(servers, tmp_path):
    text = """
from torch.utils.data import IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        return (Noisy()[i] for i in range(44))
"""
    text = (
        hugging()
        .replace("class At", text + "\nclass At")
        .replace("train_dataset=Noisy()", "train_dataset=Stream()")
    )
    status, said = run_script(servers, HF, tmp_path, text)
    assert status == 1 and "in which no position can be found again" in said, said
    assert "hint: give it one DataLoader with a length" in said and "Traceback" not in said, said


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", [light(), hugging()], ids=["lightning", "hf"])
def test_tasuki_run_supervises_a_framework_and_the_verbs_show_it(tmp_path, text):
    """Preempted by its supervisor, gone on with, and then complete, by the same command."""
    lines = f"import sys\nsys.path.insert(0, {str(FRAMEWORKS)!r})\n"
    kill = "os.path.exists('struck') or (open('struck', 'w').close(), os.kill(os.getppid(), 15))"
    text = text.replace('"runs/it"', "None").replace("pass", f"{kill}, __import__('time').sleep(5)")
    (tmp_path / "train.py").write_text(lines + text)
    environment = {**os.environ, "TASUKI_SITE": ""}
    first = subprocess.run(
        [TASUKI, "run", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    if first.returncode == 75:
        first = subprocess.run(
            [TASUKI, "run", "--", sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=140,
            check=False,
        )
    assert first.returncode == 0, first.stdout + first.stderr
    assert (run / "training_complete.marker").exists()
    logs = subprocess.run(
        [TASUKI, "logs", run.name], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "Handing over at step" in logs and "Resuming from epoch" in logs
    status = json.loads(
        subprocess.run(
            [TASUKI, "status", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
    )
    (told,) = status["runs"]
    assert told["state"] == "complete" and told["attempts"] == 2


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["light.py", "hugging.py"])
def test_under_torchrun_all_ranks_stop_at_the_same_step_and_go_on(tmp_path, script):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += [str(FRAMEWORKS / script), "runs/it"]
    environment = {**os.environ, "TASUKI_SITE": "", "OMP_NUM_THREADS": "1", "EPOCHS": "3"}
    found = []
    for strike in ("5:15", ""):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment | {"STRIKE": strike},
            capture_output=True,
            text=True,
            timeout=140,
            check=False,
        )
        found.append(done.stdout + done.stderr)
        assert (done.returncode == 0) == (strike == ""), found[-1]
    assert "Handing over at step" in found[0] and "Resuming from epoch" in found[1]
    assert (tmp_path / "runs/it/training_complete.marker").exists()
