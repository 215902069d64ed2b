"""The first examples of docs/own_loop.md and docs/adapters.md do what the pages say."""

from __future__ import annotations

import re

import pytest
from tests.adapters.subjects import HF, LIGHTNING, SMALL, Subject, make_script
from tests.adapters.test_frameworks import ROOT


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


def test_the_example_of_the_page_of_ones_own_loop_trains_to_its_end_without_a_warning(
    warm, tmp_path
):
    page = (ROOT / "docs/own_loop.md").read_text()
    block, *_ = re.findall(r"```python\n(.*?)```", page, re.S)
    sched = "sched = torch.optim.lr_scheduler.StepLR(opt, 9)\n"
    script = make_script(tmp_path / "p", Subject("s", SMALL + sched + block, 30))
    assert script.attempt(warm) == [0], script.said()
    assert script.run.is_complete() and "WARNING" not in script.said(), script.said()
