"""At its end a stage writes down what it measured, and the next estimate of its kind uses it."""

from __future__ import annotations

import pytest
from tests.harness.faulty import armed, events, finish
from tests.harness.project import Project, make_project

from tasuki.estimation.past import read_pasts
from tasuki.runs.history import look_at_history
from tasuki.runs.metrics import read_metrics

SIZED = '''
class Sized(Learner):
    """Two sizes of samples; the large ones take longer."""

    def sample_sizes(self, dataset):
        return [16 if i % 4 == 0 else 2 for i in range(len(dataset))]

    def collate(self, samples):
        x, y = zip(*samples)
        return torch.stack(x), torch.stack(y)

    def loss(self, model, batch):
        return super().loss(model, batch)
'''


def lines_of(project):
    return look_at_history(project.run.path.parent).facts


@pytest.fixture(scope="module")
def project(warm, tmp_path_factory) -> Project:
    """Trained, validated and evaluated; only read."""
    made = make_project(
        tmp_path_factory.mktemp("remembered") / "p",
        recipe="Sized",
        code=SIZED,
        params={"norm": "layer", "pause": 0.01},
        stages=[{"name": "one", "data": "d", "epochs": 4, "validate": {}, "evaluate": {}}],
    )
    finish(warm, made)
    return made


def test_a_stage_remembers_what_it_measured(project):
    stage, evaluation = lines_of(project)
    assert (stage["run"], stage["experiment"], stage["stage"]) == ("exp", "exp", "one")
    assert (stage["samples"], stage["steps"], stage["effective_batch"]) == (44, 28, 8)
    small, large = stage["buckets"]
    assert (small["size"], small["samples"], large["size"], large["samples"]) == (2, 33, 16, 11)
    for times in (stage, small, large):
        assert 0 < times["step_s_p10"] <= times["step_s"] <= times["step_s_p90"]
    assert (stage["attempts"], stage["preemptions"], stage["ranks"]) == (1, 0, 1)
    assert stage["saves"] == len([e for e in events(project, "committed") if "total_s" in e]) > 0
    validated = [row for row in read_metrics(project.run) if row["split"] == "val"]
    assert stage["validations"] == len(validated) == 5 and stage["validate_s"] > 0
    assert stage["train_s"] == pytest.approx(
        stage["parts"]["step"] + stage["parts"]["data_wait"], abs=1e-5
    )
    assert stage["memory"]["on"] == "cpu" and stage["memory"]["host_bytes"] > 1 << 20
    assert stage["memory"]["tensor_bytes"] > 0
    assert evaluation["kind"] == "evaluation" and evaluation["evaluate_s"] > 0
    (past,) = read_pasts([evaluation, stage])
    assert past.evaluate_s == evaluation["evaluate_s"]


def test_times_of_a_stage_cover_all_its_attempts(warm, tmp_path):
    project = make_project(tmp_path / "p", params={"pause": 0.01})
    finish(warm, project, **armed({"at": "step.done", "do": "term", "count": 15, "claim": 1}))
    (line,) = lines_of(project)
    assert (line["attempts"], line["preemptions"], line["steps"]) == (2, 1, 24)
    assert line["train_s"] >= 24 * 0.01
    assert line["parts"]["step"] >= 24 * 0.01 and line["parts"]["handover"] > 0
    assert line["queue_s"] > 0, "between the two attempts"


def test_a_stage_says_after_its_first_epoch_when_it_will_be_done(project):
    (told,) = events(project, "forecast")
    assert (told["stage"], told["step"], told["total_steps"]) == ("one", 7, 28)
    assert 21 * 0.01 <= told["left_s"] < told["left_s_p90"]
    lines = [line for line in project.logs().splitlines() if line.startswith("Forecast: ")]
    assert lines == [line for line in lines if ", by the first epoch" in line] and len(lines) == 1


def test_a_history_that_cannot_be_written_ends_no_run_and_one_epoch_forecasts_nothing(
    warm, tmp_path
):
    project = make_project(tmp_path / "p", stages=[{"name": "one", "data": "d", "epochs": 1}])
    (project.run.path.parent / ".history").write_text("in the way")
    finish(warm, project)
    assert "what stage one measured is not remembered" in project.logs()
    assert events(project, "forecast") == [] and "Forecast" not in project.logs()
