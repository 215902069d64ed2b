"""`tasuki new --from-slurm` and `--from-script`: a script that exists already becomes a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tasuki
from tasuki.commands.new_from_slurm import new_from_slurm
from tasuki.slurm import script as sbatch
from tasuki.slurm.batch_script import BatchScript, read_batch_script
from tasuki.spec.load import load_spec

OLD = """\
#!/bin/bash
#SBATCH --job-name="big run"
#SBATCH -t 1-12 -p gpu,long
#SBATCH --gres=gpu:a100:4 # all of them
#SBATCH --cpus-per-task 8
#SBATCH --ntasks-per-node=4
#SBATCH --mem=240G
#SBATCH -A my-group --qos=high
#SBATCH --no-requeue
#SBATCH --reservation=class
#SBATCH --exclusive
#SBATCH --output=logs/%j.out

module load cuda/12
source ~/venv/bin/activate
export OMP_NUM_THREADS=8
echo starting
srun torchrun --standalone --nproc-per-node 4 \\
    train.py --lr 3e-4
echo done
"""


def make(tmp_path: Path, text: str) -> tuple[dict[str, Any], Any]:
    """What was told, and the spec that was written."""
    (tmp_path / "old.slurm").write_text(text)
    made = new_from_slurm(tmp_path, tmp_path / "old.slurm")
    return made, load_spec(str(tmp_path / "tasuki.yaml"), environ={"HOME": "/home/me"})


def told(made: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {key["key"]: (key["fate"], key["words"]) for key in made["keys"]}


def test_what_a_script_asked_for_is_what_the_spec_asks_for(tmp_path):
    made, spec = make(tmp_path, OLD)
    cluster = spec.cluster
    assert (cluster.time_limit_s, cluster.partition) == (36 * 3600, "gpu,long")
    assert (cluster.gpus, cluster.cpus, cluster.memory_bytes) == (4, 32, 240 * 2**30)
    assert (cluster.account, cluster.qos, cluster.requeue) == ("my-group", "high", False)
    assert cluster.extra == {"reservation": "class", "exclusive": True}
    assert (tmp_path / "setup.sh").read_text().splitlines() == [
        "module load cuda/12",
        "source ~/venv/bin/activate",
        "export OMP_NUM_THREADS=8",
    ]
    (experiment,) = spec.experiments
    (stage,) = experiment.stages
    words = "torchrun --standalone --nproc-per-node 4 train.py --lr 3e-4"
    assert experiment.name == "big_run" and stage.command == tuple(words.split())
    assert told(made)["--output"] == ("none", "logs lie in the run's folder")
    assert "of a100: name it as `cluster.gpu`" in told(made)["--gres"][1]
    assert {key["key"]: key["line"] for key in made["keys"]}["--qos"] == 8


@pytest.mark.parametrize(
    ("lines", "cluster"),
    [
        ("#SBATCH -t 90\n", {"time_limit_s": 90 * 60}),
        ("#SBATCH --time=10:30\n", {"time_limit_s": 630}),
        ("#SBATCH -t 1-02:03:04\n", {"time_limit_s": 93784}),
        ("#SBATCH -t UNLIMITED\n", {"time_limit_s": None}),
        ("#SBATCH -t soon\n", {"time_limit_s": None}),
        ("#SBATCH -G 8 -N 2\n", {"gpus": 4, "nodes": 2}),
        ("#SBATCH -N 1-4\n", {"nodes": 1}),
        ("#SBATCH --gpus=v100:2\n", {"gpus": 2}),
        ("#SBATCH --gpus-per-task=1 --ntasks=4\n", {"gpus": 4}),
        ("#SBATCH --gres=gpu\n", {"gpus": 1}),
        ("#SBATCH --gres=craynetwork:1\n", {"gpus": 1}),
        ("#SBATCH -c4\n", {"cpus": 4}),
        ("#SBATCH --cpus-per-gpu=6 --gpus-per-node=2\n", {"cpus": 12}),
        ("#SBATCH --mem=64000\n", {"memory_bytes": 64000 * 2**20}),
        ("#SBATCH --mem-per-cpu=2G -c 8\n", {"memory_bytes": 16 * 2**30}),
        ("#SBATCH --mem-per-gpu=60G --gres=gpu:2\n", {"memory_bytes": 120 * 2**30}),
        ("#SBATCH --mem=0\n", {"memory_bytes": None}),
        ("##SBATCH --mem=4G\n", {"memory_bytes": None}),
    ],
)
def test_every_way_to_ask_for_things_is_understood(tmp_path, lines, cluster):
    _, spec = make(tmp_path, f"#!/bin/sh\n{lines}python train.py\n")
    assert {key: getattr(spec.cluster, key) for key in cluster} == cluster


def test_an_option_below_the_first_command_counts_for_nothing_as_in_sbatch(tmp_path):
    made, spec = make(tmp_path, "#SBATCH -c 2\nmodule load x\n#SBATCH --mem=4G\npython t.py\n")
    assert spec.cluster.memory_bytes is None and spec.cluster.cpus == 2
    assert told(made)["--mem"][0] == "none" and "below" in told(made)["--mem"][1]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for x in 1 2; do python t.py $x; done\n", "loops"),
        ("if true; then\n python t.py\nfi\n", "loops, conditions"),
        ("python a.py\npython b.py\n", "several commands"),
        ("cd /data\npython t.py\n", "several commands"),
        ("python t.py --data $DATA\n", "needs a shell"),
        ("python t.py | tee log\n", "needs a shell"),
        ("srun -n 4 python t.py\n", "srun has options"),
        ("LR=3 python t.py\n", "sets a variable"),
        ("module load x\n", "no command"),
        ("python t.py\nmodule unload x\n", "comes after"),
        ("cat <<END\nx\nEND\npython t.py\n", "texts of its own"),
        ("", "no command"),
    ],
)
def test_what_takes_a_shell_is_left_to_one(tmp_path, body, why):
    made, spec = make(tmp_path, f"#!/bin/bash\n#SBATCH -c 2\n{body}")
    assert spec.experiments[0].stages[0].command == ("bash", "old.slurm")
    assert any(why in note for note in made["notes"]), made["notes"]
    assert not (tmp_path / "setup.sh").exists()


def test_nothing_is_put_into_extra_that_submit_would_refuse(tmp_path):
    refused = {*sbatch._OURS, *sbatch._FIXED}
    lines = "".join(f"#SBATCH --{name}=1\n" for name in sorted(refused))
    _, spec = make(tmp_path, f"{lines}python t.py\n")
    assert not refused & spec.cluster.extra.keys()


@given(text=st.text(max_size=200) | st.text("#SBATCH -=tpc1\n '\"\\$", max_size=200))
def test_any_text_can_be_read(text):
    assert isinstance(read_batch_script(text), BatchScript)


def test_a_project_of_a_script_runs_it_here(here, tmp_path):
    (tmp_path / "hello.py").write_text("print('hello')\n")
    said = here(tmp_path, "new", "made", "--from-script", "hello.py")
    assert said.code == 0 and said.out.splitlines() == ["made/tasuki.yaml", "made/.gitignore"], said
    assert "relative paths are meant from there" in said.err
    (experiment,) = load_spec(str(tmp_path / "made"), environ={}).experiments
    assert experiment.name == "hello"
    assert experiment.stages[0].command == ("python", "../hello.py")
    plan = here(tmp_path / "made", "plan", "--json")
    assert plan.code == 0, plan


def test_the_verb_tells_and_the_python_function_gives_the_same(here, tmp_path, monkeypatch):
    (tmp_path / "old.slurm").write_text(OLD)
    dry = here(tmp_path, "new", "made", "--from-slurm", "old.slurm", "--dry-run", "--json")
    assert dry.code == 0 and not (tmp_path / "made").exists(), dry
    said = here(tmp_path, "new", "made", "--from-slurm", "old.slurm")
    assert said.code == 0, said
    assert '--time: "1-12" → cluster.time_limit: "1d12h" (old.slurm:3)' in said.err, said
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").rename(tmp_path / "before")
    assert tasuki.new("made", from_slurm="old.slurm") == dry.json()
    again = here(tmp_path, "new", "made", "--from-slurm", "old.slurm")
    assert again.code == 2 and "made has tasuki.yaml and setup.sh already" in again.err, again


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--from-slurm", "none.slurm"), "there is no file none.slurm"),
        (("--from-script", "data.bin"), "data.bin is no script"),
        (("--from-script", "notes.txt"), "neither Python nor bash"),
        (("--from-script", "a.py", "--from-slurm", "b"), "made from one thing"),
    ],
)
def test_what_is_no_script_is_refused(here, tmp_path, words, why):
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    (tmp_path / "notes.txt").write_text("hello")
    said = here(tmp_path, "new", "made", *words)
    assert said.code == 2 and why in said.err and "hint:" in said.err, said
    assert not (tmp_path / "made").exists()
