"""From traces to a cause: pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasuki.commands.drill_diagnosis import (
    diagnose,
    diagnose_twins,
    first_row_difference,
    not_restored,
)
from tasuki.commands.drill_trace import (
    AttemptTrace,
    StepTrace,
    is_each_sample_once,
    replayed,
)

RANDOM = {"random.python": "p", "random.numpy": "n", "random.torch": "t"}
PER_EPOCH = 3


def step(number: int, **changes: object) -> StepTrace:
    first = (number - 1) % PER_EPOCH * 2
    made = StepTrace(
        step=number,
        ids=(first, first + 1),
        hidden={"recipe.width": "int 8", "recipe.calls": f"int {number - 1}"},
        before=RANDOM,
        after={
            "random.torch": "t",
            "optimizer.state.w.exp_avg": f"m{number}",
            "model.w": f"w{number}",
            "loss": f"l{number}",
            "batch": f"b{number}",
        },
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def state(at: int) -> dict[str, str]:
    return {"model.w": f"w{at}", "optimizer.state.w.exp_avg": f"m{at}", "random.torch": "t"}


def attempt(claim: int, begin: int, end: int, **facts: object) -> AttemptTrace:
    return AttemptTrace(
        claim=claim,
        begin=begin,
        state=state(begin),
        steps=tuple(step(n) for n in range(begin + 1, end + 1)),
        facts=facts,
    )


TWIN = [attempt(1, 0, 6)]


def resumed(at: int = 4, *, changes: dict[str, object], **facts: object) -> list[AttemptTrace]:
    """Interrupted after step `at`; the first step after it is changed."""
    second = attempt(2, at, 6, **facts)
    wrong = replace(second.steps[0], **changes)  # type: ignore[arg-type]
    return [attempt(1, 0, at, **facts), replace(second, steps=(wrong, *second.steps[1:]))]


def after(number: int, **changed: str) -> dict[str, str]:
    names = {name.replace("__", "."): text for name, text in changed.items()}
    return {**step(number).after, **names}


def test_equal_traces_have_no_difference():
    assert diagnose(TWIN, [attempt(1, 0, 4), attempt(2, 2, 6)], TWIN) is None


def test_a_generator_of_the_recipe_is_named_before_a_counter_that_is_lost_too():
    twin = [
        replace(
            TWIN[0],
            steps=tuple(
                replace(s, hidden={**s.hidden, "recipe.noise": f"torch.Generator {s.step:016x}"})
                for s in TWIN[0].steps
            ),
        )
    ]
    hidden = {"recipe.width": "int 8", "recipe.calls": "int 0", "recipe.noise": "torch.Generator x"}
    found = diagnose(twin, resumed(changes={"hidden": hidden, "after": after(5, loss="x")}))
    assert found is not None
    assert (found.cause, found.step, found.entry) == ("hidden", 5, "loss")
    assert (found.suspect, found.attempt, found.resumed_at) == ("recipe.noise", 2, 4)
    assert "the recipe's `self.noise` (a torch.Generator) is not part of any chec" in found.words
    assert "torch's global random numbers" in found.advice
    assert found.others == ("the recipe's `self.calls` (an int: 4 undisturbed, 0 resumed)",)


def test_what_differs_between_undisturbed_runs_too_is_not_blamed():
    def timed(traces: list[AttemptTrace], mark: str) -> list[AttemptTrace]:
        return [
            replace(
                trace,
                steps=tuple(
                    replace(s, hidden={**s.hidden, "recipe.began_at": f"float {mark}"})
                    for s in trace.steps
                ),
            )
            for trace in traces
        ]

    hidden = {"recipe.width": "int 8", "recipe.calls": "int 0"}
    disturbed = resumed(changes={"hidden": hidden, "after": after(5, loss="x")})
    found = diagnose(timed(TWIN, "1.5"), timed(disturbed, "3.5"), timed(TWIN, "2.5"))
    assert found is not None and found.suspect == "recipe.calls" and found.others == ()


@pytest.mark.parametrize(
    ("entry", "hidden", "suspect", "cause"),
    [
        ("batch", "data.rng", "data.rng", "data"),
        ("batch", "recipe.calls", "recipe.calls", "hidden"),
        ("loss", "model.block.mean", "model.block.mean", "hidden"),
        ("model.w", "optimizer.boost", "optimizer.boost", "hidden"),
        ("model.w", "schedule.count", "schedule.count", "hidden"),
        ("loss", "module recipes.TOP", "module recipes.TOP", "hidden"),
    ],
)
def test_the_owner_that_can_change_what_differs_first_is_suspected_first(
    entry, hidden, suspect, cause
):
    unlikely = {"batch": "optimizer.x", "loss": "schedule.x", "model.w": "data.x"}[entry]
    changes = {
        "hidden": {**step(5).hidden, hidden: "float 0.5", unlikely: "float 0.5"},
        "after": {**step(5).after, entry: "x"},
    }
    found = diagnose(TWIN, resumed(changes=changes))
    assert found is not None
    assert (found.cause, found.suspect, found.entry) == (cause, suspect, entry)
    assert found.advice


def test_another_batch_without_a_visible_cause_is_the_data_or_the_loader():
    changes = {"after": after(5, batch="x", loss="x", model__w="x")}
    of_data = diagnose(TWIN, resumed(changes=changes))
    of_loader = diagnose(TWIN, resumed(changes=changes, is_foreign=True))
    assert of_data is not None and of_data.cause == "data" and of_data.entry == "batch"
    assert of_loader is not None and of_loader.cause == "loader"
    assert "load_state_dict" in of_loader.advice


def test_random_numbers_that_were_not_captured_are_named_at_the_resume():
    second = attempt(2, 4, 6)
    lost = replace(second, state={**state(4), "random.torch": "x"})
    found = diagnose(TWIN, [attempt(1, 0, 4), lost])
    assert found is not None and (found.cause, found.entry) == ("random", "random.torch")
    assert found.step == found.resumed_at == 4
    assert found.words.startswith("torch's random numbers are not where they were")


def test_an_entry_that_did_not_come_back_is_named():
    second = attempt(2, 4, 6)
    lost = replace(second, state={**state(4), "optimizer.state.w.exp_avg": "x"})
    found = diagnose(TWIN, [attempt(1, 0, 4), lost])
    assert found is not None
    assert (found.cause, found.suspect) == ("not-restored", "optimizer.state.w.exp_avg")
    assert "the optimizer's `exp_avg` of `w`" in found.words


def test_the_rate_that_tasukis_schedule_has_set_for_the_next_step_is_no_difference():
    set_already = {**state(4), "optimizer.group0.lr": "x"}
    second = replace(attempt(2, 4, 6, sets_lr=True), state=set_already)
    assert diagnose(TWIN, [attempt(1, 0, 4), second]) is None
    by_the_recipe = replace(attempt(2, 4, 6, sets_lr=False), state=set_already)
    found = diagnose(TWIN, [attempt(1, 0, 4), by_the_recipe])
    assert found is not None and found.suspect == "optimizer.group0.lr"


def test_other_samples_are_a_matter_of_order():
    found = diagnose(TWIN, resumed(changes={"ids": (7, 8), "after": after(5, batch="x")}))
    assert found is not None and (found.cause, found.entry) == ("order", "ids")


def test_a_difference_without_any_suspect_is_said_to_be_unseen():
    hidden = {**step(5).hidden}
    found = diagnose(TWIN, resumed(changes={"hidden": hidden, "after": after(5, loss="x")}))
    assert found is not None and found.cause == "unseen" and found.suspect == ""


def test_two_undisturbed_runs_that_differ_clear_the_resume():
    other = [replace(TWIN[0], steps=(step(1), step(2, after=after(2, loss="x"))))]
    disturbed = resumed(changes={"hidden": {"recipe.calls": "int 0"}, "after": after(5, loss="y")})
    found = diagnose(TWIN, disturbed, other, nondeterministic_ops=["scatter_add_cuda_kernel"])
    assert found is not None
    assert (found.cause, found.step, found.entry) == ("nondeterministic", 2, "loss")
    assert "scatter_add_cuda_kernel" in found.words and "os.urandom" in found.words


def test_a_generator_that_nobody_seeds_is_named():
    def with_generator(mark: str, loss: str) -> list[AttemptTrace]:
        hidden = {"data.rng": f"numpy.random.Generator {mark}"}
        return [replace(TWIN[0], steps=(step(1, hidden=hidden, after=after(1, batch=loss)),))]

    found = diagnose_twins(with_generator("a", "a"), with_generator("b", "b"))
    assert found is not None
    assert (found.cause, found.suspect, found.entry) == ("nondeterministic", "data.rng", "batch")
    assert "`rng` of the data set (a numpy.random.Generator) begins differently" in found.words


def test_a_first_attempt_that_differs_was_not_resumed_wrongly():
    first = attempt(1, 0, 4)
    wrong = replace(first, steps=(*first.steps[:3], step(4, after=after(4, loss="x"))))
    found = diagnose(TWIN, [wrong, attempt(2, 4, 6)], TWIN)
    assert found is not None and found.cause == "nondeterministic" and found.step == 4
    assert found.words.startswith("it differs from step 4 on, before anything interrupted it")


def test_on_other_ranks_than_the_first_only_random_numbers_must_be_back_before_a_step():
    twin = [attempt(1, 0, 6), replace(attempt(1, 0, 6), rank=1)]
    stale = replace(attempt(2, 4, 6), rank=1, state={**state(4), "model.w": "stale"})
    disturbed = [attempt(1, 0, 4), replace(attempt(1, 0, 4), rank=1), attempt(2, 4, 6), stale]
    assert diagnose(twin, disturbed) is None
    lost = replace(stale, state={**state(4), "random.torch": "x"})
    found = diagnose(twin, [*disturbed[:3], lost])
    assert found is not None and (found.cause, found.rank) == ("random", 1)


def test_lost_state_that_changed_nothing_is_only_noted():
    second = attempt(2, 4, 6)
    first_step = replace(second.steps[0], hidden={"recipe.width": "int 8", "recipe.calls": "int 0"})
    disturbed = [attempt(1, 0, 4), replace(second, steps=(first_step, *second.steps[1:]))]
    assert diagnose(TWIN, disturbed) is None
    noted = ("the recipe's `self.calls` (an int: 4 undisturbed, 0 resumed)",)
    assert not_restored(TWIN, disturbed) == noted


def test_equal_steps_with_other_metrics_point_to_the_validation():
    rows = [{"step": 0, "split": "val", "loss": 1.0}, {"step": 3, "split": "train", "loss": 2.0}]
    assert first_row_difference(rows, rows) is None
    found = first_row_difference([{**rows[0], "loss": 1.5}, rows[1]], rows)
    assert found is not None and (found.cause, found.step, found.entry) == ("validation", 0, "loss")
    shorter = first_row_difference(rows[:1], rows)
    assert shorter is not None and shorter.step == 3


def test_steps_done_again_are_counted():
    assert replayed([attempt(1, 0, 5), attempt(2, 2, 4), attempt(3, 4, 6)]) == 3


def test_samples_count_once_in_the_attempt_that_had_the_last_word():
    def is_once(*traces: AttemptTrace) -> bool | None:
        return is_each_sample_once(traces, steps_per_epoch=PER_EPOCH)

    assert is_once(attempt(1, 0, 5), attempt(2, 2, 6))
    assert is_once(attempt(1, 0, 5))  # the last epoch is not finished
    twice = replace(attempt(1, 0, 3), steps=(step(1), step(2), step(3, ids=(0, 1))))
    assert is_once(twice) is False
    missing = replace(attempt(1, 0, 3), steps=(step(1), step(2)))
    assert is_once(missing, attempt(2, 3, 6)) is False
    assert is_once(replace(attempt(1, 0, 1), steps=(step(1, ids=None),))) is None
