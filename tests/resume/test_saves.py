"""Saves beside the training: what is committed is the boundary's state, one at a time, and nothing
that goes wrong with one costs more than that one (R10, R18)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tempfile
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
    wait_until,
)
from tests.harness.project import Project, differences
from tests.unit.checkpoint.commits import flip, position, same
from torch import nn

from tasuki.checkpoint.frozen import FrozenParameters
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
from tasuki.runs.control import last_said
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


@pytest.fixture(scope="module")
def made(warm, tmp_path_factory):
    """Whole runs that were not disturbed, by name, each once."""
    known: dict[str, Project] = {}

    def make(name: str, **more) -> Project:
        if name not in known:
            known[name] = make_faulty(tmp_path_factory.mktemp("saves") / "p", **more)
            finish(warm, known[name])
        return known[name]

    return make


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


def test_saves_asked_for_faster_than_the_disk_can_are_all_committed_in_order(warm, tmp_path):
    project = make_faulty(
        tmp_path / "p",
        params={"diary": False},
        stages=[{"name": "one", "data": "d", "epochs": 2}],
        defaults={"save": {"every": "1 steps"}},
    )
    slow = {"at": "save.draft", "do": "pause", "seconds": 0.03, "times": 100}
    finish(warm, project, starts=1, **armed(slow))
    assert [event["step"] for event in events(project, "committed")] == list(range(13))


# -- one that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["save.draft", "save.written"])
@pytest.mark.parametrize("word", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE"])
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


def test_who_lost_the_claim_commits_nothing_and_is_told_so(run):
    saver = make_saver(run)
    take_claim(run)
    begin(saver, 1, {"w": torch.zeros(9)})
    saved = saver.wait()
    assert saved is not None and isinstance(saved.error, ClaimLost)
    assert list(run.checkpoints.glob("*")) == []


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
    warm, tmp_path, made
):
    reference = made("plain", params={"diary": False})
    project = make_faulty(tmp_path / "p", params={"diary": False, "pause": 0.01})
    # The second attempt's first save: its own, and the first it reads back.
    orders = [
        {"at": "step.done", "do": "kill", "count": 9, "claim": 1},
        {"at": "save.renamed", "do": "pause", "seconds": 1.0, "claim": 2},
    ]
    started = warm.start(project.job.path, **armed(*orders))
    found: list[Path] = []

    def is_renamed() -> bool:
        found[:] = project.run.checkpoints.glob("step-*.c2")
        return bool(found)

    wait_until(is_renamed, project)
    flip(found[0] / "part-00000.safetensors", -3)
    assert started.wait() == 0, project.logs()
    (failed,) = events(project, "save-failed")
    assert "came back from the disk as something else" in failed["reason"]
    assert "came back from the disk as something else" in project.logs()
    assert found[0].name not in [event["checkpoint"] for event in events(project, "committed")]
    assert differences(reference, project) == []


# -- kills and handovers -----------------------------------------------------------------------


def test_killed_in_every_place_of_a_background_save_it_ends_bit_for_bit_the_same(
    warm, tmp_path, made
):
    reference = made("saves", params={"diary": False}, defaults={"save": {"every": "2 steps"}})
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


def test_a_handover_waits_for_the_save_in_flight_and_commits_its_own_step(warm, tmp_path, made):
    reference = made("plain", params={"diary": False})
    project = make_faulty(tmp_path / "p", params={"pause": 0.01})
    slow = {"at": "save.draft", "do": "pause", "seconds": 0.4, "count": 2, "times": 9, "claim": 1}
    started = warm.start(project.job.path, **armed(slow))

    def has_gone_on() -> bool:
        notes = diaries(project, 1)
        return bool(notes) and len(notes[0]) >= 10  # the save of step 7 is in flight

    wait_until(has_gone_on, project)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    (told,) = events(project, "handed-over")
    steps = [event["step"] for event in events(project, "committed")]
    assert steps[:2] == [0, 7] and steps[-1] == told["step"] == len(diaries(project, 1)[0])
    finish(warm, project, starts=1)
    restored = events(project, "restored")[-1]
    assert restored["step"] == told["step"]
    assert len(diaries(project, 1)[0]) + len(diaries(project, 2)[0]) == 24
    assert differences(reference, project) == []


@pytest.mark.long
def test_an_attempt_stops_so_early_that_even_a_slow_save_is_done_before_the_limit(
    warm, tmp_path, made
):
    """The limit leaves no grace: its own clock, and the saves it has measured, tell it when."""
    stages = [{"name": "one", "data": "d", "epochs": 40}]
    reference = made("forty", params={"diary": False}, stages=stages)
    project = make_faulty(
        tmp_path / "p",
        params={"diary": False, "pause": 0.02},
        stages=stages,
        defaults={"save": {"every": "1000 steps"}},
    )
    lanes = json.loads(project.job.lanes.read_text())
    project.job.lanes.write_text(json.dumps({**lanes, "limit_s": 6.0, "grace_s": 0.5}))
    slow = {"at": "save.draft", "do": "pause", "seconds": 1.2, "times": 9, "claim": 1}
    assert warm.start(project.job.path, **armed(slow)).wait() == 75, project.logs()
    (ended,) = events(project, "attempt-ended")
    assert (ended["ending"], ended["cause"]) == ("handed-over", "limit"), project.logs()
    (told,) = events(project, "handed-over")
    assert events(project, "committed")[-1]["step"] == told["step"] > 0
    # Stopped at the limit, its save alone would end 1.2 s later; with a step and a save kept free
    # it ends about a second before. In between is room for a busy machine.
    (began,) = events(project, "attempt-started")
    assert told["t"] - began["t"] < 6.0 + 0.9
    project.job.lanes.write_text(json.dumps(lanes))
    finish(warm, project, starts=1)
    assert events(project, "restored")[-1]["step"] == told["step"]
    assert differences(reference, project) == []


# -- frozen parameters -------------------------------------------------------------------------

LORA = {
    "recipe": "Adapted",
    "params": {"wide": 384},
    "defaults": {"save": {"every": "5 steps"}},
}


def with_params(**more: Any) -> dict[str, Any]:
    return {**LORA, "params": {**LORA["params"], **more}}


def frozen_files(project: Project) -> list[Path]:
    return sorted((project.run.checkpoints / "frozen").glob("*"))


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_frozen_parameters_are_stored_once_and_a_checkpoint_is_hardly_larger_than_what_learns(made):
    project = made("lora", **LORA)
    (shared,) = frozen_files(project)
    names = lineage(project.run)
    tensors = load_file(project.run.checkpoints / names[0] / "part-00000.safetensors")
    model = {name: t for name, t in tensors.items() if name.startswith("shared.model.")}
    assert model and not [name for name in model if ".base." in name]
    assert [n for n in load_file(shared) if ".base." in n]
    learning = 3 * sum(t.numel() * t.itemsize for t in model.values())
    largest = max(folder_bytes(project.run.checkpoints / name) for name in names)
    print(
        f"frozen: {shared.stat().st_size} bytes once; a checkpoint {largest} bytes, "
        f"{largest / learning:.2f} x (trained + optimizer)"
    )
    assert largest <= 1.2 * learning
    assert shared.stat().st_size > 2 * learning


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"teach": True}, marks=pytest.mark.long), {"unfreeze_at": 9}],
    ids=["frozen", "moving average", "unfrozen in the middle"],
)
def test_with_frozen_parameters_a_killed_run_ends_bit_for_bit_the_same(warm, tmp_path, made, more):
    reference = made(f"lora {more}", **with_params(**more)) if more else made("lora", **LORA)
    project = make_faulty(tmp_path / "p", **with_params(pause=0.004, **more))
    orders = [
        {"at": place, "do": "kill", "count": count, "claim": claim}
        for claim, (place, count) in enumerate(
            [("save.frozen", 1), ("save.written", 3), ("step.done", 7), ("save.renamed", 2)], 1
        )
    ]
    finish(warm, project, starts=1, **armed(*orders))
    assert len(events(project, "attempt-ended")) == 5
    assert leftovers(project.run) == []
    weights = load_file(project.run.stage("one").weights)
    start = load_file(reference.run.stage("one").weights)
    assert all(torch.equal(weights[name], start[name]) for name in weights)
    assert differences(reference, project) == []


def test_a_frozen_teacher_that_moves_all_the_same_is_noticed_and_stored_like_everything_else(made):
    project = made("lora {'teach': True}", **with_params(teach=True))
    for name in lineage(project.run):
        assert read_manifest(project.run.checkpoints / name).frozen == ()
    state = saved_state(project.run, lineage(project.run)[0])
    final = load_file(project.run.stage("one").weights)
    assert torch.equal(state["shared"]["model"]["base.2.weight"], final["base.2.weight"])


def test_in_this_process_a_change_through_data_is_noticed_at_the_next_save(run):
    """No version counter moves, no gradient exists: only the memory itself tells."""
    frozen, learning = nn.Parameter(torch.ones(40_000), requires_grad=False), torch.zeros(3)
    saver = make_saver(run)
    saver.frozen = FrozenParameters([frozen, learning], [learning])
    names = []
    for step, change in enumerate([None, (39_999, 1.0000001), (7, -0.0)], 1):
        if change is not None:
            frozen.data[change[0]] = change[1]
        begin(saver, step, {"w": frozen.detach(), "l": learning})
        saved = saver.wait()
        assert saved is not None and saved.error is None
        names.append(str(saved.name))
        assert torch.equal(saved_state(run, names[-1])["w"], frozen.detach())
    told = [bool(read_manifest(run.checkpoints / name).frozen) for name in names]
    assert told == [True, False, False]


def test_two_values_that_change_places_are_noticed_too(run):
    frozen = nn.Parameter(torch.arange(40_000.0), requires_grad=False)
    watched = FrozenParameters([frozen], [])
    assert watched.addresses()
    frozen.data[[5, 8192]] = frozen.data[[8192, 5]]
    assert not watched.addresses()


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing", "foreign"])
def test_a_damaged_frozen_file_is_found_before_a_weight_is_used_and_the_run_is_held(
    warm, tmp_path, harm
):
    project = make_faulty(tmp_path / "p", **with_params(pause=0.004))
    stop = {"at": "step.done", "do": "term-group", "count": 7, "claim": 1}
    assert warm.start(project.job.path, **armed(stop)).wait() == 75, project.logs()
    (shared,) = frozen_files(project)
    if harm == "flipped":
        flip(shared, shared.stat().st_size // 2)
    elif harm == "cut":
        os.truncate(shared, shared.stat().st_size - 1)
    elif harm == "missing":
        shared.unlink()
    else:
        shared.write_bytes(os.urandom(shared.stat().st_size))
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and said.word == "hold" and "nothing verifies" in said.reason
    assert [e["claim"] for e in events(project, "restored")] == [1]


def test_where_a_later_checkpoint_does_not_need_the_damaged_frozen_file_the_run_goes_on(
    warm, tmp_path, made
):
    """What was unfrozen stands in the checkpoint itself."""
    reference = made("lora {'unfreeze_at': 9}", **with_params(unfreeze_at=9))
    project = make_faulty(tmp_path / "p", **with_params(unfreeze_at=9, pause=0.004))
    stop = {"at": "step.done", "do": "term-group", "count": 12, "claim": 1}
    assert warm.start(project.job.path, **armed(stop)).wait() == 75, project.logs()
    for path in frozen_files(project):
        flip(path, path.stat().st_size // 2)
    finish(warm, project, starts=1)
    assert differences(reference, project) == []


def test_frozen_files_that_no_checkpoint_needs_are_swept_and_two_stages_share_one(
    warm, tmp_path, made
):
    stages = [{"name": name, "data": "d", "epochs": 3} for name in ("one", "two")]
    project = make_faulty(tmp_path / "p", stages=stages, **LORA)
    # Once in each stage: after 12 of 18 steps, and after 7 of the next stage's.
    stops = [
        {"at": "step.done", "do": "term-group", "count": count, "claim": claim}
        for claim, count in ((1, 12), (2, 7))
    ]
    for _ in range(2):
        assert warm.start(project.job.path, **armed(*stops)).wait() == 75, project.logs()
        folder = project.run.checkpoints / "frozen"
        (folder / ("0" * 32 + ".safetensors")).write_bytes(b"nobody's")
        (folder / f".{'1' * 32}.1-dead.tmp").write_bytes(b"half")
    finish(warm, project, starts=1)
    (shared,) = frozen_files(project)
    told = {read_manifest(project.run.checkpoints / name).frozen for name in lineage(project.run)}
    assert {record.name for records in told for record in records} == {shared.name}
    stages_left = {
        read_manifest(project.run.checkpoints / name).position.stage
        for name in lineage(project.run)
    }
    assert "two" in stages_left
    started = {e["stage"] for e in events(project, "committed")}
    assert started == {"one", "two"}


# -- R18: again and again ----------------------------------------------------------------------


class Cycle:
    """A model, an optimizer and random numbers, saved and put back."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.saver = run, make_saver(run)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))
        self.fixed = nn.Parameter(torch.randn(20_000), requires_grad=False)
        self.model.register_parameter("fixed", self.fixed)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.tracked = Tracked(self.model, torch.optim.AdamW(trained), None)
        self.saver.frozen = FrozenParameters(self.model.parameters(), trained)
        self.saver.after = lambda _checkpoint, _saved: prune(run, claim=1, keep=2) and None
        self.at = 0

    def once(self) -> None:
        loss = self.model(torch.randn(8, 32)).square().mean()
        loss.backward()
        self.tracked.optimizer.step()
        self.tracked.optimizer.zero_grad()
        self.at += 1
        state = {"shared": capture(self.tracked), "random": capture_random()}
        begin(self.saver, self.at, state)
        saved = self.saver.wait()
        assert saved is not None and saved.error is None, saved
        loaded = saved_state(self.run, str(saved.name))
        with torch.no_grad():
            for tensor in self.model.parameters():
                if tensor.requires_grad:
                    tensor.add_(1.0)
        restore(self.tracked, loaded["shared"])
        restore_random(loaded["random"])


