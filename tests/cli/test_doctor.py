"""`tasuki doctor` without a cluster, and the rules by which it judges one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import resources

import pytest

import tasuki
from tasuki.commands.doctor_live import read_life
from tasuki.commands.doctor_machine import mount_of
from tasuki.commands.doctor_rules import (
    check_commands,
    check_live,
    check_machine,
    exact_seconds,
    kill_wait_of,
    treat,
)
from tasuki.commands.doctor_site import render_site
from tasuki.commands.doctor_wishes import check_wishes
from tasuki.slurm.text import (
    ShownNodes,
    ShownPartition,
    UnknownWords,
    most_gpus,
    parse_nodes,
)
from tasuki.spec.resolved import ResolvedCluster
from tasuki.spec.site import load_site
from tasuki.units import Duration
from tasuki.views.doctor import doctor_lines
from tests.cli.person import make_project, until
from tests.cli.test_help import modules_of

NO_SLURM = {"PATH": "/nowhere", "TASUKI_SITE": ""}


def test_without_slurm_it_tells_of_this_machine_and_that_jobs_run_here(here, tmp_path):
    said = here(tmp_path, "doctor", **NO_SLURM)
    assert said.code == 0 and "No Slurm here: jobs run on this machine" in said.out, said
    for word in ("CPUs", "/dev/shm", "Python", "free"):
        assert word in said.out
    assert list(tmp_path.iterdir()) == []


def test_the_values_for_scripts_are_those_of_the_function(here, tmp_path, monkeypatch):
    told = here(tmp_path, "doctor", "--json", "--runs", "r", **NO_SLURM).json()
    assert told["format"] == 1 and told["ok"] and told["slurm"] is None and told["live"] is None
    assert told["runs"]["folder"] == str(tmp_path / "r") and not told["runs"]["exists"]
    for name, value in NO_SLURM.items():
        monkeypatch.setenv(name, value)
    again = tasuki.doctor(runs=tmp_path / "r")
    assert {**again["machine"]} == told["machine"] and again["findings"] == told["findings"]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["--live"], "there is no `sinfo` here", "login node"),
        (["--write-site", "s.yaml"], "nothing to write into a site file", "login node"),
        (["--within", "7"], "`7` is not a duration", "8h"),
        (["--write-site"], "no home to write a site file into", "--write-site FILE"),
    ],
)
def test_what_cannot_be_done_without_slurm_is_said(here, tmp_path, words, error, hint):
    said = here(tmp_path, "doctor", *words, **NO_SLURM)
    assert said.code in (1, 2) and error in said.err and hint in said.err, said
    assert list(tmp_path.iterdir()) == []


def test_a_spec_that_wants_slurm_has_a_problem_where_there_is_none(here, tmp_path):
    folder = make_project(tmp_path / "p", cluster__backend="slurm").folder
    said = here(folder, "doctor", **NO_SLURM)
    assert said.code == 1 and "problem: the spec wants Slurm" in said.out, said


def test_a_spec_or_a_folder_that_cannot_be_used_is_a_problem_among_others(here, tmp_path):
    (tmp_path / "tasuki.yaml").write_text("experimnts: {}\n")
    (tmp_path / "file").write_text("")
    said = here(tmp_path, "doctor", "--runs", "file", **NO_SLURM)
    assert said.code == 1 and "tasuki.yaml:1: unknown key `experimnts`" in said.out, said
    assert "problem: the runs folder" in said.out and "This machine" in said.out
    said = here(tmp_path, "doctor", "other.yaml", **NO_SLURM)
    assert said.code == 1 and "there is no spec at ./other.yaml" in said.out


def test_a_broken_site_file_is_an_error(here, tmp_path):
    (tmp_path / "site.yaml").write_text("clustr: {}\n")
    said = here(tmp_path, "doctor", **{**NO_SLURM, "TASUKI_SITE": "site.yaml"})
    assert said.code == 2 and "site.yaml:1: unknown key `clustr`" in said.err, said


def test_it_needs_neither_torch_nor_numpy(tmp_path):
    project = make_project(tmp_path / "p")
    project.environment.update(NO_SLURM)
    imported = modules_of(project, "tasuki", "doctor")
    assert "tasuki.commands.doctor" in imported and not {"torch", "numpy"} & imported


# -- the rules ----------------------------------------------------------------------------------

BY_TIER = {"PreemptType": "preempt/partition_prio", "KillWait": "30 sec"}


def shown(name: str = "p", **more: object) -> ShownPartition:
    values: dict[str, object] = {
        "is_default": True,
        "is_up": True,
        "longest_s": 3600.0,
        "grace_s": 0.0,
        "preempt_mode": "REQUEUE",
        "tier": 1,
        "nodes": 2,
        **more,
    }
    return ShownPartition(name=name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("partition", "settings", "after", "save_s"),
    [
        (shown(), BY_TIER, "slurm", 30),
        (shown(grace_s=120.0), BY_TIER, "itself", 150),
        (shown(grace_s=120.0, preempt_mode="CANCEL"), BY_TIER, "itself-or-successor", 150),
        (shown(preempt_mode="OFF", grace_s=120.0), BY_TIER, "never", 30),
        (shown(tier=9), BY_TIER, "never", 30),
        (shown(preempt_mode="GANG,SUSPEND"), BY_TIER, "suspended", 30),
        (shown(), {"PreemptType": "preempt/none", "KillWait": "60 sec"}, "never", 60),
        (shown(grace_s=5.0), {"PreemptType": "preempt/qos"}, "qos", 30),
    ],
)
def test_who_brings_a_preempted_job_back_and_how_long_it_has(partition, settings, after, save_s):
    found = treat(partition, [partition, shown("urgent", tier=9)], settings)
    assert (found.after, found.save_s) == (after, save_s)
    assert "to save" in found.words


def test_a_kill_that_came_late_is_not_counted_on_but_an_early_one_is():
    others = [shown("urgent", tier=9)]
    late = treat(shown(), others, BY_TIER, measured_s=33.2)
    early = treat(shown(grace_s=10.0), others, BY_TIER, measured_s=4.0)
    assert (late.save_s, early.save_s) == (30.0, 14.0) and "measured 33.2s" in late.words
    assert kill_wait_of({}) == 30.0


ALIKE = {"partition": "p", "count": 2, "cpus": 16, "memory_bytes": 64 << 30, "gpus": {"a100": 4}}
LARGE = {**ALIKE, "count": 1, "cpus": 64, "gpus": {}}


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"cpus": 16, "gpus": 4}, None),
        ({"cpus": 65}, "`cluster.cpus` asks for 65 CPUs on a node, but a node of `p` has 64 CPUs"),
        ({"gpus": 8}, "`cluster.gpus` asks for 8 GPUs on a node, but a node of `p` has 4 GPUs"),
        ({"gpu": "h", "gpus": 1}, "asks for 1 GPUs (h100) on a node, but a node of `p` has 0"),
        ({"gpu": "cpu", "gpus": 99}, "`cluster.gpus` asks for 99 CPUs"),
        ({"memory_bytes": 65 << 30}, "asks for 69.8 GB of memory on a node, but a node of `p` has"),
        ({"nodes": 4}, "`cluster.nodes` is 4, but `p` has 3"),
        ({"nodes": 3}, "1 GPUs at once: 2 of the 3 nodes of `p` have that, and 3 are asked for"),
        ({"cpus": 32, "gpus": 2}, "32 CPUs, 2 GPUs at once: none of the 3 nodes of `p` have that"),
        ({"gpu": "cpu", "cpus": 64, "gpus": 2}, None),
    ],
)
def test_a_wish_that_no_node_can_fulfil_is_told_with_its_numbers(wishes, words):
    cluster = ResolvedCluster(partition="p", **wishes)
    found = check_wishes(
        cluster,
        shown(nodes=3),
        [ShownNodes(**ALIKE), ShownNodes(**LARGE), ShownNodes(**{**LARGE, "partition": "q"})],
        gres="gpu:h100" if cluster.gpu == "h" else None,
        asks_for_gpus=cluster.gpu != "cpu",
    )
    told = [one.what for one in found if one.is_problem and one.hint]
    assert len(told) == (words is not None) and (words is None or words in told[0]), told


def test_gpus_where_no_node_has_any_name_the_partitions_that_have():
    nodes = [ShownNodes(**LARGE), ShownNodes(**{**ALIKE, "partition": "g"})]
    cluster = ResolvedCluster(partition="p")
    (found,) = check_wishes(cluster, shown(), nodes, gres=None, asks_for_gpus=True)
    assert found.what == "GPUs are asked for, but partition `p` has no GPUs"
    assert "`g`" in found.hint and "{gpu: cpu}" in found.hint
    assert not list(check_wishes(cluster, shown(), nodes, gres=None, asks_for_gpus=False))


def test_a_controller_that_is_silent_is_not_called_absent(here, tmp_path):
    report = here(tmp_path, "doctor", "--json", **NO_SLURM).json()
    silent = {
        "version": "22.05.8",
        "answers": False,
        "commands": {},
        "settings": {},
        "partitions": [],
    }
    lines = doctor_lines({**report, "slurm": silent})
    assert "Slurm 22.05.8, but it does not answer: see below" in lines
    assert not any("No Slurm here" in line for line in lines)


def test_a_machine_is_judged_by_room_and_by_whether_nodes_can_see_its_disk():
    runs = {
        "folder": "/r",
        "is_writable": True,
        "free_bytes": 10**12,
        "file_system": "ext4",
    }
    machine = {"shm_bytes": 64 << 20}

    def judged(is_seen: bool = False, **more: object) -> list[str]:
        found = check_machine({**runs, **more}, machine, has_slurm=True, is_seen=is_seen)
        return [("problem: " if one.is_problem else "") + one.what for one in found]

    assert any("/dev/shm has 67.1 MB" in what for what in judged())
    assert any("lies on ext4" in what for what in judged())
    assert not any("lies on" in what for what in [*judged(True), *judged(file_system="lustre")])
    assert any("1 GB are free" in what for what in judged(free_bytes=10**9))
    assert judged(is_writable=False)[0].startswith("problem: the runs folder /r")


def test_a_command_that_is_missing_beside_slurm_is_a_problem_unless_it_is_sacct():
    names = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")
    commands: dict[str, str | None] = {name: f"/bin/{name}" for name in names}
    assert list(check_commands({**commands, "sacct": None})) == []
    (found,) = check_commands({**commands, "srun": None})
    assert found.is_problem and "`srun`" in found.what


def test_a_node_where_runs_are_not_seen_or_a_kill_comes_unannounced_is_told():
    live = {
        "problem": None,
        "node": "n7",
        "python": "/py",
        "runs": {"is_visible": False, "words": "/r is no folder there"},
        "scontrol": {"ok": True, "words": ""},
        "recipe": None,
        "requeue": {"is_wanted": True, "is_allowed": False, "words": "disabled"},
        "kill_after_s": {"batch": None, "step": None},
    }
    told = [one.what for one in check_live(live)]
    assert "on node n7 the runs folder cannot be used: /r is no folder there" in told
    assert "a job may not requeue itself: disabled" in told
    assert "a cancelled job was killed without any notice" in told
    live["scontrol"] = {"ok": False, "words": "there is no scontrol there"}
    assert any("scontrol does not work" in one.what for one in check_live(live))


def test_the_kill_is_the_last_sign_of_life_after_the_first_term():
    life = read_life("100.000 CONT\n100.100 TERM\n101.000 TERM\n", "102.350\n")
    assert life.killed_after_s == 2.25
    assert read_life("100.000 CONT\n", "102.350\n").killed_after_s is None
    assert read_life("", "").killed_after_s is None


def test_the_probe_hears_every_signal_at_once_also_the_second_of_two(tmp_path):
    source = resources.files("tasuki.commands") / "doctor_probe.py"
    probe = subprocess.Popen(
        [sys.executable, str(source), "step", str(tmp_path)],
        env={**os.environ, "SLURM_RESTART_COUNT": "1"},
    )
    try:
        until((tmp_path / "ready.1.json").exists)
        log = tmp_path / "signals.1.step"
        for number in range(1, 41):
            probe.send_signal(signal.SIGCONT)
            probe.send_signal(signal.SIGTERM)
            until(lambda wanted=number: log.read_text().count("TERM") == wanted)
    finally:
        probe.kill()
        probe.wait()
    life = read_life(log.read_text(), (tmp_path / "beat.1.step").read_text())
    assert life.killed_after_s is not None


def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount():
    mounts = (
        "overlay / overlay rw 0 0\nnfs:/home /home nfs4 rw 0 0\n"
        "x /home/my\\040disk xfs rw 0 0\nrun /homes tmpfs rw 0 0\nlate /home lustre rw 0 0\n"
    )
    assert mount_of("/home/me/runs", mounts) == ("/home", "lustre")
    assert mount_of("/home/my disk/runs", mounts) == ("/home/my disk", "xfs")
    assert mount_of("/homeless", mounts) == ("/", "overlay")
    assert mount_of("/x", "") == ("", "unknown")


def test_what_nodes_of_partitions_have_is_read_from_what_sinfo_prints():
    nodes = parse_nodes(
        "gpu|2|64|500000|gpu:a100:4(S:0-1),gpu:h100:8\ngpu|1|32+|250000+|gpu:a100:2\n"
        "cpu|9|16|64000|(null)\nold|1|8|32000|gpu:2,craynetwork:4\nodd|0|0|0|gpu\n"
    )
    assert nodes[1] == ShownNodes(
        partition="gpu", count=1, cpus=32, memory_bytes=250000 << 20, gpus={"a100": 2}
    )
    with pytest.raises(UnknownWords):
        parse_nodes("gpu|many|64|500000|")
    assert most_gpus(nodes) == {
        "gpu": {"a100": 4, "h100": 8},
        "cpu": {},
        "old": {"": 2},
        "odd": {"": 1},
    }


@pytest.mark.parametrize("seconds", [0.0, 2.0, 4.87, 90.0, 3600.0, 5400.0, 86400.0, 93784.0])
def test_durations_in_a_site_file_lose_nothing(seconds):
    assert Duration.parse(exact_seconds(seconds)).seconds == seconds


def test_a_site_file_of_odd_names_reads_back_as_it_was(tmp_path):
    names = ["on", "123", "a: b", "gpu_8-a.x", "n\n#", "ok"]
    partitions = [
        {
            "name": name,
            "gpus": {"a100": 4, "": 2},
            "longest_s": None,
            "grace_s": 120.0,
            "preempt_mode": "OFF",
            "kill_wait_s": 30.0,
            "save_s": 35.0,
            "measured_s": None,
        }
        for name in names
    ]
    slurm = {"settings": {"ClusterName": 'x"\ny: z'}, "partitions": partitions}
    path = tmp_path / "site.yaml"
    path.write_text(render_site(json.loads(json.dumps(slurm)), at="now", live=None))
    site = load_site(environ={"TASUKI_SITE": str(path)})
    assert list(site.partitions) == names and site.warnings == ()
    assert all((one.save_s, one.preempt_mode) == (35.0, "OFF") for one in site.partitions.values())
    assert site.gpus["a100"].gres == "gpu:a100"
