"""`tasuki tune`: a gain is claimed only where every round shows it, and winners are written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner

import tasuki
from tasuki.cli.tune import command
from tasuki.commands.tune import TuneReport, TuneRow, choose_winners, judge
from tasuki.errors import SpecError, UsageError
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedLoader, ResolvedStage
from tasuki.train import tune
from tasuki.train.tune import Trainer, compare, measure, open_setup

SPEC = """\
# Kept as it is.
recipe: "tuned_recipes:Costly"   # quoted
cluster: {gpu: cpu, cpus: 1}
experiments:
  e:
    stages:
      - name: a          # the first
        data: d
        epochs: 4000
        effective_batch: 8
        exact: true      # for bitwise equal runs

      # the second
      - {name: b, data: d, epochs: 1}
      - {name: own, command: [python, x.py], expect: {wall: 1h}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).parent / "tuned_recipes.py", tmp_path)
    spec = tmp_path / "tasuki.yaml"
    spec.write_text(SPEC)
    return spec


@pytest.fixture
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trainer expects a process of its own, and tests expect rounds also on a busy machine."""
    monkeypatch.setattr(tune, "_MIN_EXTRA_S", 600.0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def judge_ratios(ratios: list[float], **other: Any) -> TuneRow:
    figures = {"step_s": 0.5, "start_s": 1.0, "loss_difference": 0.0, "peak_memory_bytes": None}
    row = {"changes": {"compile": True}, "ratios": ratios, **figures}
    default = {"step_s": 0.6, "start_s": 1.0, "total_steps": 100}
    return judge({**row, **other}, default)


@pytest.mark.parametrize(
    ("ratios", "other", "status"),
    [
        ([1.04, 1.2, 1.5], {}, "gain"),
        ([1.02, 1.3, 1.5], {}, "unclear"),
        ([0.99, 1.0, 1.02], {}, "no_gain"),
        ([0.99, 1.0, 1.04], {}, "unclear"),
        ([1.0] * 3 + [1.2] * 37, {}, "gain"),  # a few disturbed rounds do not decide
        ([1.0] * 15 + [1.2] * 25, {}, "unclear"),
        ([0.5, 0.8, 0.9], {}, "slower"),
        ([1.2, 1.2], {"loss_difference": -0.03}, "changes_loss"),
        ([1.2, 1.2], {"start_s": 10.9}, "gain"),
        ([1.2, 1.2], {"start_s": 11.2}, "slow_start"),  # to save 10 s
        ([], {"reason": "out of memory"}, "not_measured"),
    ],
)
def test_a_gain_is_claimed_only_where_the_rounds_leave_no_doubt(
    ratios: list[float], other: dict[str, Any], status: str
) -> None:
    assert judge_ratios(ratios, **other).status == status


def test_a_winner_is_the_fastest_of_its_setting_and_exact_only_by_name() -> None:
    def gain(setting: str, value: Any, speedup: float) -> TuneRow:
        return TuneRow(changes={setting: value}, status="gain", speedup=speedup)

    rows = [
        gain("precision", "fp16", 1.5),
        gain("precision", "bf16", 1.4),
        gain("exact", False, 1.2),
    ]
    assert choose_winners(rows, []) == {"precision": "fp16"}
    assert choose_winners(rows, ["exact"]) == {"precision": "fp16", "exact": False}


def test_turns_change_no_loss_and_settings_of_the_process_hold_for_one_turn(
    _as_before: None,
) -> None:
    recipe = "tests.commands.tuned_recipes:Costly"
    stage = ResolvedStage(name="a", recipe=recipe, data="d", params={"products": 1})
    setup = open_setup(stage, Path.cwd(), 1, 1, "cpu")
    alone = Trainer(stage, setup)
    alone.run(9)
    one, other = Trainer(stage, setup), Trainer(msgspec.structs.replace(stage, exact=False), setup)
    for trainer, is_exact in ((one, True), (other, False)) * 3:
        trainer.run(3)
        assert torch.are_deterministic_algorithms_enabled() is is_exact
    assert one.first_loss == other.first_loss == alone.first_loss
    assert one.losses[-1] != alone.losses[-1]  # the mean of 3 steps, and of 9


def rows_of(recipe: str, only: list[str], cpus: int = 1, **keys: Any) -> dict[str, dict[str, Any]]:
    name = f"tests.commands.tuned_recipes:{recipe}"
    params = {"products": 1}
    stage = ResolvedStage(name="a", recipe=name, data="d", params=params, **keys)
    found = measure(stage, Path.cwd(), 1, cpus, "cpu", only, {}, 0.5, lambda _: None)
    return {str(row["changes"]): row for row in found["rows"]}


def test_a_setting_that_fails_is_a_row_with_its_reason_and_one_that_does_not_apply_is_none(
    _as_before: None,
) -> None:
    rows = rows_of("Costly", ["precision", "offload", "gradient_checkpointing"])
    (row,) = rows.values()  # the others need a GPU, or a model with repeated blocks
    assert "no bf16 here (at tuned_recipes.py:" in row["reason"] and "ratios" not in row


def test_a_compiler_that_fails_is_a_row_with_its_reason(
    _as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCompilerError(Exception):
        __module__ = "torch._dynamo.exc"

    def fail(batch: Any) -> Any:
        raise NoCompilerError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    rows = rows_of("Costly", ["compile"])
    assert "no C++ compiler" in rows["{'compile': True}"]["reason"]


def test_a_loss_that_is_not_finite_is_a_row_with_its_reason(_as_before: None) -> None:
    rows = rows_of("Diverging", ["micro_batch"], effective_batch=16, micro_batch=8)
    assert "the loss is nan at step 1" in rows["{'micro_batch': 4}"]["reason"]
    assert len(rows["{'micro_batch': 16}"]["ratios"]) >= 5


def test_a_given_accumulation_follows_the_micro_batch(_as_before: None) -> None:
    keys = {"effective_batch": 8, "micro_batch": 4, "accumulation": 2}
    rows = rows_of("Costly", ["micro_batch"], **keys)
    assert list(rows) == [
        "{'micro_batch': 2, 'accumulation': 4}",
        "{'micro_batch': 8, 'accumulation': 1}",
    ]
    assert all(len(row["ratios"]) >= 5 for row in rows.values())


def test_loader_workers_are_measured_after_what_they_fetched_in_advance(_as_before: None) -> None:
    loader = ResolvedLoader(workers=1, prefetch=3)
    rows = rows_of("Costly", ["loader.workers"], cpus=2, loader=loader)
    assert list(rows) == ["{'loader.workers': 0}"]
    assert len(rows["{'loader.workers': 0}"]["ratios"]) >= 5


def test_a_custom_loader_is_measured_on_its_first_batches(_as_before: None) -> None:
    rows = rows_of("CustomLoader", ["exact", "micro_batch", "loader.workers"])
    assert list(rows) == ["{'exact': False}"]  # the loader decides about the others
    assert len(rows["{'exact': False}"]["ratios"]) >= 5


def test_steps_that_are_too_slow_for_the_time_budget_name_the_option(
    _as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_MIN_EXTRA_S", 0.0)
    name = "tests.commands.tuned_recipes:Costly"
    stage = ResolvedStage(name="a", recipe=name, data="d")
    found = measure(stage, Path.cwd(), 1, 1, "cpu", ["exact"], {}, 0.001, lambda _: None)
    (row,) = found["rows"]
    assert "5 rounds need" in row["reason"] and "--time-budget" in row["reason"]


@pytest.mark.long
def test_a_planted_gain_is_found_and_written_and_the_spec_still_loads(project: Path) -> None:
    project.chmod(0o640)
    overrides = ["params.planted=1.0"]
    report = tasuki.tune(project, only=["exact"], time_budget="4s", overrides=overrides, write=True)
    assert report.winners == {"exact": False} and report.written_to == str(project)
    assert report.together is not None and report.together.status == "gain"
    assert project.read_text() == SPEC.replace("exact: true ", "exact: false")
    assert project.stat().st_mode & 0o777 == 0o640
    assert load_spec(str(project), environ=os.environ).experiments[0].stages[0].exact is False


def test_json_is_the_report(project: Path) -> None:
    words = [str(project), "--only", "micro_batch", "--time-budget", "1s", "--json"]
    found = CliRunner().invoke(command, words, standalone_mode=False)
    report = msgspec.json.decode(found.stdout, type=TuneReport, strict=True)
    assert set(json.loads(found.stdout)) == set(TuneReport.__struct_fields__)
    assert [row.changes for row in report.rows] == [{"micro_batch": 4}]
    assert project.read_text() == SPEC


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ({"only": ["precison"]}, "'precison' is not a setting", "did you mean 'precision'"),
        ({"only": ["xyz"]}, "'xyz' is not a setting", "settings: precision, compile"),
        ({"stage": "own"}, "runs a command", "with a `recipe`"),
        ({"overrides": ["cluster.gpu=h100"]}, "no GPU", "srun"),
        ({"batch_size": True, "only": ["exact"]}, "measures no settings", "leave the other"),
        ({"batch_size": True}, "no largest batch size", "TASUKI_MEMORY_CAP=2G"),
        ({"time_budget": "5"}, "is not a duration", "8h"),
    ],
)
def test_a_mistake_is_an_error_with_what_to_do(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: dict[str, Any],
    message: str,
    hint: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match=message) as error:
        tasuki.tune(project, **words)
    assert hint in error.value.hint


def test_write_is_refused_before_anything_is_measured(project: Path) -> None:
    project.write_text(
        "recipe: r:R\nexperiments: {e: {data: d, epochs: 1, each: {seed: [1, 2]}}}\n"
    )
    with pytest.raises(SpecError, match="not written out"):
        tasuki.tune(project, write=True)


@pytest.mark.long
def test_the_largest_micro_batch_is_found_printed_and_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASUKI_MEMORY_CAP", "30K")
    monkeypatch.chdir(project.parent)
    found = CliRunner().invoke(command, ["--batch-size", "--write"], standalone_mode=False)
    assert found.exception is None, found.output
    lines = found.stdout.splitlines()
    assert lines[1:4] == [
        "Batch size tuner found: 25",
        "Applied 50% safety factor: 25 × 0.5",
        "Final safe batch size: 8, a rank's whole share of a step",
    ]
    wanted = SPEC.replace(
        "      - name: a          # the first\n",
        "      - name: a          # the first\n        micro_batch: 8\n",
    )
    assert project.read_text() == wanted


class BusyMachine:
    """A trainer whose blocks another process disturbs: a third of them by up to their own time."""

    num_prefetched_steps = 0

    def __init__(self, step_s: float, random: Random) -> None:
        self.step_s, self._true_s, self._random = step_s, step_s, random

    def run(self, num_steps: int, *, lead_in: int) -> float:
        is_disturbed = self._random.random() < 0.3
        noise = self._random.lognormvariate(0.0, 0.1) + is_disturbed * self._random.random()
        return num_steps * self._true_s * noise


@pytest.mark.parametrize(("slower", "has_gain"), [(1.2, True), (1.0, False)])
def test_noise_hides_no_gain_of_20_percent_and_makes_none_in_20_of_20(
    slower: float, has_gain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_MAX_ROUNDS", 100)
    for seed in range(20):
        random = Random(seed)
        default: Any = BusyMachine(0.01 * slower, random)
        variant: Any = BusyMachine(0.01, random)
        row = judge_ratios(compare(default, variant, share_s=60.0, max_s=60.0))
        assert (row.status == "gain") is has_gain, (seed, row)
