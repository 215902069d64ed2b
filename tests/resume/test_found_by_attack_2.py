"""What a second attack found: silent losses, and models that could be saved but not resumed."""

from __future__ import annotations

import json

import pytest
from tests.harness.project import differences, make_project

CODE = '''
class Rotary(nn.Module):
    """A cache that grows, is no part of state_dict, and is filled when it is first needed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        self.register_buffer("memory", None)
        self.register_buffer("ones", torch.ones(1).expand(4), persistent=False)

    def forward(self, x):
        if self.training and self.cache.numel() < 12:
            self.cache = torch.cat([self.cache, self.cache[-1:] + 1])
        self.memory = x.detach().mean().reshape(1) if self.memory is None else self.memory * 0.9
        return x + 1e-3 * self.cache.mean() + 1e-3 * self.memory + 0 * self.ones[0]


class Growing(Learner):
    def build_model(self):
        return nn.Sequential(super().build_model(), Rotary())


class Outside(Learner):
    """A head that the optimizer trains and the model does not own."""

    def build_optimizer(self, model):
        self.head = nn.Linear(1, 1)
        return torch.optim.SGD([*model.parameters(), *self.head.parameters()], lr=0.01)
'''
VALIDATE = {"every": "2 steps", "mode": "max"}
"""The largest loss is that of the first steps: later ones never take its place."""
TERM = json.dumps([{"at": "step.begin", "do": "term", "count": 9, "claim": 1}])


def test_buffers_that_grow_or_are_filled_later_come_back(warm, tmp_path):
    project = make_project(tmp_path / "p", recipe="Growing", code=CODE)
    assert warm.start(project.job.path, TASUKI_FAILPOINTS=TERM).wait() == 75, project.logs()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    twin = make_project(tmp_path / "twin", recipe="Growing", code=CODE)
    assert warm.start(twin.job.path).wait() == 0, twin.logs()
    assert differences(project, twin) == []


def test_a_parameter_that_is_trained_but_in_no_checkpoint_is_refused_at_once(warm, tmp_path):
    project = make_project(tmp_path / "p", recipe="Outside", code=CODE)
    assert warm.start(project.job.path).wait() == 1
    assert "state_dict does not hold: a resume would lose it" in project.logs()
    assert len(list(project.run.claims.iterdir())) == 1  # a mistake is not tried again


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_best_weights_that_are_damaged_or_gone_never_become_the_stage_s_weights(
    warm, tmp_path, harm
):
    stages = [{"name": "one", "data": "d", "epochs": 4, "validate": VALIDATE}]
    project = make_project(tmp_path / "p", stages=stages)
    assert warm.start(project.job.path, TASUKI_FAILPOINTS=TERM).wait() == 75, project.logs()
    files = sorted((project.run.stages / "one").glob("best-*.safetensors"))
    assert files
    for path in files:
        if harm == "remove":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert ("are gone" if harm == "remove" else "its sha256 is another") in project.logs()
    assert not (project.run.stages / "one" / "metrics.json").exists()
