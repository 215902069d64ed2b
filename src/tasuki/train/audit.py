"""`python -m tasuki.train.audit FD`: were samples used exactly once per epoch, for `tasuki audit`.

A child process (answers.py) that writes nothing. Each stage's order is built anew from the run's
own code, spec and data, gone through from the beginning (data/recount.py), and compared with what
the attempts wrote down at every commit (commits.py). Records add up over attempts, so the last one
proves all steps before it; those in between tell where a fault lies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasuki.answers import Told, answer
from tasuki.data.fetch import seed_everything
from tasuki.data.order import Order
from tasuki.data.plain import Gathered, PlainOrder
from tasuki.data.recount import Epoch, Recount, recount
from tasuki.errors import TasukiError
from tasuki.runs.atomic import read_json_or_none, shaped
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.commits import Commit, StageRecord, read_records
from tasuki.train.data import prepare_data
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe
from tasuki.train.task import read_experiment

FOREIGN = "not known: the recipe brings its own loader"
SCRIPT = "not known: the script goes through its data in an order of its own"
_SHOWN = 20
"""Names in one list of the answer."""


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    run = RunFolder(Path(order["run"]))
    experiment, _ = read_experiment(run)
    records = read_records(run, [stage.name for stage in experiment.stages])
    paths = [Path(path) for path in order["paths"]]
    found = []
    for stage in experiment.stages:
        if stage.name not in order["stages"]:
            continue
        record = records.get(stage.name)
        if record is None or max(commit.step for commit in record.commits) == 0:
            found.append({"stage": stage.name, "verdict": "not begun", "reason": None})
        else:
            found.append(_audit(run, stage, record, paths, told))
    return {"stages": found}


def _audit(
    run: RunFolder, stage: ResolvedStage, record: StageRecord, paths: list[Path], told: Told
) -> dict[str, Any]:
    """One stage. Data that cannot be opened any more leave it unproven, with their reason."""
    facts = {"stage": stage.name, **_of_record(record)}
    told.begin(f"opening the data of {stage.name}")
    try:
        order = _build_order(run, stage, record, paths)
    except TasukiError as error:
        words = f"the order cannot be built again: {error.message}"
        return facts | {"verdict": "not proven", "reason": words}
    if order is None:
        words = FOREIGN if stage.recipe is not None else SCRIPT
        return facts | {"verdict": "not known", "reason": words}
    total = order.total_steps(stage.length.unit, stage.length.count)
    if stage.recipe is None:
        total = int(record.facts["total_steps"])
    ends = [min(commit.step, total) for commit in record.commits]
    samples = order.samples_before(max(ends))
    counted = recount(order, ends, lambda n: told.progress(f"auditing {stage.name}", n, samples))
    judge = _Judge(order, record, counted, total)
    missing = _missing(run.stage(stage.name).metrics, record)
    return facts | judge.verdict(missing)


def _build_order(
    run: RunFolder, stage: ResolvedStage, record: StageRecord, paths: list[Path]
) -> Order | Gathered | None:
    """As a rank does it (prepare.py), under the same random numbers; None: a loader of its own."""
    if stage.recipe is None:  # a loop of the script's own, which says so in its checkpoints
        told = record.facts.get("order")
        return PlainOrder.from_json(told).steps() if told else None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=paths)
    world = record.worlds[0] if record.worlds else 1
    data = prepare_data(recipe, stage, rank=0, world=world, index=run.path)
    return data.order if isinstance(data.order, Order) else None


def _of_record(record: StageRecord) -> dict[str, Any]:
    """What is known without the data."""
    aside = {
        key: [str(commit) for commit in record.commits if commit.place == place][:_SHOWN]
        for key, place in (("rolled_back", "rolled back"), ("late", "late"))
    }
    without = [str(c) for c in record.commits if not c.records and c.step > 0]
    return {
        "steps": record.head.step if record.head is not None else 0,
        "attempts": record.attempts,
        "redone_steps": record.redone_steps,
        "left_out_steps": record.left_out_steps,
        "commits": len(record.commits),
        **aside,
        "unrecorded": without[:_SHOWN],
        "unreadable": list(record.unreadable)[:_SHOWN],
    }


def _missing(metrics: Path, record: StageRecord) -> list[str]:
    """Without these records nothing is proven, in words."""
    head = record.head
    if head is None:
        return ["no commit of this stage is on the way to the newest checkpoint"]
    told = read_json_or_none(metrics)
    if told is not None:
        with shaped(metrics):
            steps = int(told["steps"])
        if head.step != steps:
            return [f"the stage ended with step {steps:,}, but nothing is on record after {head}"]
    if head.step > 0 and not head.records:
        return [f"nothing is on record of the samples used up to {head}, the last commit"]
    return []


class _Judge:
    """Compares what was written down with what the order says."""

    def __init__(
        self, order: Order | Gathered, record: StageRecord, counted: Recount, total: int
    ) -> None:
        self._order, self._record = order, record
        self._counted, self._total = counted, total
        self._by_name = {str(commit): commit for commit in record.commits}
        self._checked = [commit for commit in record.commits if commit.records]
        self._wrong = [commit for commit in self._checked if not self._is_right(commit)]

    def verdict(self, missing: list[str]) -> dict[str, Any]:
        epochs = self._epochs()
        reasons = [
            *(self._in_words(commit) for commit in self._wrong[:1]),
            *missing,
            *(_unequal(epoch) for epoch in epochs if not epoch.is_right),
        ]
        return {
            "verdict": "not proven" if reasons else "proven",
            "reason": "; ".join(reasons) or None,
            "total_steps": self._total,
            "samples_per_epoch": self._order.samples_per_epoch,
            **self._usage(epochs),
            "checked": len(self._checked),
            "matching": len(self._checked) - len(self._wrong),
            "mismatches": [self._mismatch(commit) for commit in self._wrong[:_SHOWN]],
        }

    def _is_right(self, commit: Commit) -> bool:
        return commit.records == [self._counted.used.get(commit.step)]

    def _head_step(self) -> int:
        head = self._record.head
        return min(head.step, self._total) if head is not None else 0

    def _epochs(self) -> list[Epoch]:
        """Up to the last commit that counts."""
        num = -(-self._head_step() // self._order.steps_per_epoch)
        return list(self._counted.epochs[:num])

    def _usage(self, epochs: list[Epoch]) -> dict[str, Any]:
        """Over all epochs; unknown where the records say something else."""
        whole, _ = divmod(self._head_step(), self._order.steps_per_epoch)
        repeated = sum(epoch.repeated + epoch.foreign for epoch in epochs)
        skipped = sum(epoch.skipped for epoch in epochs[:whole])
        used = self._order.samples_before(self._head_step())
        is_known = not self._wrong
        return {
            "epochs_complete": whole,
            "samples": used if is_known else None,
            "repeated": repeated if is_known else None,
            "skipped": skipped if is_known else None,
        }

    def _mismatch(self, commit: Commit) -> dict[str, Any]:
        expected = self._counted.used.get(commit.step)
        after = self._last_right(commit)
        return {
            "checkpoint": str(commit),
            "place": commit.place,
            "attempt": commit.name.claim,
            "step": commit.step,
            "after_checkpoint": str(after) if after is not None else None,
            "after_step": after.step if after is not None else 0,
            "recorded": [used.to_json() for used in commit.records],
            "expected": expected.to_json() if expected is not None else None,
        }

    def _last_right(self, commit: Commit) -> Commit | None:
        """The one before it at which all was well."""
        name = self._record.before.get(str(commit))
        while name in self._by_name:
            earlier = self._by_name[name]
            if earlier.step == 0 or (earlier.records and self._is_right(earlier)):
                return earlier
            name = self._record.before.get(name)
        return None

    def _in_words(self, commit: Commit) -> str:
        if commit.step > self._total:
            return f"{commit} is of step {commit.step:,}, but the stage has {self._total:,} steps"
        after = self._last_right(commit)
        first = after.name.claim if after is not None else 1
        step = after.step if after is not None else 0
        since = f"step {step:,} ({after})" if after is not None else "the stage's start"
        is_one = self._record.before.get(str(commit)) == (str(after) if after else None)
        attempts = f"attempt {commit.name.claim}"
        if not is_one and first != commit.name.claim:
            attempts = f"attempts {first} to {commit.name.claim}"
        words = f"{attempts} used other samples than the order says between {since} and step "
        words += f"{commit.step:,} ({commit})"
        if len(commit.records) > 1:
            return f"event and manifest of {commit} tell different things about its samples"
        recorded, expected = commit.records[0].count, self._counted.used[commit.step].count
        if recorded != expected:
            words += f": {recorded:,} samples in all where there should be {expected:,}"
        if len(self._wrong) == sum(commit.step > 0 for commit in self._checked) > 1:
            words += " (every record differs: are these the data it was trained with?)"
        return words


def _unequal(epoch: Epoch) -> str:
    return (
        f"epoch {epoch.number} does not take every sample once: {epoch.repeated:,} repeated, "
        f"{epoch.skipped if epoch.is_whole else 0:,} skipped, {epoch.foreign:,} of no bucket"
    )


if __name__ == "__main__":
    answer(work)
