"""A recipe that keeps a diary of its steps, and what the events of a run say about its attempts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.harness.project import Project, make_project

CODE = '''
from torch.utils.data import DataLoader


class Late(Noisy):
    """Steps wait for their samples."""

    def __init__(self, n, seconds):
        super().__init__(n)
        self.seconds = seconds

    def __getitem__(self, i):
        if self.seconds:
            time.sleep(self.seconds)
        return super().__getitem__(i)


class Traced(Learner):
    """Writes down every training step it begins, in this run's folder, by attempt."""

    def __init__(
        self, samples=44, pause=0.0, fetch_for=0.0, loader="none", evaluate_for=0.0, **more
    ):
        is_late = "TASUKI_TEST_HURRY" in os.environ
        super().__init__(samples=samples, pause=0.0 if is_late else pause, **more)
        self.loader, self.evaluate_for = loader, evaluate_for
        self.fetch_for = 0.0 if is_late else fetch_for

    def build_dataset(self, source, split):
        if self.loader == "none" or split == "val":
            return Late(self.samples, self.fetch_for)
        made = DataLoader(Noisy(self.samples), batch_size=8, shuffle=True, num_workers=2)
        return Lazy(made) if self.loader == "lazy" else made

    def loss(self, model, batch):
        if model.training:
            name = f"{os.environ['TASUKI_RUN']}/diary.{os.environ['TASUKI_ATTEMPT']}"
            with open(name, "a") as diary:
                diary.write("x")
        return super().loss(model, batch)


class Evaluated(Traced):
    """Its second evaluation takes its time; or the first one ends itself, as if the job were
    preempted in the middle of it."""

    evaluations = 0

    def evaluate(self, model, dataset):
        self.evaluations += 1
        if self.evaluate_for:
            time.sleep(self.evaluate_for if self.evaluations == 2 else 0)
        elif os.environ["TASUKI_ATTEMPT"] == "1":
            os.killpg(os.getpgrp(), signal.SIGTERM)
            time.sleep(600)
        return {"loss": 1.0}


class Lazy:
    """Starts its workers with the first batch, not with the pass."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield batch
'''


@dataclass(frozen=True)
class Attempt:
    claim: int
    restored: int | None
    """The step from which it went on; None: it did not get so far."""
    handed_over: int | None
    diary: int
    """Steps that it began."""
    ending: str
    cause: str
    notices: int
    hung: list[dict]


def make_traced(folder: Path, **more) -> Project:
    """One stage of 24 steps, unless asked otherwise."""
    return make_project(folder, recipe=more.pop("recipe", "Traced"), code=CODE, **more)


def attempts(project: Project) -> list[Attempt]:
    """Each attempt as its own files tell it, in the order in which they were written."""
    told: dict[int, list[dict]] = {}
    for path in sorted(project.run.events.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            told.setdefault(event["claim"], []).append(event)
    return [_attempt(project, claim, told[claim]) for claim in sorted(told) if claim]


def _attempt(project: Project, claim: int, events: list[dict]) -> Attempt:
    def last(kind: str, key: str, default=None):
        return next((e.get(key) for e in reversed(events) if e["kind"] == kind), default)

    diary = project.run.path / f"diary.{claim}"
    return Attempt(
        claim=claim,
        restored=last("restored", "step"),
        handed_over=last("handed-over", "step"),
        diary=len(diary.read_text()) if diary.exists() else 0,
        ending=last("attempt-ended", "ending", ""),
        cause=last("attempt-ended", "cause", ""),
        notices=sum(event["kind"] == "notice" for event in events),
        hung=[event for event in events if event["kind"] == "hung"],
    )


def recomputed(project: Project) -> list[Attempt]:
    """Attempts that did not commit the last step they began. The one that was killed, or failed,
    counts too; one that never got to its steps has nothing to commit."""
    told = attempts(project)
    followers = [later.restored for later in told[1:]] + [None]
    return [
        attempt
        for attempt, follower in zip(told, followers, strict=True)
        if attempt.diary
        and attempt.ending != "done"
        and (
            attempt.handed_over != (attempt.restored or 0) + attempt.diary
            or follower not in (None, attempt.handed_over)
        )
    ]
