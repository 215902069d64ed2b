"""`tasuki new`: an empty project, or one from a Slurm script, a Python script or YAML files."""

from __future__ import annotations

import shutil
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
        ("#SBATCH -t 1-02:03:04\n", {"time_limit_s": 93784}),
        ("#SBATCH -t soon\n", {"time_limit_s": None}),
        ("#SBATCH -G 8 -N 2\n", {"gpus": 4, "nodes": 2}),
        ("#SBATCH --gpus-per-task=1 --ntasks=4\n", {"gpus": 4}),
        ("#SBATCH --gres=craynetwork:1\n", {"gpus": 1}),
        ("#SBATCH -c4\n", {"cpus": 4}),
        ("#SBATCH --cpus-per-gpu=6 --gpus-per-node=2\n", {"cpus": 12}),
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
        ("cd /data\npython t.py\n", "several commands"),
        ("python t.py --data $DATA\n", "needs a shell"),
        ("srun -n 4 python t.py\n", "srun has options"),
        ("LR=3 python t.py\n", "sets a variable"),
        ("module load x\n", "no command"),
        ("python t.py\nmodule unload x\n", "comes after"),
        ("cat <<END\nx\nEND\npython t.py\n", "texts of its own"),
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


def test_new_says_what_it_would_write_and_writes_it_only_when_asked(here, tmp_path):
    dry = here(tmp_path, "new", "my project", "--dry-run", "--json")
    assert dry.code == 0 and list(tmp_path.iterdir()) == []
    made = here(tmp_path, "new", "my project", "--json")
    assert made.json() == dry.json()
    assert "project: my-project" in (tmp_path / "my project" / "tasuki.yaml").read_text()
    assert here(tmp_path / "my project", "plan", "--no-measure").code == 0


FILES = {
    "exp1.yaml": "learning_rate: 3.0e-4\ntrain_bs: 2\ngrad_accum: 4\nlora_r: 8\n",
    "exp2_stage1.yaml": "learning_rate: 0.01\nnum_train_epochs: 1\noutput_dir: out/one\n",
    "exp2_stage2.yml": "init_checkpoint: out/one\nmax_steps: 5\nreport_to: wandb\n",
}


@pytest.fixture
def theirs(tmp_path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def words(theirs: Path) -> list[str]:
    return ["--from-yaml", *(f"{theirs.name}/{name}" for name in FILES)]


def test_the_project_is_written_told_key_by_key_and_can_be_planned(here, tmp_path, theirs):
    said = here(tmp_path, "new", "made", *words(theirs))
    assert said.code == 0, said
    names = ["exp1.yaml", "exp2_stage1.yaml", "exp2_stage2.yaml", "recipe.py", ".gitignore"]
    assert said.out.splitlines() == [f"made/{name}" for name in ["tasuki.yaml", *names]]
    for told in (
        "train_bs: 2 → effective_batch: 8 (exp1.yaml:2)",
        "init_checkpoint: out/one → init_from: previous (exp2_stage2.yml:1)",
        "lora_r: 8 (exp1.yaml:4)",
        "report_to: wandb – write `sinks: [tensorboard]`",
        "note: `seed` is not in any file: tasuki's default is 0",
    ):
        assert told in said.err, said
    plan = here(tmp_path / "made", "plan", "--no-measure", "--json")
    assert plan.code == 0, plan
    pieces = [p for job in plan.json()["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    assert [(p["experiment"], p["stage"], p["effective_batch"]) for p in pieces] == [
        ("exp1", "exp1", 8),
        ("exp2", "exp2_stage1", 8),
        ("exp2", "exp2_stage2", 8),
    ]


def test_a_dry_run_and_the_function_tell_the_same_and_write_nothing(
    here, tmp_path, theirs, monkeypatch
):
    before = sorted(tmp_path.rglob("*"))
    dry = here(tmp_path, "new", "made", *words(theirs), "--dry-run", "--json")
    assert dry.code == 0 and sorted(tmp_path.rglob("*")) == before
    made = here(tmp_path, "new", "made", *words(theirs), "--json")
    assert made.json() == dry.json()
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "made")
    assert tasuki.new("made", from_yaml=[f"theirs/{name}" for name in FILES]) == dry.json()
    (first,) = (key for key in made.json()["keys"] if key["key"] == "grad_accum")
    assert first == {
        "file": "theirs/exp1.yaml",
        "line": 3,
        "key": "grad_accum",
        "value": 4,
        "fate": "translated",
        "words": "effective_batch: 8",
    }


def test_a_recipe_that_is_there_stays_and_nothing_else_is_overwritten(here, tmp_path, theirs):
    made = tmp_path / "made"
    made.mkdir()
    (made / "recipe.py").write_text("mine")
    said = here(tmp_path, "new", "made", *words(theirs))
    assert said.code == 0 and "recipe.py" not in said.out, said
    assert (made / "recipe.py").read_text() == "mine"
    before = {path: path.read_bytes() for path in made.iterdir()}
    again = here(tmp_path, "new", "made", *words(theirs))
    assert again.code == 2 and "made has tasuki.yaml and exp1.yaml" in again.err, again
    own = here(tmp_path, "new", "theirs", *words(theirs))
    assert own.code == 2 and "theirs has exp1.yaml" in own.err, own
    assert {path: path.read_bytes() for path in made.iterdir()} == before
    assert {p.name: p.read_text() for p in theirs.iterdir()} == FILES


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("bad.yaml", b"a: [1, 2\n", "bad.yaml:1:4: this is not YAML"),
        ("bad.yaml", b"\xff\xfe\x00", "the file is not UTF-8"),
        ("bad.yaml", b"a: !!python/object:os.system x\n", "is not understood"),
        ("$(touch owned).yaml", b"seed: 1\n", "cannot be a name"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_words_and_nothing_is_written(
    here, tmp_path, theirs, name, content, told
):
    (theirs / name).write_bytes(content)
    said = here(tmp_path, "new", "made", "--from-yaml", "theirs/exp1.yaml", f"theirs/{name}")
    assert said.code == 2 and told in said.err and "hint:" in said.err, said
    assert "Traceback" not in said.err and not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from-yaml",), "`--from-yaml` needs at least one name"),
        (("--from-yaml", "theirs/none.yaml"), "there is no file theirs/none.yaml"),
        (("--from-yaml", "theirs"), "there is no file theirs"),
        (("--from-yaml", "theirs/exp1.yaml", "theirs/exp1.yaml"), "a file is named twice"),
    ],
)
def test_files_that_are_not_there_are_named(here, tmp_path, theirs, words, told):
    said = here(tmp_path, "new", "made", *words)
    assert said.code == 2 and told in said.err, said
    assert not (tmp_path / "made").exists()
