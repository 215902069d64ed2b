"""What sinks are given: the rows that count, of all attempts and stages, while they are written."""

from __future__ import annotations

import json
import math

import pytest

from tasuki.loggers.sink import SinkRow
from tasuki.loggers.truth import News, Truth
from tasuki.runs.runs import RunFolder


class Files:
    """A run's files, as ranks write them."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        run.metrics.mkdir(parents=True)
        run.spec.write_text(json.dumps({"stages": [{"name": n} for n in ("one", "two")]}))

    def add(self, claim: int, *lines: dict) -> None:
        with (self.run.metrics / f"{claim}.jsonl").open("a") as file:
            file.writelines(json.dumps({"attempt": claim, **line}) + "\n" for line in lines)

    def finish(self, stage: str, steps: int) -> None:
        folder = self.run.stage(stage)
        folder.path.mkdir(parents=True)
        folder.metrics.write_text(json.dumps({"steps": steps, "epochs": 1.0, "samples": 8}))

    def evaluate(self, stage: str, **metrics: float) -> None:
        path = self.run.stage(stage).evaluation
        path.write_text(json.dumps({"metrics": metrics, "evaluated_at": "now"}))


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(RunFolder(tmp_path / "run"))


def resume(stage: str, step: int) -> dict:
    return {"resume": {"stage": stage, "step": step}}


def row(stage: str, step: int, split: str = "train", **values) -> dict:
    return {"stage": stage, "step": step, "split": split, "t": 1.0, **(values or {"loss": 1.0})}


def steps(news: News | None) -> tuple[bool, list[int]]:
    assert news is not None
    return news.begins, [row.step for row in news.rows]


def test_nothing_is_told_before_the_attempt_says_from_where_it_goes_on(files):
    files.add(1, resume("one", 0), row("one", 3), row("one", 6))
    truth = Truth(files.run, claim=2)
    assert truth.look() is None
    files.add(2, resume("one", 4))
    assert steps(truth.look()) == (True, [3])
    assert truth.look() is None
    files.add(2, row("one", 6), row("one", 9))
    assert steps(truth.look()) == (False, [6, 9])


def test_an_attempt_that_dies_before_it_goes_on_tells_what_there_is(files):
    files.add(1, resume("one", 0), row("one", 3))
    assert steps(Truth(files.run, claim=2).look(is_last=True)) == (True, [3])


def test_a_line_that_is_not_whole_yet_is_told_when_it_is(files):
    files.add(1, resume("one", 0))
    truth = Truth(files.run, claim=1)
    assert steps(truth.look()) == (True, [])
    with (files.run.metrics / "1.jsonl").open("a") as file:
        text = json.dumps(row("one", 3))
        file.write(text[:9])
        file.flush()
        assert truth.look() is None
        file.write(text[9:] + "\n")
    assert steps(truth.look()) == (False, [3])


def test_after_a_roll_back_everything_is_told_anew(files):
    files.add(1, resume("one", 0), row("one", 3), row("one", 6))
    truth = Truth(files.run, claim=1)
    truth.look()
    files.add(1, row("one", 9), resume("one", 4), row("one", 6, loss=2.0))
    news = truth.look()
    assert steps(news) == (True, [3, 6])
    assert news.rows[1].values == {"loss": 2.0}


def test_a_validation_made_up_for_with_the_same_result_is_not_told_twice(files):
    files.add(1, resume("one", 0), row("one", 4, "val"))
    truth = Truth(files.run, claim=2)
    files.add(2, resume("one", 4))
    assert steps(truth.look()) == (True, [4])
    files.add(2, row("one", 4, "val") | {"t": 7.0})
    assert truth.look() is None
    files.add(2, row("one", 4, "val", loss=9.0))
    assert steps(truth.look()) == (True, [4])


def test_stages_follow_each_other_and_a_later_ones_start_is_left_out(files):
    files.add(1, resume("one", 0), row("one", 0, "val"), row("one", 10))
    truth = Truth(files.run, claim=1)
    truth.look()
    files.finish("one", 10)
    files.evaluate("one", accuracy=0.5)
    files.add(1, resume("two", 0), row("two", 0, "val"), row("two", 5))
    news = truth.look()
    assert steps(news) == (False, [10, 15])
    assert news.rows[0].tagged() == {"Eval/accuracy": 0.5}
    files.finish("two", 10)
    files.evaluate("two", accuracy=0.7)
    assert steps(truth.look()) == (False, [20])
    later = Truth(files.run, claim=2)  # nothing is left to train
    assert steps(later.look()) == (True, [0, 10, 10, 15, 20])


def test_tags_are_those_that_the_documentation_promises():
    def tags(split: str, **values: float) -> list[str]:
        place = {"stage": "s", "stage_step": 1, "epoch": 0, "samples": 8, "attempt": 1}
        return list(SinkRow(step=1, time=0.0, split=split, values=values, **place).tagged())

    own = {"lr": 1.0, "samples_per_sec": 1.0, "tokens_per_sec": 1.0, "memory_allocated_gb": 1.0}
    assert tags("train", loss=1.0, **own) == [
        *("Loss/train", "LR", "Throughput/samples_per_sec", "Throughput/tokens_per_sec"),
        "Memory/allocated_gb",
    ]
    assert tags("train", top1=1.0, loss=1.0) == ["Top1/train", "Loss/train"]
    assert tags("train", loss=1.0, Loss=2.0) == ["Loss/train", "Loss/train_"]
    assert tags("val", loss=1.0, accuracy=1.0) == ["Loss/val", "Accuracy/val"]
    assert tags("eval", loss=1.0, mean_error=1.0) == ["Eval/loss", "Eval/mean_error"]


def test_words_for_nan_and_infinities_are_numbers_again(files):
    files.add(1, resume("one", 0), row("one", 3, loss="nan", best="-inf", note="text", flag=True))
    news = Truth(files.run, claim=1).look()
    assert set(news.rows[0].values) == {"loss", "best"}
    assert math.isnan(news.rows[0].values["loss"]) and news.rows[0].values["best"] == -math.inf
