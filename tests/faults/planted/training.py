"""Bugs of training, saving and resuming, each with the quick tests that must catch it."""

from __future__ import annotations

from tests.harness.planted import Planted

SAVES, NAN = "tests/faults/test_saves.py", "tests/faults/test_nan.py"
FULL, RANKS = "tests/faults/test_full_disk.py", "tests/faults/test_ranks.py"
KILLS, STATE = "tests/resume/test_kills.py", "tests/resume/test_state.py"

KILLED = (f"{SAVES}::test_killed_in_every_place_of_a_background_save_it_ends_bit_for_bit_the_same",)
HANDOVER = (f"{SAVES}::test_a_handover_waits_for_the_save_in_flight_and_commits_its_own_step",)
SETTINGS = (f"{KILLS}::test_a_requeue_onto_other_cpus_keeps_threads_and_deterministic_algorithms",)
FOUR = (
    f"{RANKS}::test_one_rank_of_four_killed_at_a_few_places_brings_all_down_and_the_end_is_the_same",
)
LEFT_OUT = (
    f"{NAN}::test_a_step_that_is_left_out_leaves_parameters_optimizer_and_buffers_as_they_were",
)
EARLY = f"{SAVES}::test_an_attempt_stops_so_early_that_even_a_slow_save_is_done_before_the_limit"
BOUNDARY = (
    f"{SAVES}::test_what_is_committed_is_the_state_when_the_save_began_whatever_training_does_since"
)
NO_BYTE = f"{FULL}::test_on_a_disk_without_a_single_free_byte_no_line_of_events_and_metrics_is_lost"
UNDONE = ("tests/train/test_undo.py::test_a_step_that_does_not_fit_is_as_if_it_had_never_begun",)
FOOTPRINT = "tests/train/test_footprint.py"
UNDO, ELSEWHERE = "tests/train/test_undo.py", "tests/faults/test_out_of_memory_elsewhere.py"
MEMORY = "tests/faults/test_out_of_memory.py"
DECIDED = (f"{MEMORY}::test_a_decision_outlives_a_kill_and_holds_from_the_same_step",)
BORDER = ("tests/faults/test_batch_tuning.py::test_a_border_is_decided_once",)
SKIP = (f"{NAN}::test_skip_leaves_bad_steps_out_counts_them_and_says_so",)

