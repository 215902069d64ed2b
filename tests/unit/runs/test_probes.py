"""What was found out about stages is kept privately, and what is not ours is no answer."""

from __future__ import annotations

import json

from tasuki.runs.probes import keep, read_kept


def test_what_is_kept_comes_back_and_is_private(tmp_path):
    assert keep(tmp_path / "runs", "k", {"value": {"a": 1}}) == ""
    kept, trouble = read_kept(tmp_path / "runs", "k")
    assert kept == {"format": 1, "value": {"a": 1}} and trouble == ""
    file = tmp_path / "runs" / ".probes" / "k.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_kept_is_no_trouble(tmp_path):
    assert read_kept(tmp_path / "runs", "k") == (None, "")


def test_torn_and_newer_files_are_no_answer_and_say_why(tmp_path):
    folder = tmp_path / ".probes"
    folder.mkdir()
    (folder / "torn.json").write_text('{"format": 1, "val')
    (folder / "newer.json").write_text(json.dumps({"format": 99}))
    for name, words in (("torn", "damaged"), ("newer", "format 99")):
        kept, trouble = read_kept(tmp_path, name)
        assert kept is None and words in trouble


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".probes").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in keep(tmp_path, "k", {})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_where_nothing_can_be_written_the_reason_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "file" in keep(tmp_path / "file", "k", {})
