"""`tasuki doctor` knows the quota of the runs folder, as the file system's own program tells it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasuki.commands.doctor_machine import describe_runs
from tasuki.commands.doctor_quota import (
    Quota,
    Share,
    find_quota,
    parse_project,
    parse_quotas,
    tightest,
)
from tasuki.commands.doctor_rules import check_machine
from tasuki.views.doctor import doctor_lines
from tests.cli.test_doctor import NO_SLURM

QUOTAS = Path(__file__).parent / "quotas"
KIB = 1024


def told(name: str) -> list[Quota]:
    """What was understood of a recording."""
    return parse_quotas((QUOTAS / f"{name}.txt").read_text())


def test_used_soft_and_hard_of_bytes_and_files_are_read_for_user_and_group():
    user, group = told("below")
    assert user == Quota(
        owner="user daemon",
        bytes=Share(used=20481 * KIB, soft=50000 * KIB, hard=60000 * KIB),
        files=Share(used=2, soft=100, hard=120),
    )
    assert (group.owner, group.bytes.limit, group.files.limit) == (
        "group daemon",
        80000 * KIB,
        None,
    )
    assert tightest([user, group]) is user


@pytest.mark.parametrize(("name", "used"), [("exceeded", 52225), ("full", 59997)])
def test_a_star_beside_a_number_that_is_over_its_soft_limit_does_not_hide_it(name, used):
    user, group = told(name)
    assert user.bytes.used == group.bytes.used == used * KIB and user.left == 0


@pytest.mark.parametrize("name", ["none", "unlimited"])
def test_who_has_no_limits_has_no_quota(name):
    assert tightest(told(name)) is None


def test_lustre_tells_the_same_with_names_on_their_own_line_and_brackets():
    (user,), (group,), (project,) = (
        told("lustre_user"),
        told("lustre_group"),
        told("lustre_project"),
    )
    assert (user.owner, user.bytes.used, user.bytes.limit, user.files.limit) == (
        "user alice",
        982177580 * KIB,
        1000000000 * KIB,
        None,
    )
    assert (group.owner, group.bytes.used, group.bytes.soft) == (
        "group lab",
        1041408 * KIB,
        1000000 * KIB,
    )
    assert (project.owner, project.files.used, project.files.limit) == (
        "project 1001",
        1048000,
        1048576,
    )
    assert tightest([user, project]) is project


def test_words_that_are_no_table_are_no_quota():
    assert (
        parse_quotas("lfs quota: '/home' not on a mounted Lustre filesystem\n1 2 3 - 4 5 6 -") == []
    )
    assert parse_project("  1001 P /scratch/p\n") == "1001"
    assert parse_project("    0 - /scratch/p\n") is None and parse_project("") is None


def programs(folder: Path, **bodies: str) -> dict[str, str]:
    """An environment whose programs print what is recorded, and note how they were asked."""
    folder.mkdir()
    for name, body in bodies.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/asked\n{body}\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_the_file_system_decides_which_program_is_asked(tmp_path):
    environment = programs(
        tmp_path / "bin",
        quota=f"cat {QUOTAS}/exceeded.txt; exit 1",
        lfs=f'case "$*" in "project "*) echo "1001 P /p";; *" -u "*) cat {QUOTAS}/lustre_user.txt;;'
        f' *" -p 1001 "*) cat {QUOTAS}/lustre_project.txt;; esac',
    )

    def owner(kind: str) -> str | None:
        found = find_quota(tmp_path, mount="/m", file_system=kind, environment=environment)
        return found.owner if found is not None else None

    assert owner("tmpfs") is None and not (tmp_path / "bin" / "asked").exists()
    assert owner("nfs4") == owner("xfs") == "user daemon"
    assert owner("lustre") == "project 1001"
    asked = (tmp_path / "bin" / "asked").read_text()
    assert "quota -w -p -u -g -f /m\n" in asked and f"lfs project -d {tmp_path}\n" in asked


def test_a_program_that_is_missing_fails_or_hangs_leaves_no_quota_known(tmp_path, monkeypatch):
    monkeypatch.setattr("tasuki.commands.doctor_quota._WITHIN_S", 0.2)
    hanging = programs(tmp_path / "hanging", quota="exec sleep 60")
    failing = programs(tmp_path / "failing", quota="echo 'no quota enabled' >&2; exit 1")
    for environment in (hanging, failing, {"PATH": "/nowhere"}):
        found = find_quota(tmp_path, mount="/m", file_system="ext4", environment=environment)
        assert found is None


@pytest.mark.skipif(shutil.which("quota") is None, reason="no `quota` here")
def test_the_real_program_of_this_machine_is_understood_or_says_nothing(tmp_path):
    runs = describe_runs(tmp_path, environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert runs["quota"] is None or runs["quota"]["bytes"]["used"] >= 0


@pytest.mark.parametrize(
    ("used", "soft", "hard", "words"),
    [
        (10, 900, 1000, None),
        (850, 900, 1000, "advice: the quota of /r leaves little room: 850 GB of 900 GB"),
        (950, 900, 1000, "advice: the quota of /r is exceeded: 950 GB of 900 GB"),
        (1000, 900, 1000, "problem: the quota of /r is full: 1 TB of 1 TB"),
        (2, None, 9, "advice: the quota of /r leaves little room: 2 GB of 9 GB"),
        (10**6, None, None, None),
    ],
)
def test_a_quota_that_ends_soon_is_said_and_one_that_is_full_would_stop_a_job(
    used, soft, hard, words
):
    def share(used: int, soft: int | None, hard: int | None, unit: int) -> Share:
        limits = {"soft": soft and soft * unit, "hard": hard and hard * unit}
        return Share(used=used * unit, **limits)

    runs = {"folder": "/r", "is_writable": True, "free_bytes": 10**12, "file_system": "lustre"}
    free = Share(used=5, soft=None, hard=None)
    for kind, unit in (("bytes", 10**9), ("files", 10**3)):
        shares = {"bytes": free, "files": free, kind: share(used, soft, hard, unit)}
        quota = Quota(owner="user alice", **shares).as_json()
        found = check_machine(
            {**runs, "quota": quota}, {"shm_bytes": None}, has_slurm=True, is_seen=False
        )
        said = [f"{one.as_json()['level']}: {one.what}" for one in found]
        if kind == "files" and words is not None:
            assert len(said) == (used != 2), said  # thousands of files are left
        elif words is None:
            assert said == []
        else:
            assert len(said) == 1 and said[0].startswith(words) and "user alice" in said[0]


def test_a_person_reads_what_is_used_of_the_quota_or_that_none_is_known(here, tmp_path):
    report = here(tmp_path, "doctor", "--json", **NO_SLURM).json()
    assert report["runs"]["quota"] is None
    assert any("no quota known" in line for line in doctor_lines(report))
    user = told("below")[0]
    report["runs"]["quota"] = user.as_json()
    words = "21 MB of 51.2 MB, 2 of 100 files used by user daemon"
    assert any(words in line for line in doctor_lines(report)), doctor_lines(report)