BUGS = [
    Planted(
        "torch's random state is not restored",
        "runtime/state.py",
        '    torch.set_rng_state(state["torch"])\n',
        "",
        KILLED,
    ),
    Planted(
        "the order of samples is off by one after a resume",
        "train/training.py",
        "            first_step=self.progress.step,\n",
        "            first_step=self.progress.step + (self.progress.step > 0),\n",
        KILLED,
    ),
    Planted(
        "the schedule starts over with each attempt",
        "train/training.py",
        "            self._schedule.set_for(progress.step)\n",
        "            self._schedule.set_for(progress.step - self._first_step)\n",
        KILLED,
    ),
    Planted(
        "the state is restored before DDP's first step",
        "train/start.py",
        "        _settle_buckets(task, setup, engine, fitting)\n",
        "",
        FOUR,
    ),
    Planted(
        "a handover does not wait for its save",
        "runtime/saving.py",
        "            saved = self._saver.wait()\n        self._hear(saved, is_needed=True)\n",
        "            saved = self._saver.take_news()\n        self._hear(saved, is_needed=True)\n",
        HANDOVER,
    ),
    Planted(
        "the notice is ignored",
        "runtime/agreement.py",
        "        if self._watch.notice is not Cause.NONE:\n            return Decision.STOP\n",
        "",
        HANDOVER,
    ),
    Planted(
        "no time is kept free before the limit",
        "runtime/watch.py",
        "        return self.p99_step_s + time_for_leaving_s(self.longest_save_s)\n",
        "        return 0.0\n",
        (EARLY,),
    ),
    Planted(
        "what is written is what the tensors are then, not what they were at the boundary",
        "runtime/saver.py",
        "        image = self._buffers[number].hold(encoded)\n",
        "        image = self._buffers[number].hold(encoded)\n"
        "        first, buffer = self.before, self._buffers[number]\n"
        "        self.before = lambda: (first(), buffer.hold(encoded)) and None\n",
        (BOUNDARY,),
    ),
    Planted(
        "a second save does not wait for the first",
        "runtime/saver.py",
        "        self._join()\n        with self._lock:\n",
        "        with self._lock:\n",
        (f"{SAVES}::test_a_second_save_waits_for_the_first_and_follows_it_in_the_lineage",),
    ),
    Planted(
        "a checkpoint is committed without the last rank's part",
        "runtime/saver.py",
        "            for rank in range(1, self._world):\n                part, theirs",
        "            for rank in range(1, self._world - 1):\n                part, theirs",
        FOUR,
    ),
    Planted(
        "a checkpoint does not know its parent",
        "runtime/saver.py",
        "            self.parent, self.committed = name, saved\n",
        "            self.committed = saved\n",
        (f"{SAVES}::test_a_second_save_waits_for_the_first_and_follows_it_in_the_lineage",),
    ),
    Planted(
        "numbers that are not finite are committed",
        "runtime/saver.py",
        "            self._refuse_not_finite(order)\n            make_room",
        "            make_room",
        (f"{SAVES}::test_weights_that_are_not_finite_are_not_committed",),
    ),
    Planted(
        "the first save is not read back",
        "runtime/saver.py",
        "            self._read_back(checkpoint)\n",
        "",
        (f"{SAVES}::test_in_a_real_run_a_disk_that_lies_is_found_said_and_the_step_saved_later",),
    ),
    Planted(
        "losses that are not logged yet are lost at a resume",
        "train/snapshot.py",
        '    window = state["rank"]["window"]\n',
        "    window = []\n",
        KILLED,
    ),
    Planted(
        "the account of used samples starts over with each attempt",
        "train/start.py",
        "    return Restored(manifest, progress, last_row, UsedSamples(used))\n",
        "    return Restored(manifest, progress, last_row, UsedSamples())\n",
        (f"{KILLS}::test_killed_again_and_again_nothing_acknowledged_is_lost",),
    ),
    Planted(
        "what the optimizer casts on loading stays cast",
        "runtime/state.py",
        "    _undo_casts(optimizer, state)\n",
        "",
        (STATE,),
    ),
    Planted(
        "buffers that `state_dict` leaves out are not saved",
        "runtime/state.py",
        '        "buffers": unsaved_buffers(tracked.model),\n',
        '        "buffers": {},\n',
        (STATE,),
    ),
    Planted(
        "who lost the claim prunes all the same",
        "checkpoint/retention.py",
        '_TRASH = ".trash-"\n',
        '_TRASH = ".trash-"\nensure_claim_holds = lambda run, claim: None\n',
        (f"{SAVES}::test_who_lost_the_claim_while_pruning_removes_nothing_of_the_successors",),
    ),
    Planted(
        "drafts of killed attempts stay",
        "runtime/latest.py",
        "    sweep_drafts(run, claim=claim)\n",
        "",
        KILLED,
    ),
    Planted(
        "a step that is left out leaves its mark in running means",
        "train/buffers.py",
        "                buffer.copy_(one.value)\n",
        "                pass\n",
        LEFT_OUT,
    ),
    Planted(
        "the loss of a step that is left out is logged",
        "train/engine.py",
        "        self.window.drop_since(place)\n        self.scalars = {}\n",
        "        self.scalars = {}\n",
        LEFT_OUT,
    ),
    Planted(
        "steps that are left out are not counted",
        "train/training.py",
        "        self.progress.skipped += 1\n",
        "",
        SKIP,
    ),
    Planted(
        "a frozen parameter that moves is not noticed",
        "checkpoint/frozen.py",
        "            if has_moved or _sum_up(tensor) != self._sums[address]:\n",
        "            if has_moved:\n",
        (f"{SAVES}::test_in_this_process_a_change_through_data_is_noticed_at_the_next_save",),
    ),
    Planted(
        "deterministic algorithms are not asked for",
        "runtime/exact.py",
        "        set_deterministic(True)\n",
        "",
        SETTINGS,
    ),
    Planted(
        "the number of threads follows the machine",
        "train/worker.py",
        "    if stage.exact and (frozen := frozen_threads(run)):\n",
        "    if stage.exact and (frozen := None):\n",
        SETTINGS,
    ),
    Planted(
        "a full disk ends the training",
        "runtime/saving.py",
        "            if is_needed or not isinstance(saved.error, StoreError):\n",
        "            if True:\n",
        (f"{FULL}::test_a_quota_or_a_sick_disk_in_the_middle_of_a_save_costs_that_save_only",),
    ),
    Planted(
        "lines that a full disk has no room for are forgotten",
        "telemetry/lines.py",
        "                self._waiting.extend(values[done:])\n",
        "                self._waiting.clear()\n",
        (NO_BYTE,),
    ),
    Planted(
        "random numbers stay as a step that ran out of memory left them",
        "train/undo.py",
        "        WATCHED.put(self._random)\n",
        "",
        UNDONE,
    ),
    Planted(
        "buffers stay as a step that ran out of memory left them",
        "train/undo.py",
        "        put_buffers_back(self._moving)\n",
        "",
        UNDONE,
    ),
    Planted(
        "gradients of a step that ran out of memory stay",
        "train/engine.py",
        "        self.forget()\n        self.window.drop_since(place)\n        return undo",
        "        self.window.drop_since(place)\n        return undo",
        UNDONE,
    ),
    Planted(
        "samples of a step that ran out of memory count twice",
        "train/training.py",
        "        self._used.take_back(self.progress.step)\n",
        "",
        ("tests/faults/test_out_of_memory.py::test_a_step_that_was_undone_leaves_nothing_behind",),
    ),
    Planted(
        "a smaller micro-batch is used before it is written down",
        "train/fitting.py",
        "            task.events.add(\n                EVENT,\n",
        "            self._later = dict(\n                kind=EVENT,\n",
        DECIDED,
    ),
    Planted(
        "a smaller micro-batch holds for steps before it too",
        "data/shares.py",
        "            if limit.from_step <= step:\n",
        "            if limit is not None:\n",
        DECIDED,
    ),
    Planted(
        "a first step that was undone counts as one in which no buffer moved",
        "train/undo.py",
        "            self._num_begun, self._moving = 0, []\n",
        "            pass\n",
        (f"{UNDO}::test_a_first_step_may_run_out_of_memory_again_and_again",),
    ),
    Planted(
        "a teacher that a pass moved is called undone",
        "train/undo.py",
        "            return False  # by this step or by an earlier one, nobody knows\n",
        "            pass\n",
        (f"{UNDO}::test_a_frozen_parameter_that_a_pass_moves_is_not_called_undone",),
    ),
    Planted(
        "out of memory that a loss has wrapped is not seen",
        "train/advice.py",
        "        found = found.__cause__\n",
        "        found = None\n",
        (f"{UNDO}::test_what_a_loss_makes_of_out_of_memory_is_still_out_of_memory",),
    ),
    Planted(
        "a step that is measured and fails holds its tensors",
        "train/footprint.py",
        "            return _Kept(tensor.detach(), self, kept)\n",
        "            return _Kept(tensor, self, kept)\n",
        (f"{FOOTPRINT}::test_a_measured_step_that_fails_lets_go_of_what_its_passes_made",),
    ),
    Planted(
        "a halved micro-batch is no progress",
        "supervisor/phase.py",
        "                self.has_progressed = True\n",
        "                pass\n",
        (f"{ELSEWHERE}::test_as_many_restarts_as_there_are_halvings_do_not_hold_a_run",),
    ),
    Planted(
        "a smaller batch of an evaluation is forgotten at a resume",
        "train/roomier.py",
        '            if event["kind"] == EVENT\n',
        '            if event["kind"] == EVENT and False\n',
        (f"{ELSEWHERE}::test_who_resumes_validates_in_the_batches_that_were_found_before",),
    ),
    Planted(
        "steps that are fetched already are split as before the border",
        "train/training.py",
        "            self._fitting.rewind(self._loader, step)\n",
        "            pass\n",
        BORDER,
    ),
    Planted(
        "a border is decided again by an attempt that comes by once more",
        "train/borders.py",
        "        if step in state.decided:\n            return []\n",
        "",
        BORDER,
    ),
    Planted(
        "gradients are added up in other groups than DDP's",
        "train/together.py",
        "    return [bucket.parameters() for bucket in buckets]\n",
        "    return [[p] for bucket in buckets for p in bucket.parameters()]\n",
        ("tests/resume/test_ranks.py::test_four_ranks_resume_bit_for_bit_after_a_notice",),
    ),
]
