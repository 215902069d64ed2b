"""Several runs in one job of Slurm: a smaller job for what is left, a cancel of one of them."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tasuki.clock import SystemClock
from tasuki.commands.cancel import Controller, cancel_run
from tasuki.commands.queued import look
from tasuki.commands.status import read_status
from tasuki.runs.attempts import read_attempt_ends
from tasuki.slurm.client import Slurm
from tasuki.slurm.script import SlurmJob
from tasuki.slurm.submit import submit_jobs, write_order
from tests.harness.packed import Packed, make_packed
from tests.slurm import project
from tests.slurm.project import ROOT, take_all_nodes

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
USER = str(os.getuid())
CLOCK = SystemClock()


def experiment(pause: float = 0.0, epochs: int = 4, **more: object) -> dict:
    params = {"pause": pause, "norm": "layer"}
    return {"params": params, "stages": [{"name": "one", "data": "d", "epochs": epochs}], **more}


def environment(cluster) -> dict[str, str]:
    return {**cluster.environment, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def slurm_of(cluster) -> Slurm:
    return Slurm(environment=environment(cluster), clock=CLOCK)


def submit(cluster, packed: Packed, **wanted: object) -> str:
    command = (sys.executable, "-P", "-m", "tasuki.jobs", str(packed.job.path))
    job = SlurmJob(
        name=packed.job.name,
        folder=packed.job.path,
        command=command,
        limit_s=3600,
        cpus=json.loads(packed.job.lanes.read_text())["cpus"],
        memory_bytes=800 << 20,
        **wanted,  # type: ignore[arg-type]
    )
    orders = [write_order(job)]
    return submit_jobs(slurm_of(cluster), orders, user=USER, clock=CLOCK)[packed.job.name]


def wait(packed: Packed, is_so, what: str) -> None:
    project.wait(is_so, lambda: f"not {what}:\n{packed.logs()}")


def wait_for_end(packed: Packed, *names: str) -> None:
    """The marker comes before the attempt's own end is written."""
    wait(packed, lambda: all(packed.runs[name].is_complete() for name in names), "complete")
    wait(packed, lambda: packed.outcome().get("verdict") == "end", "settled")


def causes(packed: Packed, name: str) -> list[str]:
    ends = read_attempt_ends(packed.runs[name]).values()
    return [end["cause"] for end in ends if end]


def test_what_is_left_of_a_preempted_job_goes_on_as_a_smaller_one(cluster, tmp_path):
    """Where Slurm does not bring the job back by itself. A later job waits for the smaller one."""
    runs = {"a": experiment(0.2, epochs=20, seed=1), "b": experiment(seed=2), "c": experiment()}
    packed = make_packed(tmp_path / "p", runs)
    item = {name: {"run": name, "cpus": 1} for name in "abc"}
    lanes = [([0], [item["a"]]), ([1], [item["b"]]), ([2], [item["c"]])]
    packed.pack(lanes, backend="slurm", grace_s=20.0, partition_grace_s=20.0, cpus=3)
    number = submit(cluster, packed, partition="grace")
    later = write_order(later_job(packed))
    numbers = {packed.job.name: number}
    words = [*later.options, f"--dependency=afterany:{number}", *later.arguments]
    numbers["later"] = slurm_of(cluster).submit(words)
    later.folder.submitted.write_text(json.dumps({"format": 1, "number": numbers["later"]}))
    done = [packed.runs[name].is_complete for name in "bc"]
    wait(packed, lambda: all(is_done() for is_done in done), "done, but for a")
    wait(packed, lambda: packed.steps("a") > 2, "in lane a")
    take_all_nodes(cluster, tmp_path / "high")
    wait(packed, lambda: json.loads(packed.job.submitted.read_text()).get("after"), "succeeded")
    submitted = json.loads(packed.job.submitted.read_text())
    assert (submitted["after"], submitted["before"]) == (number, [number])
    options = json.loads(packed.job.order.read_text())["options"]
    assert "--cpus-per-task=1" in options and "--mem=267M" in options
    shown = cluster.run("scontrol", "show", "job", submitted["number"])
    assert "NumCPUs=1 " in shown, shown
    waits = f"Dependency=afterany:{submitted['number']}"
    show = ("scontrol", "show", "job", numbers["later"])
    wait(packed, lambda: waits in cluster.run(*show), "waiting for the successor")
    wait_for_end(packed, "a")
    assert causes(packed, "a") == ["preempted", "none"]
    assert packed.steps("a") == 120 and packed.steps("b") == packed.steps("c") == 24
    cluster.run("scancel", numbers["later"])


def later_job(packed: Packed) -> SlurmJob:
    folder = packed.job.path.parent / "later"
    folder.mkdir()
    (folder / "lanes.json").write_text(packed.job.lanes.read_text())
    name = packed.job.name
    return SlurmJob(name="later", folder=folder, command=("true",), after=(name,), limit_s=60)


def test_cancel_of_one_run_leaves_the_job_to_the_others(cluster, tmp_path):
    runs = {name: experiment(0.2, epochs=12) for name in "ab"}
    packed = make_packed(tmp_path / "p", runs)
    packed.pack([([0], [{"run": "a"}]), ([1], [{"run": "b"}])], backend="slurm", cpus=2)
    number = submit(cluster, packed, partition="low")
    wait(packed, lambda: packed.steps("a") > 2 and packed.steps("b") > 2, "in both lanes")
    controller = Controller(slurm=slurm_of(cluster), user=USER)
    answer = cancel_run(packed.runs["a"], clock=CLOCK, controller=controller, wait_s=30)
    assert (answer["state"], answer["jobs"]) == ("cancelled", [number])
    known = look(controller.slurm, packed.job.runs, user=USER, clock=CLOCK, fresh_s=0.0)
    told = {one["experiment"]: one for one in status_of(packed, known)}
    assert (told["a"]["state"], told["b"]["state"]) == ("cancelled", "running")
    wait_for_end(packed, "b")
    assert causes(packed, "a") == ["cancelled"] and causes(packed, "b") == ["none"]


def status_of(packed: Packed, known) -> list[dict]:
    return read_status(packed.runs.values(), now=CLOCK.wall(), known=known)["runs"]