def measure() -> tuple[int, int, int]:
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), process.num_threads()


def cycle(times: int, *, warm_up: int) -> None:
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as d:
        folder = Path(d) / "exp"
        folder.mkdir()
        cycles = Cycle(RunFolder(folder))
        for _ in range(warm_up):
            cycles.once()
        rss, fds, threads = measure()
        for _ in range(times - warm_up):
            cycles.once()
        grown, fds_now, threads_now = measure()
        left = sorted(path.name for path in cycles.run.checkpoints.iterdir())
    print(
        f"R18: {times} save/resume cycles: RSS {(grown - rss) / 1e6:+.1f} MB, descriptors "
        f"{fds} -> {fds_now}, threads {threads} -> {threads_now}"
    )
    assert grown - rss < 5e6
    # One per cycle would be dozens; a thread of a library that other tests imported may come or go.
    assert abs(fds_now - fds) <= 1 and abs(threads_now - threads) <= 1, (fds_now, threads_now)
    assert len(left) == 3, left  # two checkpoints and `frozen`


def test_saving_and_resuming_hundreds_of_times_leaks_nothing():
    cycle(150, warm_up=60)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_saving_and_resuming_10000_times_leaks_nothing():
    cycle(10_000, warm_up=500)


# -- R10: how long training stands still -------------------------------------------------------


