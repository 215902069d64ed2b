"""Bugs of storage, each with the quick tests that must catch it."""

from __future__ import annotations

from tests.harness.planted import Planted

_HERE = "tests/faults/storage"
POINTS = (f"{_HERE}/test_syscalls.py",)
CUTS = (f"{_HERE}/test_power_cuts.py",)
DAMAGE = (f"{_HERE}/test_damage.py",)
RACES = (f"{_HERE}/test_races.py",)
_MANY = "test_five_hundred_races_choose_no_stale_commit_prune_no_parent_and_mark_once"
_TRASHED = "test_stale_commits_and_leftover_trash_are_removed_by_the_holder"
TRASH = (f"tests/checkpoint/test_lineage.py::{_TRASHED}",)
MANY_RACES = (f"{_HERE}/test_races.py::{_MANY}",)
ROOM = (f"{_HERE}/test_room.py::test_a_hundred_kills_never_leave_more_than_keep_and_two",)
EVIL = (f"{_HERE}/test_hostile.py::test_no_evil_checkpoint_executes_is_believed_or_hangs",)
NAMES = (
    f"{_HERE}/test_hostile.py::test_hostile_names_and_values_neither_execute_nor_leave_the_folder",
)
BOMBS = (f"{_HERE}/test_hostile.py::test_no_file_makes_us_use_much_memory_or_hang",)
PRIVATE = (f"{_HERE}/test_private.py::test_a_linked_or_foreign_folder_is_not_written_to",)
OPEN = (f"{_HERE}/test_private.py::test_a_whole_run_is_private_under_umask_000",)
FUZZ = (f"{_HERE}/test_hostile.py::test_parsers_answer_or_raise_their_one_documented_exception",)

