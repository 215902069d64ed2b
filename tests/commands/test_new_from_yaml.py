"""`tasuki new --from-yaml`: files of experiments that exist already become a project."""

from __future__ import annotations

from pathlib import Path

import pytest

import tasuki

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


def test_a_dry_run_tells_the_same_and_writes_nothing(here, tmp_path, theirs):
    before = sorted(tmp_path.rglob("*"))
    dry = here(tmp_path, "new", "made", *words(theirs), "--dry-run", "--json")
    assert dry.code == 0 and sorted(tmp_path.rglob("*")) == before
    made = here(tmp_path, "new", "made", *words(theirs), "--json")
    assert made.json() == dry.json()
    (first,) = (key for key in made.json()["keys"] if key["key"] == "grad_accum")
    assert first == {
        "file": "theirs/exp1.yaml",
        "line": 3,
        "key": "grad_accum",
        "value": 4,
        "fate": "translated",
        "words": "effective_batch: 8",
    }


def test_the_python_function_gives_the_same_values(here, tmp_path, theirs, monkeypatch):
    said = here(tmp_path, "new", "made", *words(theirs), "--dry-run", "--json")
    monkeypatch.chdir(tmp_path)
    files = [f"theirs/{name}" for name in FILES]
    assert tasuki.new("made", from_yaml=files) == said.json()


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
        ("bad.yaml", b"", "bad.yaml:1: the file is empty"),
        ("bad.yaml", b"\xff\xfe\x00", "the file is not UTF-8"),
        ("bad.yaml", b"a: 1\na: 2\n", "bad.yaml:2: `a` is written twice"),
        ("bad.yaml", b"a: !!python/object:os.system x\n", "is not understood"),
        ("bad.yaml", b"seed: x\n", "bad.yaml:1: `seed` must be a whole number"),
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


def test_what_the_old_reader_took_otherwise_is_said(here, tmp_path):
    (tmp_path / "e.yaml").write_text("learning_rate: 2e-4\n")
    said = here(tmp_path, "new", "made", "--from-yaml", "e.yaml")
    assert said.code == 0 and "PyYAML would read line 1 `2e-4` as text" in said.err, said
    assert "lr: 0.0002" in (tmp_path / "made" / "e.yaml").read_text()
