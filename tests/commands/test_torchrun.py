"""`torchrun -m tasuki run`: what people type who know torchrun, with the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasuki.cli.torchrun import clear_torchrun, read_torchrun
from tasuki.commands.compare import compare_runs
from tasuki.runs.attempts import live_runner
from tasuki.runs.events import read_events
from tests.commands.projects import Project, Said, finish, kill_leftovers, make_project, until

RANKS = 3
OF_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29400",
    "OMP_NUM_THREADS": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
TELLTALE = '''

class Telltale(Learner):
    """Writes down the environment of its rank."""

    def build_dataset(self, source, split):
        import json
        with open("environ.json", "w") as file:
            json.dump(dict(os.environ), file)
        return super().build_dataset(source, split)
'''


def make(folder: Path, python: str, **more) -> Project:
    made = make_project(
        folder,
        python=python,
        recipe="Telltale",
        params={"norm": "layer", "pause": 0.01},
        stages=[{"name": "one", "data": "d", "epochs": 20}],
        cluster__cpus=RANKS,
        defaults__micro_batch=2,
        **more,
    )
    (made.folder / "recipes.py").write_text((made.folder / "recipes.py").read_text() + TELLTALE)
    return made


def torchrun(made: Project, *options: str, program: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, "--nproc-per-node", str(RANKS), *options, "-m", "tasuki", "run"],
        cwd=made.folder,
        env=made.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


MODULE = (sys.executable, "-m", "torch.distributed.run")
SCRIPT = (str(Path(sys.executable).with_name("torchrun")),)


def differences(one: Project, other: Project) -> list[str]:
    checks = compare_runs(one.run(), other.run(), ["one"]).checks
    return [what for what, is_equal in checks if not is_equal]


def say(said: Said, made: Project) -> str:
    return f"{said}\n{made.logs()}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory, warm_python) -> Iterator[Project]:
    """The same, by `tasuki run` with `cluster.gpus`."""
    folder = tmp_path_factory.mktemp("plain")
    made = make(folder / "p", warm_python, cluster__gpus=RANKS)
    said = made.type("run")
    assert said.code == 0, say(said, made)
    yield made
    kill_leftovers(folder)


@pytest.fixture
def made(tmp_path, warm_python) -> Iterator[Project]:
    """For torchrun: the spec asks for another number of ranks."""
    yield make(tmp_path / "p", warm_python, cluster__gpus=2)
    kill_leftovers(tmp_path)


@pytest.mark.long
def test_torchrun_does_what_run_does_with_that_many_ranks_bit_for_bit(made, plain):
    said = finish(torchrun(made, program=MODULE))
    assert said.code == 0, say(said, made)
    assert "torchrun: 3 ranks here; `cluster.gpus: 2` of the spec does not count" in said.err
    assert said.err.count("the others leave") == 1
    assert said.out.count("complete") == 1, said
    assert differences(plain, made) == []
    environs = [json.loads((p.folder / "environ.json").read_text()) for p in (plain, made)]
    assert environs[0].keys() == environs[1].keys()
    frozen = [json.loads((p.run().path / "frozen.json").read_text()) for p in (plain, made)]
    assert frozen[0] == frozen[1]


@pytest.mark.long
def test_torchrun_that_starts_its_processes_anew_goes_on_where_they_were(made, plain):
    process = torchrun(made, "--max-restarts", "2", program=MODULE)
    killed: set[int] = set()
    for number, step in ((signal.SIGTERM, 5), (signal.SIGKILL, 40)):
        until(lambda step=step: made.step() >= step, made.logs)
        until(lambda: (live_runner(made.run()) or 0) not in killed | {0}, made.logs)
        pid = live_runner(made.run())
        assert pid is not None
        killed.add(pid)
        os.kill(pid, number)
    said = finish(process)
    assert said.code == 0, say(said, made)
    assert differences(plain, made) == []
    ended = [e["ending"] for e in read_events(made.run()) if e["kind"] == "attempt-ended"]
    assert ended == ["handed-over", "handed-over", "done"]


@pytest.mark.long
def test_a_new_start_waits_for_the_handover_of_an_attempt_that_still_lives(made, plain):
    """As when torchrun kills its processes and starts them anew at once."""
    first = made.start("run", "--set", f"cluster.gpus={RANKS}")
    until(lambda: made.step() >= 5, made.logs)
    ranks = {"LOCAL_WORLD_SIZE": str(RANKS), "WORLD_SIZE": str(RANKS)}
    again = made.start("run", **OF_TORCHRUN | ranks | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.stderr is not None
    for line in again.stderr:
        if "is live" in line:
            break
    first.send_signal(signal.SIGTERM)
    assert finish(first).code == 75
    said = finish(again)
    assert said.code == 0, say(said, made)
    assert differences(plain, made) == []


@pytest.mark.long
def test_a_notice_to_torchrun_hands_over_and_the_same_command_goes_on(made, plain):
    process = torchrun(made, program=SCRIPT)
    until(lambda: made.step() >= 5, made.logs)
    process.send_signal(signal.SIGTERM)
    said = finish(process)
    assert said.code != 0
    ended = [e["ending"] for e in read_events(made.run()) if e["kind"] == "attempt-ended"]
    assert ended == ["handed-over"], say(said, made)
    said = finish(torchrun(made, program=SCRIPT))
    assert said.code == 0, say(said, made)
    assert differences(plain, made) == []


def test_several_nodes_of_torchrun_are_refused_in_words(project, here):
    made = project()
    said = here(made.folder, "run", **OF_TORCHRUN | {"WORLD_SIZE": "4"})
    assert said.code == 2
    assert "several nodes" in said.err and "`tasuki submit`" in said.err
    assert not made.runs.exists()


@pytest.mark.parametrize(("rank", "words"), [(1, 1), (2, 0)])
def test_other_processes_of_torchrun_leave_at_once_and_only_one_says_so(project, here, rank, words):
    made = project()
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
    said = here(made.folder, "run", **OF_TORCHRUN | ranks | {"LOCAL_WORLD_SIZE": "3"})
    assert (said.code, said.out, len(said.err.splitlines())) == (0, "", words)
    assert not made.runs.exists()


def test_what_torchrun_sets_is_taken_away_and_what_the_user_set_stays():
    own = {"OMP_NUM_THREADS": "3", "PATH": "/bin", "TORCH_LOGS": "ddp_graphs"}
    environ = OF_TORCHRUN | own
    assert read_torchrun(environ) is not None
    clear_torchrun(environ)
    assert environ == own


def test_variables_of_some_other_launcher_are_not_taken_for_torchrun():
    assert read_torchrun({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}) is None
