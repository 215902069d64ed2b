"""What a script logs stands in lines of the step at which it was logged."""

from __future__ import annotations

import json

import pytest
from tests.adapters.subjects import LIGHTNING, Script, Subject, make_script
from tests.adapters.test_ends import BEGIN

from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder

pytestmark = pytest.mark.timeout(60)

VALIDATES = """
with tasuki.open_run(log_every=5, save="2 steps") as run:
    run.track(model=model, optimizer=opt)
    for epoch in run.epochs(4):
        for batch in run.steps(loader):
            step(batch)
            if run.step % 3 == 0:
                run.log(inside=run.step, split="val")
        run.log(epoch_loss=epoch, split="val")
        run.log(accuracy=epoch, split="val")
        run.log(robust=epoch, split="noisy")
    run.log(accuracy=9, split="test")
"""


def rows_of(script: Script, split: str) -> dict[int, dict]:
    return {row["step"]: row for row in read_metrics(script.run) if row["split"] == split}


def test_each_validation_has_a_line_at_its_step_whatever_log_every_says(warm, tmp_path):
    script, again = (
        make_script(tmp_path / name, Subject("s", BEGIN + VALIDATES, 12)) for name in ("p", "q")
    )
    assert script.attempt(warm) == [EXIT_DONE], script.said()
    val = rows_of(script, "val")
    assert list(val) == [1, 3, 4, 6, 7, 9, 10, 12]
    assert [val[step]["inside"] for step in (1, 4, 7, 10)] == [0, 3, 6, 9]
    for epoch in range(4):
        row = val[3 * epoch + 3]
        assert (row["epoch_loss"], row["accuracy"], row["samples"]) == (
            epoch,
            epoch,
            24 * epoch + 24,
        )
    assert list(rows_of(script, "noisy")) == [3, 6, 9, 12]
    assert rows_of(script, "test")[12]["accuracy"] == 9
    assert list(rows_of(script, "train")) == [5, 10, 12]
    for count in (3, 4):
        strike = {"at": "step.done", "do": "term", "count": count, "seconds": 0.3}
        assert again.attempt(warm, strike) == [EXIT_RESUME_ME], again.said()
    assert again.attempt(warm) == [EXIT_DONE], again.said()
    assert again.differences(script) == []


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
    max_epochs=1, accelerator="cpu", enable_checkpointing=False,
    callbacks=[TasukiCallback(log_every=5)], **quiet,
)
trainer.fit(Module(), DataLoader(TensorDataset(torch.randn(48, 3)), 4))
json.dump(losses, open("losses.json", "w"))
"""


@pytest.mark.parametrize("parts", [1, 3])
def test_a_line_of_lightning_has_the_loss_of_its_own_step(servers, tmp_path, parts):
    """As the module returned it, also where Lightning divides it by the batches of a step."""
    script = tmp_path / "train.py"
    script.write_text(
        NEWEST.replace("max_epochs=1", f"max_epochs={parts}, accumulate_grad_batches={parts}")
    )
    started = servers[LIGHTNING].start_script(script, log=tmp_path / "log", TASUKI_SITE="")
    assert started.wait() == EXIT_DONE, (tmp_path / "log").read_text()
    losses = json.loads((tmp_path / "losses.json").read_text())
    rows = {row["step"]: row["loss"] for row in read_metrics(RunFolder(tmp_path / "runs/train"))}
    assert rows == {step: pytest.approx(losses[step * parts - 1]) for step in (5, 10, 12)}
