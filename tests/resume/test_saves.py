"""Saves beside the training: what is committed is the boundary's state, one at a time, and nothing
that goes wrong with one costs more than that one (R10, R18)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import (
    armed,
    check_acknowledged,
    check_went_on,
    diaries,
    events,
    finish,
    leftovers,
    make_faulty,
    stopped_ranks,
    wait_until,
)
from tests.harness.project import differences
from tests.unit.checkpoint.commits import flip, position, same
from torch import nn

from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.retention import prune
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.clock import SystemClock
from tasuki.errors import ClaimLost, NotFinite, StoreError
from tasuki.failpoints import VARIABLE, arm
from tasuki.loop import saver as saver_module
from tasuki.loop.saver import Saver
from tasuki.loop.state import Tracked, capture, capture_random, restore, restore_random
from tasuki.runs.claims import take_claim
from tasuki.runs.runs import RunFolder

PLACES = [
    "save.begin",
    "save.copied",
    "save.draft",
    "save.written",
    "save.manifest",
    "save.rename",
    "save.renamed",
    "save.trash",
    "save.pruned",
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are small, and threads that wait for each other on a busy machine are slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "exp").mkdir()
    return RunFolder(tmp_path / "exp")


@pytest.fixture
def arming() -> Iterator[Callable[..., None]]:
    """Failpoints of this process; none stays armed."""

    def put(*orders: dict[str, Any]) -> None:
        arm({VARIABLE: json.dumps(orders)}, rank=0, claim=1)

    yield put
    put()


def make_saver(run: RunFolder) -> Saver:
    return Saver(run, claim=take_claim(run), clock=SystemClock())


def begin(saver: Saver, step: int, state: dict[str, Any]) -> None:
    saver.begin(position(step), state, facts={})


def saved_state(run: RunFolder, name: str) -> Any:
    manifest = verify(run.checkpoints / name)
    return read_part(run.checkpoints / name, 0, records=manifest.files, frozen=manifest.frozen)


# -- the state of the boundary -----------------------------------------------------------------


def test_what_is_committed_is_the_state_when_the_save_began_whatever_training_does_since(run):
    saver, gate = make_saver(run), threading.Event()
    saver.before = lambda: gate.wait() and None
    state = {"w": torch.arange(4096.0), "n": [1, 2], "small": torch.tensor(1.0)}
    expected = {"w": state["w"].clone(), "n": [1, 2], "small": state["small"].clone()}
    begin(saver, 1, state)
    state["w"].mul_(-1)  # training goes on
    state["small"].add_(1)
    state["n"].append(3)
    gate.set()
    saved = saver.wait()
    assert saved is not None and saved.error is None
    assert same(saved_state(run, saved.name), expected)


def test_in_a_real_run_a_slow_save_holds_the_weights_of_its_step_boundary(warm, tmp_path):
    project = make_faulty(
        tmp_path / "p",
        params={"norm": "layer", "pause": 0.01},
        defaults={"save": {"every": "6 steps", "keep": 50}},
    )
    slow = {"at": "save.draft", "do": "pause", "seconds": 0.15, "times": 50}
    finish(warm, project, starts=1, **armed(slow))
    (notes,) = diaries(project, 1)
    committed = events(project, "committed")
    assert [event["step"] for event in committed] == [0, 6, 12, 18, 24]
    for event in committed[:-1]:
        tensors = load_file(
            project.run.checkpoints / event["checkpoint"] / "part-00000.safetensors"
        )
        found = hashlib.sha256()
        for name in ("0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"):
            found.update(tensors[f"shared.model.{name}"].numpy().tobytes())
        assert found.hexdigest()[:16] == notes[event["step"]], event
    # And training did go on meanwhile: the save outlasted several steps.
    assert all(event["total_s"] > 10 * event["blocked_s"] for event in committed[1:])


# -- one at a time -----------------------------------------------------------------------------


def test_a_second_save_waits_for_the_first_and_follows_it_in_the_lineage(run):
    saver, gate, entered = make_saver(run), threading.Event(), threading.Event()

    def before() -> None:
        entered.set()
        gate.wait()

    saver.before = before
    begin(saver, 1, {"w": torch.zeros(9)})
    entered.wait()
    second = threading.Thread(target=begin, args=(saver, 2, {"w": torch.ones(9)}))
    second.start()
    second.join(0.3)
    assert second.is_alive(), "the second did not wait"
    assert list(run.checkpoints.glob("step-*")) == []
    gate.set()
    second.join()
    assert saver.wait() is not None
    names = lineage(run)
    assert [name[:14] for name in names] == ["step-000000002", "step-000000001"]
    assert read_manifest(run.checkpoints / names[0]).parent == names[1]
    assert [float(saved_state(run, name)["w"][0]) for name in names] == [1.0, 0.0]


# -- one that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "word"),
    [
        *(("save.draft", w) for w in ("ENOSPC", "EDQUOT", "EROFS", "ESTALE")),
        ("save.written", "EIO"),
    ],
)
def test_a_save_that_fails_leaves_the_old_one_and_the_next_works(run, arming, place, word):
    saver = make_saver(run)
    begin(saver, 1, {"w": torch.zeros(9)})
    first = saver.wait()
    assert first is not None and first.error is None
    arming({"at": place, "do": word})
    begin(saver, 2, {"w": torch.ones(9)})
    failed = saver.wait()
    assert failed is not None and failed.name is None
    assert isinstance(failed.error, StoreError) and word in str(failed.error)
    assert lineage(run) == [first.name]
    assert leftovers(run) == []
    begin(saver, 3, {"w": torch.full((9,), 3.0)})
    third = saver.wait()
    assert third is not None and third.error is None
    assert read_manifest(run.checkpoints / str(third.name)).parent == first.name


@pytest.mark.parametrize("place", PLACES[2:7])
def test_whatever_is_thrown_inside_a_save_comes_out_at_the_boundary_and_leaves_no_draft(
    run, arming, place
):
    saver = make_saver(run)
    arming({"at": place, "do": "raise"})
    begin(saver, 1, {"w": torch.zeros(9)})
    saved = saver.wait()
    assert saved is not None and "planted at" in str(saved.error)
    assert leftovers(run) == []
    begin(saver, 2, {"w": torch.ones(9)})
    later = saver.wait()
    assert later is not None and later.error is None
    verify(run.checkpoints / str(later.name))


def test_who_lost_the_claim_while_pruning_removes_nothing_of_the_successors(run):
    """A zombie whose save ends after its successor took over: its prune must not run."""
    saver = make_saver(run)
    for step in (1, 2, 3, 4):
        begin(saver, step, {"w": torch.zeros(9)})
        saver.wait()

    def after(_checkpoint, _saved) -> None:
        take_claim(run)
        prune(run, claim=1, keep=2)

    saver.after = after
    begin(saver, 5, {"w": torch.zeros(9)})
    saved = saver.wait()
    assert saved is not None and isinstance(saved.error, ClaimLost)
    assert len(lineage(run)) == 5


def test_weights_that_are_not_finite_are_not_committed(run):
    saver = make_saver(run)
    saver.must_be_finite = lambda name: name == "model.w"
    for bad in (float("nan"), float("inf"), -float("inf")):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            weights = torch.zeros(300_000, dtype=dtype)
            weights[299_999] = bad
            begin(saver, 1, {"model": {"w": weights}})
            saved = saver.wait()
            assert saved is not None and isinstance(saved.error, NotFinite), (bad, dtype)
            assert list(run.checkpoints.glob("*")) == []


# -- read back ---------------------------------------------------------------------------------


def test_what_comes_back_from_the_disk_as_something_else_is_put_aside_and_saved_again(
    run, monkeypatch
):
    real, calls = saver_module.verify_from_disk, []

    def lying_disk(path: Path):
        calls.append(path)
        if len(calls) == 1:
            flip(path / "part-00000.safetensors", -3)
        return real(path)

    monkeypatch.setattr(saver_module, "verify_from_disk", lying_disk)
    saver = make_saver(run)
    begin(saver, 1, {"w": torch.zeros(64)})
    saved = saver.wait()
    assert saved is not None and saved.name is None
    assert "came back from the disk as something else" in str(saved.error)
    assert lineage(run) == []
    assert len(list(run.checkpoints.glob("quarantine-*"))) == 1
    begin(saver, 2, {"w": torch.zeros(64)})  # the next one is read back again, for it may be bad
    again = saver.wait()
    assert again is not None and again.error is None and len(calls) == 2
    begin(saver, 3, {"w": torch.zeros(64)})
    assert saver.wait() is not None and len(calls) == 2  # then the disk is trusted


def test_in_a_real_run_a_disk_that_lies_is_found_said_and_the_step_saved_later(
    warm, tmp_path, whole
):
    reference = whole(make_faulty, params={"diary": False})
    project = make_faulty(tmp_path / "p", params={"diary": False})
    # The second attempt's first save: its own, and the first it reads back.
    orders = [
        {"at": "step.done", "do": "kill", "count": 9, "claim": 1},
        {"at": "save.renamed", "do": "stop", "claim": 2},
    ]
    started = warm.start(project.job.path, **armed(*orders))
    wait_until(lambda: stopped_ranks(started.pid), project)
    (renamed,) = project.run.checkpoints.glob("step-*.c2")
    flip(renamed / "part-00000.safetensors", -3)
    os.kill(stopped_ranks(started.pid)[0], signal.SIGCONT)
    assert started.wait() == 0, project.logs()
    (failed,) = events(project, "save-failed")
    assert "came back from the disk as something else" in failed["reason"]
    assert "came back from the disk as something else" in project.logs()
    assert renamed.name not in [event["checkpoint"] for event in events(project, "committed")]
    assert differences(reference, project) == []


# -- kills and handovers -----------------------------------------------------------------------


def test_killed_in_every_place_of_a_background_save_it_ends_bit_for_bit_the_same(
    warm, tmp_path, whole
):
    reference = whole(make_faulty, params={"diary": False}, defaults={"save": {"every": "2 steps"}})
    project = make_faulty(
        tmp_path / "p",
        params={"diary": False, "pause": 0.004},
        defaults={"save": {"every": "2 steps"}},
    )
    orders = [
        {"at": place, "do": "kill", "count": 1 if place == "save.trash" else 2, "claim": claim}
        for claim, place in enumerate(PLACES, 1)
    ]
    finish(warm, project, starts=1, **armed(*orders))
    ended = events(project, "attempt-ended")
    assert [event["ending"] for event in ended] == ["failed"] * len(PLACES) + ["done"]
    check_acknowledged(project.run)
    check_went_on(project.run)
    assert leftovers(project.run) == []
    assert differences(reference, project) == []


def test_a_handover_waits_for_the_save_in_flight_and_commits_its_own_step(warm, tmp_path, whole):
    reference = whole(make_faulty, params={"diary": False})
    project = make_faulty(tmp_path / "p")
    orders = [
        {"at": "save.draft", "do": "pause", "seconds": 0.4, "count": 2, "times": 9, "claim": 1},
        {"at": "step.done", "do": "term-group", "count": 10, "claim": 1},  # step 7 is being saved
    ]
    assert warm.start(project.job.path, **armed(*orders)).wait() == 75, project.logs()
    (told,) = events(project, "handed-over")
    steps = [event["step"] for event in events(project, "committed")]
    assert steps[:2] == [0, 7] and steps[-1] == told["step"] == len(diaries(project, 1)[0])
    finish(warm, project, starts=1)
    restored = events(project, "restored")[-1]
    assert restored["step"] == told["step"]
    assert len(diaries(project, 1)[0]) + len(diaries(project, 2)[0]) == 24
    assert differences(reference, project) == []


def test_a_resumed_attempt_with_automatic_saves_knows_how_often_to_save(warm, tmp_path):
    project = make_faulty(
        tmp_path / "p", defaults={"save": {"every": "auto"}, "log_every": "1 step"}
    )
    order = {"at": "step.begin", "do": "term-group", "count": 9, "claim": 1}
    assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()
    finish(warm, project, starts=1)
    chosen, *_ = [event for event in events(project, "interval") if event["claim"] == 2]
    assert 5.0 <= chosen["seconds"] <= 1800.0


# -- held in memory ----------------------------------------------------------------------------


def test_what_is_held_is_never_mixed_with_a_later_step(run):
    saver = make_saver(run)
    for step in (1, 2, 3):
        saver.hold(position(step), {"w": torch.full((9,), float(step)), "step": step}, facts={})
    saved = saver.publish_held(within_s=1.0)
    assert saved is not None and saved.error is None
    state = saved_state(run, str(saved.name))
    assert state["step"] == 3 and state["w"].tolist() == [3.0] * 9


def test_of_what_is_held_only_the_step_that_is_dropped_is_gone(run):
    saver = make_saver(run)
    for step, value in ((8, 1.0), (10, 2.0)):
        saver.hold(position(step), {"w": torch.full((9,), value)}, facts={})
    saver.drop_held(10)
    assert saver.held_step == 8
    saver.hold(position(8), {"w": torch.full((9,), 3.0)}, facts={})  # the same step once more
    saved = saver.publish_held(within_s=1.0)
    assert saved is not None and saved.name == "step-000000008.c1"
    state = saved_state(run, saved.name)
    assert state["w"].tolist() == [3.0] * 9
    saver.drop_held()
    assert saver.held_step is None


def test_where_the_last_commit_is_as_new_as_what_is_held_that_is_the_end(run):
    saver = make_saver(run)
    begin(saver, 5, {"w": torch.ones(3)})
    saved = saver.publish_held(within_s=10.0)
    assert saved is not None and saved.name == "step-000000005.c1"


# -- R18: again and again ----------------------------------------------------------------------


class Cycle:
    """A model, an optimizer and random numbers, saved and put back."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.saver = run, make_saver(run)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))
        self.tracked = Tracked(self.model, torch.optim.AdamW(self.model.parameters()), None)
        self.saver.after = lambda _checkpoint, _saved: prune(run, claim=1, keep=2) and None
        self.at = 0

    def once(self) -> None:
        self.model(torch.randn(8, 32)).square().mean().backward()
        self.tracked.optimizer.step()
        self.tracked.optimizer.zero_grad()
        self.at += 1
        state = {"shared": capture(self.tracked), "random": capture_random()}
        begin(self.saver, self.at, state)
        saved = self.saver.wait()
        assert saved is not None and saved.error is None, saved
        loaded = saved_state(self.run, str(saved.name))
        restore(self.tracked, loaded["shared"])
        restore_random(loaded["random"])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_saving_and_resuming_10000_times_leaks_nothing(run):
    cycles, process = Cycle(run), psutil.Process()
    for _ in range(500):
        cycles.once()
    rss, fds, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
    for _ in range(9500):
        cycles.once()
    grown = process.memory_info().rss - rss
    print(f"R18: 10,000 save/resume cycles: RSS {grown / 1e6:+.1f} MB")
    assert grown < 5e6
    # One per cycle would be thousands; a thread of a library may come or go.
    assert abs(process.num_fds() - fds) <= 1 and abs(process.num_threads() - threads) <= 1
    assert len(list(run.checkpoints.iterdir())) == 2
