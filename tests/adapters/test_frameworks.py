"""Lightning and HF's Trainer hold the contract; and what the adapters do to a framework around its
training: versions, handlers, saves, refusals."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.subjects import ADAPTERS, FRAMEWORKS, HF, LIGHTNING, make_script
from tests.adapters.test_contract import check_contract, of
from tests.harness.samples import check_samples

from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.commands.status import describe_run
from tasuki.errors import EXIT_DONE, EXIT_FAILED, UsageError
from tasuki.integrations import versions
from tasuki.integrations.versions import check_version
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.views.status import show_status

ROOT = Path(__file__).resolve().parents[2]
TASUKI = str(Path(sys.executable).parent / "tasuki")


# -- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tested", "found"), [(versions.LIGHTNING, "2.7.0rc1"), (versions.HF, "5.30.1")]
)
def test_another_version_of_the_series_is_taken_with_a_warning_that_names_both(tested, found):
    told = check_version(tested, found)
    assert told is not None and told.startswith("WARNING: ")
    assert found in told and tested.words in told
    known = {versions.LIGHTNING: "2.6.6", versions.HF: "5.23.0"}[tested]
    assert check_version(tested, known) is None


@pytest.mark.parametrize(
    ("tested", "found"),
    [
        (versions.LIGHTNING, "2.5.9"),
        (versions.LIGHTNING, "3.0.0"),
        (versions.HF, "4.57.1"),
        (versions.HF, "unknown"),
    ],
)
def test_a_version_outside_of_the_series_is_refused_with_what_to_install(tested, found):
    with pytest.raises(UsageError) as refused:
        check_version(tested, found)
    assert found in refused.value.message
    assert f"tasuki[{tested.extra}]" in refused.value.hint


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [(LIGHTNING, "lightning", "lightning"), (HF, "transformers", "hf")],
)
def test_an_absent_framework_names_the_extra(monkeypatch, module, package, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == package else find(name, *a)
    )
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UsageError) as absent:
        importlib.import_module(module)
    assert absent.value.message == f"{package} is not installed"
    assert absent.value.hint == f'pip install "tasuki[{extra}]"'


# -- the contract -------------------------------------------------------------------------------


@of(*ADAPTERS)
def test_a_training_of_a_framework_that_is_preempted_and_killed_ends_as_if_it_had_not_been(
    servers, tmp_path, undisturbed, subject
):
    """Optimizer, schedule, counters, metrics and random numbers as the framework itself has them at
    its end; with accumulation, and validations in the middle of epochs."""
    script = make_script(tmp_path / "p", subject)
    check_contract(servers, script, undisturbed(subject))
    (stage,) = check_samples(script.run).values()
    assert stage["status"] == "verified", stage


@pytest.mark.parametrize(("framework", "number"), [(LIGHTNING, 0), (HF, 1)])
def test_an_example_of_the_page_trains_to_its_end_and_is_complete(
    servers, tmp_path, framework, number
):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adapters.md").read_text(), re.S)
    assert len(blocks) == 2
    (tmp_path / "train.py").write_text(blocks[number])
    log = tmp_path / "log"
    environment = {"TASUKI_SITE": "", "CUDA_VISIBLE_DEVICES": ""}
    script = servers[framework].start_script(tmp_path / "train.py", log=log, **environment)
    assert script.wait() == 0, log.read_text()
    assert (tmp_path / "runs/train/training_complete.marker").exists()
    assert (tmp_path / "runs/train/stages/train/weights.safetensors").exists()


# -- Lightning ----------------------------------------------------------------------------------


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
    text = light(
        "os.kill(os.getpid(), signal.SIGUSR1)", "plugins=[SLURMEnvironment(auto_requeue=True)],"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    status, said = run_script(servers, LIGHTNING, tmp_path, text, PATH=path, SLURM_JOB_NAME="bash")
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


NEWEST = """
import json
import lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from tasuki.integrations.lightning import TasukiCallback

losses = []


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch):
        loss = (self.net(batch[0]) ** 2).mean()
        losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(
    max_epochs=3, accumulate_grad_batches=3, accelerator="cpu", enable_checkpointing=False,
    callbacks=[TasukiCallback(log_every=5)], **quiet,
)
trainer.fit(Module(), DataLoader(TensorDataset(torch.randn(48, 3)), 4))
json.dump(losses, open("losses.json", "w"))
"""


def test_a_line_of_lightning_has_the_loss_of_its_own_step(servers, tmp_path):
    """As the module returned it, though Lightning divides it by the batches of a step."""
    script, parts = tmp_path / "train.py", 3
    script.write_text(NEWEST)
    started = servers[LIGHTNING].start_script(script, log=tmp_path / "log", TASUKI_SITE="")
    assert started.wait() == EXIT_DONE, (tmp_path / "log").read_text()
    losses = json.loads((tmp_path / "losses.json").read_text())
    rows = {row["step"]: row["loss"] for row in read_metrics(RunFolder(tmp_path / "runs/train"))}
    assert rows == {step: pytest.approx(losses[step * parts - 1]) for step in (5, 10, 12)}


# -- HF's Trainer -------------------------------------------------------------------------------

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


def test_hf_neither_saves_nor_answers_the_signal_by_itself_and_repeats_no_data_after_a_handover(
    servers, tmp_path
):
    more = "save_steps=2, enable_jit_checkpoint=True, ignore_data_skip=True"
    strike = "os.environ.get('STRIKE') and os.kill(os.getpid(), signal.SIGTERM)"
    weights = []
    for name in ("whole", "struck"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "struck":
            text = hugging(strike, more)
            status, said = run_script(servers, HF, folder, text, STRIKE="yes")
            assert status == 75 and "Handing over at step 4 of 8" in said, said
            for switch in ("`enable_jit_checkpoint` is", "(`save_strategy`) are"):
                assert f"{switch} switched off" in said, said
            assert "`ignore_data_skip` is switched off" in said, said
        status, said = run_script(servers, HF, folder, hugging(strike, more))
        assert status == 0, said
        assert not list(folder.glob("out/checkpoint-*"))
        weights += [p.read_bytes() for p in folder.glob("runs/it/stages/*/weights.safetensors")]
    assert len(weights) == 2 and weights[0] == weights[1]
    # HF has logged no loss in so few steps: tasuki knows it.
    (stage,) = describe_run(RunFolder(tmp_path / "whole/runs/it"), now=0.0)["stages"]
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


# -- several trainings in one script -----------------------------------------------------------

LIGHT_AGAIN = """
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[TasukiCallback("{name}")],
                     enable_model_summary=False, **quiet)
