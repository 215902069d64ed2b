"""Parameters that a loss does not use: several ranks train or leave them as one rank does."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, finish
from tests.harness.project import Project, differences, make_project

from tasuki.runs.control import last_said
from tasuki.runs.events import read_events

CODE = '''

class Numbered(Dataset):
    """Each sample knows which of the heads it is for."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 6, dtype=torch.float64, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i


class Heads:
    """A head for each of three kinds of samples, and one that nobody uses. Momentum and decay move
    a parameter whose gradient is zero, but none that has no gradient."""

    def __init__(self, kinds):
        self.kinds = kinds

    def build_model(self):
        model = nn.ModuleDict({name: nn.Linear(6, 1) for name in ("a", "b", "c", "nobody")})
        model["body"] = nn.Linear(6, 6)
        if self.kinds != "never":
            del model["nobody"]
        return model.double()

    def build_dataset(self, source, split):
        return Numbered(48)

    def loss(self, model, batch):
        x, number = batch
        hidden = torch.tanh(model["body"](x))
        if self.kinds == "sample":
            # By turns, so that ranks and micro-batches of a step need other heads.
            parts = [model["abc"[int(i) % 3]](h) for h, i in zip(hidden, number)]
        elif self.kinds == "late":
            # Sample 47 comes with one step of each epoch: it alone needs no head.
            skip = bool((number == 47).any())
            parts = [h.sum() if skip else sum(model[n](h) for n in "abc") for h in hidden]
        else:
            parts = [sum(model[name](h) for name in "abc") for h in hidden]
        return sum((part.sum() - 1) ** 2 for part in parts), float(len(x))

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)


class Declared(Heads):
    unused_parameters = True
'''


def make(folder, ranks: int, *, recipe: str = "Heads", epochs: int = 3, **params) -> Project:
    return make_project(
        folder,
        recipe=recipe,
        code=CODE,
        ranks=ranks,
        params=params,
        stages=[{"name": "one", "data": "d", "epochs": epochs}],
        defaults={
            "effective_batch": 5,
            "micro_batch": 1,
            "schedule": "constant",
            "warmup": 0,
            "save": {"every": "4 steps"},
        },
    )


def train(warm, project: Project) -> dict[str, torch.Tensor]:
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return load_file(project.run.stage("one").weights)


def check_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """In double: only the order of additions differs."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-9, atol=1e-12, msg=name)


def told(project: Project, kind: str) -> list[dict]:
    return [event for event in read_events(project.run) if event["kind"] == kind]


@pytest.fixture(scope="module")
def late(warm, tmp_path_factory) -> dict[str, torch.Tensor]:
    """What one rank learns of `late`."""
    return train(warm, make(tmp_path_factory.mktemp("late") / "one", 1, kinds="late"))


@pytest.fixture(scope="module")
def by_sample(warm, tmp_path_factory) -> Project:
    """Other heads on each of three ranks, in each micro-batch and in each step."""
    project = make(tmp_path_factory.mktemp("sample") / "three", 3, kinds="sample", epochs=2)
    train(warm, project)
    return project


def test_several_ranks_leave_what_a_step_does_not_use_as_one_rank_does(warm, tmp_path, by_sample):
    """Steps of 5 samples over 3 ranks are uneven, the last one has 3."""
    alone = train(warm, make(tmp_path / "one", 1, kinds="sample", epochs=2))
    check_close(alone, load_file(by_sample.run.stage("one").weights))
    assert len(told(by_sample, "unused")) == len(told(by_sample, "warning")) == 1


def test_a_parameter_that_is_never_used_is_named(warm, tmp_path):
    project = make(tmp_path / "p", 2, kinds="never", epochs=1)
    train(warm, project)
    (unused,) = told(project, "unused")
    assert unused["parameters"] == ["nobody.weight", "nobody.bias"]
    assert "does not use parameters `nobody.weight`, `nobody.bias`" in project.logs()


def test_with_unused_parameters_a_resume_is_bit_for_bit_the_same(warm, tmp_path, by_sample):
    project = make(tmp_path / "p", 3, kinds="sample", epochs=2)
    strike = {"at": "step.done", "do": "term", "count": 6, "rank": 0, "seconds": 0.5}
    finish(warm, project, **armed(strike | {"claim": 1}))
    assert len(told(project, "handed-over")) == 1
    assert differences(by_sample, project) == []
    assert len(told(project, "unused")) == 1, "said once"


def test_what_goes_unused_only_later_is_named_and_the_next_attempt_goes_on(warm, tmp_path, late):
    project = make(tmp_path / "p", 2, kinds="late")
    check_close(late, train(warm, project))
    ended = told(project, "attempt-ended")
    assert [e["ending"] for e in ended] == ["failed", "done"], project.logs()
    assert "a step did not use parameters `a.weight`, `a.bias`" in ended[0]["message"]
    assert last_said(project.run) is None


def test_a_recipe_that_says_so_is_expected_to_leave_parameters_unused(warm, tmp_path, late):
    project = make(tmp_path / "p", 2, recipe="Declared", kinds="late")
    check_close(late, train(warm, project))
    assert [e["ending"] for e in told(project, "attempt-ended")] == ["done"]
    assert told(project, "unused") == [], "it is not looked for"