def stall(project: Project) -> tuple[float, float]:
    """(the worst share that the chosen intervals allow, the share that was measured)."""
    told = events(project, "interval")
    committed = [event for event in events(project, "committed") if "blocked_s" in event]
    assert told and committed, project.logs()
    blocked = [event["blocked_s"] for event in committed]
    last = events(project, "progress")[-1]
    return max(blocked) / min(event["seconds"] for event in told), sum(blocked) / last["lived_s"]


def big(folder: Path, *, epochs: int, pause: float) -> Project:
    """A model of about 6 MB, 18 MB with its optimizer; saves when tasuki likes."""
    return make_faulty(
        folder,
        params={"diary": False, "width": 1500 * 128, "pause": pause, "norm": "layer"},
        stages=[{"name": "one", "data": "d", "epochs": epochs}],
        defaults={"save": {"every": "auto"}},
    )


def test_the_chosen_interval_keeps_the_stall_of_saves_below_one_percent(warm, tmp_path):
    project = big(tmp_path / "p", epochs=2, pause=0.0)
    finish(warm, project, starts=1)
    allowed, _ = stall(project)
    size = max(event.get("bytes", 0) for event in events(project, "committed"))
    print(f"R10: {size / 1e6:.0f} MB, interval chosen so that saves stall <= {allowed:.2%}")
    assert allowed <= 0.01


@pytest.mark.long
@pytest.mark.timeout(600)
def test_measured_over_a_minute_saves_stall_less_than_one_percent_of_the_run(warm, tmp_path):
    project = big(tmp_path / "p", epochs=170, pause=0.05)
    finish(warm, project, starts=1)
    allowed, measured = stall(project)
    num = len(events(project, "committed"))
    print(f"R10: {num} saves: allowed {allowed:.2%}, measured {measured:.3%} of the run")
    assert num >= 3  # the first, the last, and one that tasuki chose
    assert allowed <= 0.01 and measured <= 0.01