trainer.fit(Module(), DataLoader(Noisy(), 4, shuffle=True))
print("through")
"""


@pytest.mark.parametrize(
    ("framework", "text", "hint"),
    [
        (LIGHTNING, light() + LIGHT_AGAIN.format(name="runs/it"), "TasukiCallback('other')"),
        (HF, hugging() + "\ntrainer.train()\nprint('through')\n", "Trainer(…, run='other')"),
    ],
    ids=["lightning", "hf"],
)
def test_a_second_training_of_a_framework_by_the_same_name_is_an_error_that_names_its_argument(
    servers, tmp_path, framework, text, hint
):
    status, said = run_script(servers, framework, tmp_path, text)
    assert status == EXIT_FAILED and "this script has trained it already" in said, said
    assert f"hint: a second training is another run: {hint}" in said, said


def test_a_second_fit_of_lightning_by_another_name_trains_and_a_restart_passes_over_the_first(
    servers, tmp_path
):
    first, second = light(), LIGHT_AGAIN.format(name="runs/second")
    begin, fit = first[: first.index("trainer.fit")], first[first.index("trainer.fit") :]
    begin = begin.replace("import lightning as pl,", "import lightning as pl, tasuki,")
    text = begin + "if not tasuki.is_complete('runs/it'): " + fit + second
    status, said = run_script(servers, LIGHTNING, tmp_path, text)
    assert status == 0 and "WARNING: run" not in said and "through" in said, said
    (tmp_path / "runs/second/training_complete.marker").unlink()
    status, said = run_script(servers, LIGHTNING, tmp_path, text)
    assert status == 0 and "through" in said, said
    assert (tmp_path / "runs/second/training_complete.marker").exists()


# -- refusals -----------------------------------------------------------------------------------

STREAM = """
from torch.utils.data import IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        return (Noisy()[i] for i in range(44))

class At"""


@pytest.mark.parametrize(
    ("framework", "text", "words"),
    [
        (LIGHTNING, light(more="overfit_batches=2,"), "error: `overfit_batches`"),
        (
            HF,
            hugging(train="'out/checkpoint-4'"),
            "tasuki goes on from its own checkpoints",
        ),
        (
            HF,
            hugging().replace("class At", STREAM).replace("dataset=Noisy()", "dataset=Stream()"),
            "in which no position can be found again",
        ),
    ],
    ids=["overfit_batches", "a checkpoint of HF", "a stream"],
)
def test_what_cannot_be_resumed_is_refused_in_words(servers, tmp_path, framework, text, words):
    status, said = run_script(servers, framework, tmp_path, text)
    assert status == 1 and words in said and "hint:" in said, said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("runs/it/checkpoints/*"))


# -- under others -------------------------------------------------------------------------------


def type_in(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "TASUKI_SITE": "", **environment},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", [light(), hugging()], ids=["lightning", "hf"])
def test_tasuki_run_supervises_a_framework_and_the_verbs_show_it(tmp_path, text):
    """Preempted by its supervisor, gone on with, and then complete, by the same command."""
    lines = f"import sys\nsys.path.insert(0, {str(FRAMEWORKS)!r})\n"
    kill = "os.path.exists('struck') or (open('struck', 'w').close(), os.kill(os.getppid(), 15))"
    text = text.replace('"runs/it"', "None").replace("pass", f"{kill}, __import__('time').sleep(5)")
    (tmp_path / "train.py").write_text(lines + text)
    done = type_in(tmp_path, TASUKI, "run", "--", sys.executable, "train.py")
    if done.returncode == 75:
        done = type_in(tmp_path, TASUKI, "run", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    assert (run / "training_complete.marker").exists()
    logs = type_in(tmp_path, TASUKI, "logs", run.name).stdout
    assert "Handing over at step" in logs and "Resuming from epoch" in logs
    (told,) = json.loads(type_in(tmp_path, TASUKI, "status", "--json").stdout)["runs"]
    assert told["state"] == "complete" and told["attempts"] == 2