BUGS = [
    Planted(
        "files of a checkpoint are not synced",
        "checkpoint/records.py",
        "                yield fd\n                os.fsync(fd)\n",
        "                yield fd\n",
        CUTS,
    ),
    Planted(
        "an error of fsync is ignored",
        "checkpoint/records.py",
        "                yield fd\n                os.fsync(fd)\n",
        "                yield fd\n"
        "                with contextlib.suppress(OSError):\n                    os.fsync(fd)\n",
        POINTS,
    ),
    Planted(
        "the draft's names are not synced before the rename",
        "checkpoint/commit.py",
        "    with translated(draft):\n        fsync_folder(draft)\n",
        "",
        CUTS,
    ),
    Planted(
        "the checkpoint's name is not synced before it is acknowledged",
        "checkpoint/commit.py",
        "    with translated(run.checkpoints):\n        fsync_folder(run.checkpoints)\n",
        "",
        CUTS,
    ),
    Planted(
        "small files are not synced before they get their names",
        "store/atomic.py",
        "            write_all(fd, data)\n            os.fsync(fd)\n",
        "            write_all(fd, data)\n",
        CUTS,
    ),
    Planted(
        "the name of an exclusive file is not synced",
        "store/atomic.py",
        "        fsync_folder(path.parent)\n        return True\n",
        "        return True\n",
        CUTS,
    ),
    Planted(
        "the name of a new claim is not synced",
        "store/claims.py",
        "        with translated(run.claims):\n            fsync_folder(run.claims)\n",
        "",
        CUTS,
    ),
    Planted(
        "the names of new folders are not synced",
        "store/atomic.py",
        "                    fsync_folder(folder.parent)"
        "  # or a power cut may take it, and all in it\n",
        "",
        CUTS,
    ),
    Planted(
        "the marker comes before the results",
        "telemetry/finish.py",
        "    write_metrics_history(run)\n",
        "    create_exclusive(run.marker, to_json({'format': FORMAT}))\n"
        "    write_metrics_history(run)\n",
        POINTS,
    ),
    Planted(
        "a file is removed before the new one takes its name",
        "store/atomic.py",
        "            temp.replace(path)\n",
        "            path.unlink(missing_ok=True)\n            temp.replace(path)\n",
        POINTS,
    ),
    Planted(
        "a short write is taken for a whole one",
        "store/atomic.py",
        "    while view:\n        view = view[os.write(fd, view) :]\n",
        "    os.write(fd, view)\n",
        POINTS,
    ),
    Planted(
        "a draft has the name of a checkpoint",
        "checkpoint/commit.py",
        '    draft = run.checkpoints / f".draft-{name}-{secrets.token_hex(4)}"\n',
        '    draft = run.checkpoints / name.replace("step-0", "step-1")\n',
        POINTS,
    ),
    Planted(
        "an error of the disk is taken for damage",
        "checkpoint/records.py",
        "_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}\n",
        "_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO}\n",
        POINTS,
    ),
    Planted(
        "an error of the disk leaves without a word of ours",
        "store/atomic.py",
        "    except OSError as error:\n        raise _explain(",
        "    except PermissionError as error:\n        raise _explain(",
        POINTS,
    ),
    Planted(
        "the parent of the highest claim is pruned",
        "checkpoint/retention.py",
        "    kept = set() if parent is None else {parent}\n",
        "    kept: set[str] = set()\n",
        POINTS,
    ),
    Planted(
        "who lost the run may commit",
        "checkpoint/commit.py",
        "    ensure_claim_holds(run, manifest.claim)\n",
        "",
        RACES,
    ),
    Planted(
        "who lost the run may prune",
        "checkpoint/retention.py",
        "    for name in doomed:\n        ensure_claim_holds(run, claim)\n",
        "    for name in doomed:\n",
        MANY_RACES,
    ),
    Planted(
        "two attempts may have the same claim",
        "store/claims.py",
        "            (run.claims / str(claim)).mkdir(mode=FOLDER_MODE)\n",
        "            (run.claims / str(claim)).mkdir(mode=FOLDER_MODE, exist_ok=True)\n",
        RACES,
    ),
    Planted(
        "the latest is the one with the highest number",
        "checkpoint/lineage.py",
        "    ancestry = ancestry_of(run, head=head)\n    committed = list_checkpoints(run)\n",
        "    ancestry = ancestry_of(run, head=head)\n    committed = list_checkpoints(run)\n"
        "    if committed:\n"
        "        committed.sort(key=lambda p: p.order, reverse=True)\n"
        "        return [str(parsed) for parsed in committed]\n",
        RACES,
    ),
    Planted(
        "the second marker takes the place of the first",
        "store/atomic.py",
        "            os.link(temp, path)\n",
        "            os.replace(temp, path)\n",
        MANY_RACES,
    ),
    Planted(
        "checksums are not compared when a file is checked",
        "checkpoint/records.py",
        "    if zlib.crc32(chunk) != record.crc32[number]:\n",
        "    if zlib.crc32(chunk) != record.crc32[number] and not record.crc32:\n",
        DAMAGE,
    ),
    Planted(
        "checksums are not compared when a state is read",
        "checkpoint/records.py",
        "        if record is not None and crc != record.crc32[self.number]:\n",
        "        if record is None and crc:\n",
        DAMAGE,
    ),
    Planted(
        "sizes are not compared",
        "checkpoint/records.py",
        "    if found != expected:\n",
        "    if found < expected:\n",
        DAMAGE,
    ),
    Planted(
        "the manifest's digest is not compared",
        "checkpoint/manifest.py",
        '        is_whole = value.get("sha256") == _digest(content) and _canonical(value) == raw\n',
        "        is_whole = _canonical(value) == raw\n",
        DAMAGE,
    ),
    Planted(
        "a checkpoint may hold another one's manifest",
        "checkpoint/verify.py",
        "    if manifest.name != path.name:\n",
        "    if manifest.name != path.name and not manifest.files:\n",
        DAMAGE,
    ),
    Planted(
        "only one checkpoint is kept",
        "checkpoint/retention.py",
        "        if num_good >= max(keep, MIN_KEEP):\n",
        "        if num_good >= 1:\n",
        ROOM,
    ),
    Planted(
        "drafts of the dead are not swept",
        "checkpoint/commit.py",
        "        if parsed is not None and parsed.claim < claim:\n",
        "        if parsed is not None and parsed.claim > claim:\n",
        ROOM,
    ),
    Planted(
        "what was to be removed stays as trash",
        "checkpoint/retention.py",
        '    for path in list_folder(run.checkpoints, f"{_TRASH}*"):\n        remove_tree(path)\n',
        '    list_folder(run.checkpoints, f"{_TRASH}*")\n',
        TRASH,
    ),
    Planted(
        "a dtype may be anything that torch has",
        "checkpoint/codec.py",
        "    if not isinstance(dtype, torch.dtype):\n",
        "    if dtype is None:\n",
        EVIL,
    ),
    Planted(
        "a checkpoint may be a link to elsewhere",
        "checkpoint/verify.py",
        "        if path.is_symlink():\n",
        "        if path.is_symlink() and not path.exists():\n",
        EVIL,
    ),
    Planted(
        "names may be paths",
        "spec/names.py",
        '    if not _NAME.fullmatch(name) or name.endswith(".tmp"):\n',
        '    if "\\n" in name:\n',
        NAMES,
    ),
    Planted(
        "a file of ours may have any size",
        "store/atomic.py",
        "        if size > limit:\n",
        "        if size < 0:\n",
        BOMBS,
    ),
    Planted(
        "a manifest's parts are counted out before they are compared",
        "checkpoint/manifest.py",
        "        if len(self.files) != 2 * self.parts:\n",
        "        if not self.files:\n",
        BOMBS,
    ),
    Planted(
        "a number out of place in a file of ours is nobody's error",
        "store/atomic.py",
        "    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)",
        "    except (KeyError, AttributeError, IndexError)",
        FUZZ,
    ),
    Planted(
        "a run may be a link to elsewhere",
        "store/atomic.py",
        "    if stat.S_ISLNK(found.st_mode):\n",
        "    if stat.S_ISFIFO(found.st_mode):\n",
        PRIVATE,
    ),
    Planted(
        "files are open to everybody",
        "store/atomic.py",
        "FILE_MODE = 0o600\n",
        "FILE_MODE = 0o644\n",
        OPEN,
    ),
]
