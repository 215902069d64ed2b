"""A recipe may bring a loader of its own: it is resumed through its state, or skipped forward."""

from __future__ import annotations

import pytest
from tests.harness.faulty import armed, finish
from tests.harness.project import differences, make_project

from tasuki.runs.atomic import read_json

CODE = '''
from torch.utils.data import DataLoader


class Bringer(Learner):
    """Shuffled and augmented batches of somebody else's loader."""

    def __init__(self, kind="plain", samples=44):
        super().__init__(samples=samples)
        self.kind = kind

    def build_dataset(self, source, split):
        if self.kind == "stateful":
            from torchdata.stateful_dataloader import StatefulDataLoader
            return StatefulDataLoader(Noisy(self.samples), batch_size=4, shuffle=True)
        loader = DataLoader(Noisy(self.samples), batch_size=4, shuffle=True)
        if self.kind == "endless":
            return Endless(loader)
        if self.kind == "liar":
            return Liar(loader)
        if self.kind == "workers":
            return DataLoader(Noisy(self.samples), batch_size=4, shuffle=True, num_workers=1)
        if self.kind == "stateful stream":
            from torchdata.stateful_dataloader import StatefulDataLoader
            return StatefulDataLoader(Stream(self.samples), batch_size=4)
        if self.kind == "lengthless stream":
            return DataLoader(Lengthless(self.samples), batch_size=4)
        if self.kind == "persistent":
            more = {"num_workers": 1, "persistent_workers": True}
            return DataLoader(Noisy(self.samples), batch_size=4, shuffle=True, **more)
        if self.kind == "generator":
            own = torch.Generator().manual_seed(3)
            return DataLoader(Noisy(self.samples), batch_size=4, shuffle=True, generator=own)
        return loader


class Stream(torch.utils.data.IterableDataset):
    """Shuffles when a pass begins."""

    def __init__(self, n):
        self.noisy = Noisy(n)

    def __len__(self):
        return len(self.noisy)

    def __iter__(self):
        for i in torch.randperm(len(self.noisy)).tolist():
            yield self.noisy[i]


class Lengthless(torch.utils.data.IterableDataset):
    """The usual stream: `len` of its DataLoader is a TypeError."""

    def __init__(self, n):
        self.noisy = Noisy(n)

    def __iter__(self):
        return (self.noisy[i] for i in torch.randperm(len(self.noisy)).tolist())


class Endless:
    """Does not say how many batches it has."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


class Liar(Endless):
    def __len__(self):
        return len(self.loader) + 2
'''
STAGE = {"name": "one", "data": "d", "epochs": 3, "accumulation": 2}
ENDLESS = {"name": "one", "data": "d", "steps": 18, "accumulation": 2}


def make(folder, kind, *, stage=STAGE, **more):
    return make_project(
        folder,
        recipe="Bringer",
        code=CODE,
        params={"kind": kind},
        stages=[stage],
        defaults={"save": {"every": "4 steps"}, **more},
    )


def interrupt(warm, project, do) -> None:
    order = {"at": "step.begin", "do": do, "count": 11, "claim": 1}
    status = warm.start(project.job.path, **armed(order)).wait()
    assert status == (75 if do == "term-group" else 0), project.logs()


LONG = [("generator", "kill"), ("persistent", "kill"), ("endless", "kill"), ("plain", "kill")]


@pytest.mark.parametrize(
    ("kind", "do"),
    [
        ("stateful", "kill"),
        ("workers", "term-group"),
        ("stateful stream", "term-group"),
        ("lengthless stream", "kill"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_a_run_on_its_own_loader_ends_bit_for_bit_the_same_after_an_interruption(
    warm, tmp_path, whole, kind, do
):
    stage = ENDLESS if kind in ("endless", "lengthless stream") else STAGE
    broken = make(tmp_path / "p", kind, stage=stage)
    interrupt(warm, broken, do)
    finish(warm, broken, starts=1)
    assert differences(whole(make, kind, stage=stage), broken) == []
    log = broken.logs()
    is_skipped = not kind.startswith("stateful")
    assert ("has no state_dict" in log) == is_skipped, log
    assert ("batches were read again to get back to step" in log) == is_skipped, log
    assert ("is not known" in log) == (kind == "endless"), log
    assert ("Handing over at step" in log) == (do == "term-group"), log
    if kind == "workers":
        told = read_json(broken.run.stage("one").metrics)
        assert told["samples"] == 3 * 44  # eleven batches of four, the last step with one batch
        assert told["steps"] == 3 * 6


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("liar", {}, "fewer batches than its length"),
        ("endless", {}, "does not say how many batches"),
        ("plain", {"order": "smallest_first"}, "cannot reach a loader"),
    ],
)
def test_what_a_loader_cannot_give_is_said_in_words(warm, tmp_path, kind, more, words):
    project = make(tmp_path / "p", kind, **more)
    assert warm.start(project.job.path).wait() != 0
    assert words in project.logs()
    assert not project.run.is_complete()


def test_a_loader_of_ones_own_is_refused_on_several_ranks(warm, tmp_path):
    project = make_project(tmp_path / "p", recipe="Bringer", code=CODE, stages=[STAGE], ranks=2)
    assert warm.start(project.job.path).wait() != 0
    assert "works on one rank only" in project.logs()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["generator", "persistent"])
def test_validation_on_its_own_loader_gives_the_same_numbers_after_an_interruption(
    warm, tmp_path, whole, kind
):
    keys = {"validate": {"every": "3 steps"}}
    broken = make(tmp_path / "p", kind, **keys)
    interrupt(warm, broken, "kill")
    finish(warm, broken)
    assert differences(whole(make, kind, **keys), broken) == []
    assert not list(broken.run.path.rglob(".*.tmp"))
