"""One lane: runs one after another on the lane's GPUs, phase after phase, as `relay` says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tasuki.clock import Clock
from tasuki.errors import TasukiError, UsageError
from tasuki.jobs.commanded import begin_state, read_command, read_ranks
from tasuki.jobs.figures import Figures, lane_figures
from tasuki.jobs.job import JobOrder, LaneItem, LaneOrder, share_of_cpus
from tasuki.jobs.phase import Launcher, Phase
from tasuki.jobs.place import Place
from tasuki.jobs.ranks import PhaseOrder, publish_order, start_ranks
from tasuki.jobs.sinks import AT_END_S, AT_HANDOVER_S, SinkProcesses
from tasuki.runs.accounts import keep_accounts
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none, shaped, write_json
from tasuki.runs.attempt import as_superseded, close_attempt, write_state
from tasuki.runs.attempts import write_holder
from tasuki.runs.back import settle_back
from tasuki.runs.claims import take_claim
from tasuki.runs.control import Word, say
from tasuki.runs.decide import next_action
from tasuki.runs.events import EventLog
from tasuki.runs.finish import finish_run
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import (
    Action,
    Cause,
    Ending,
    Evaluate,
    Fail,
    Finish,
    HandOver,
    Hold,
    LaneEnd,
    Leave,
    PhaseEnded,
    Retry,
    RunView,
    Started,
    Train,
)
from tasuki.runs.view import read_end, read_view

_REPORTS_WITHIN_S = 3.0
"""How long the other nodes may take to say why their ranks failed, when ours only lost them."""


@dataclass(slots=True)
class Attempt:
    item: LaneItem
    claim: int
    events: EventLog
    has_progressed: bool = False
    has_stepped: bool = False
    num_phases: int = 0


@dataclass(slots=True)
class Lane:
    job: JobOrder
    order: LaneOrder
    number: int
    start: int
    clock: Clock
    launch: Launcher
    environment: dict[str, str]
    place: Place = field(default_factory=Place)
    ask_deadline: Callable[[], None] = lambda: None
    """Has `set_remaining` called."""
    tell: Callable[[RunFolder], None] = lambda _: None
    """Who wants to hear of a run's end."""
    has_heard: bool = False
    remaining_s: float | None = None
    notice: Cause = Cause.NONE
    notice_until: float | None = None
    phase: Phase | None = None
    end: LaneEnd | None = None
    attempt: Attempt | None = None
    _left: list[LaneItem] = field(default_factory=list)
    _published: int = 0
    """Phases that the other nodes were told of."""
    _worst: Action = field(default_factory=lambda: Leave("done"))
    _figures: Figures = field(init=False)
    _sinks: SinkProcesses = field(init=False)

    def begin(self) -> None:
        self._sinks = SinkProcesses(self.job, self.environment, self.clock)
        gpus, device = self.order.gpus, self.job.device
        self._figures = lane_figures(self.environment, device=device, gpus=gpus)
        self._left = list(self.order.items)
        self._next_item()

    # -- between phases ---------------------------------------------------------------------

    def _next_item(self) -> None:
        """Take up the next run that has something left to do."""
        while self._left:
            item = self._left[0]
            settle_back(item.run)
            action = next_action(self._view(item), Started(self.notice))
            if not isinstance(action, Leave):
                self._begin_attempt(item, action)
                return
            self._left.pop(0)
            self._note(action)
        self._finish_lane(self._worst, is_continued=False)

    def _begin_attempt(self, item: LaneItem, action: Action) -> None:
        if isinstance(action, HandOver):
            self._finish_lane(action, is_continued=item.is_continued)
            return
        claim = take_claim(item.run)
        events = EventLog(item.run, claim=claim, node=0, who="supervisor", clock=self.clock)
        self.attempt = Attempt(item, claim, events)  # from here on `give_up` is about this one
        now = self.clock.wall()
        write_holder(item.run, claim, job=self.job.folder.name, start=self.start, at=now)
        write_json(
            self.job.folder.claim(self.start, self.number),
            {"format": FORMAT, "run": item.run.name, "claim": claim},
        )
        events.add(
            "attempt-started",
            job=self.job.folder.name,
            start=self.start,
            gpus=len(self.order.gpus) * self.place.nodes,
            price_per_gpu_hour=self.job.price_per_gpu_hour,
        )
        # A cancel may have come before it could see that we hold the run: look once more.
        action = next_action(self._view(item), Started(self.notice))
        if not isinstance(action, Train | Evaluate | Finish):
            cause = self.notice if isinstance(action, HandOver) else Cause.CANCELLED
            end = PhaseEnded(ending=Ending.HANDED_OVER, cause=cause)
            self._close_attempt(end, _state_after(action))
        else:
            self._sinks.begin(item.run, claim)
        self._act(action)

    def _view(self, item: LaneItem) -> RunView:
        return read_view(
            item.run,
            until=item.until,
            requeue=self.job.requeue,
            trains_only=item.trains_only,
        )

    def _act(self, action: Action) -> None:
        attempt = self.attempt
        assert attempt is not None
        match action:
            case Train(stage) | Evaluate(stage):
                if self._is_too_late(attempt, action):
                    self._after(PhaseEnded(ending=Ending.HANDED_OVER, cause=Cause.LIMIT))
                else:
                    self._start_phase("train" if isinstance(action, Train) else "evaluate", stage)
            case Finish():
                finish_run(attempt.item.run, claim=attempt.claim, clock=self.clock)
                attempt.events.add("complete")
                self._close_attempt(PhaseEnded(ending=Ending.DONE), "complete")
                keep_accounts(attempt.item.run)
                self.tell(attempt.item.run)
                self._left.pop(0)
                self._next_item()
            case Leave():
                # `word` was said while the attempt ran, or the wanted stages are done.
                self._left.pop(0)
                self._note(action)
                self._next_item()
            case HandOver():
                self._finish_lane(action, is_continued=attempt.item.is_continued)
            case Retry():
                self._next_item()
            case Hold(reason, hint) | Fail(reason, hint):
                word = Word.HOLD if isinstance(action, Hold) else Word.FAIL
                say(attempt.item.run, word, reason=reason, hint=hint, claim=attempt.claim)
                attempt.events.add(str(word), reason=reason, hint=hint)
                self._write_state(attempt, "held" if word is Word.HOLD else "failed")
                self.tell(attempt.item.run)
                self._left.pop(0)
                self._note(action)
                self._next_item()

    def _is_too_late(self, attempt: Attempt, action: Action) -> bool:
        """An evaluation that cannot end in time is left to the next attempt."""
        if not isinstance(action, Evaluate):
            return False
        if not self.has_heard:
            self.ask_deadline()
        if self.remaining_s is None:
            return False
        stages = read_json(attempt.item.run.spec)["stages"]
        reserve = next(s.get("reserve_s") for s in stages if s["name"] == action.stage)
        return reserve is not None and self.remaining_s < float(reserve)

    # -- phases -----------------------------------------------------------------------------

    def _start_phase(self, kind: str, stage: str) -> None:
        attempt = self.attempt
        assert attempt is not None
        attempt.num_phases += 1
        if (words := read_command(attempt.item.run, stage, kind)) is not None:
            self._start_command(kind, stage, words)
            return
        num_ranks = len(self.order.gpus) * self.place.nodes if kind == "train" else 1
        order = PhaseOrder(
            run=attempt.item.run,
            claim=attempt.claim,
            kind=kind,
            stage=stage,
            number=attempt.num_phases,
            world=num_ranks,
            host=self.place.host,
            cpus=self._cpus_of_rank(),
        )
        attempt.events.add("worker-started", phase=kind, stage=stage, ranks=num_ranks)
        if kind == "train" and self.place.nodes > 1:
            self._published += 1
            publish_order(self.job.folder, self.start, self._published, order)
        ranks = start_ranks(
            order,
            self.job,
            gpus=self.order.gpus,
            node=self.place.node,
            launch=self.launch,
            environment=self.environment,
        )
        self.phase = Phase(kind, stage, ranks, grace_s=self.job.ranks_grace_s)
        self._tell_deadline()
        if self.notice is not Cause.NONE:
            self._notice_phase()

    def _cpus_of_rank(self) -> int | None:
        """Of a packed job the item's own share, so that it is the same in every attempt."""
        if self.attempt is None or not self.job.is_packed:
            return None
        share = share_of_cpus(self.attempt.item, width=len(self.order.gpus), job=self.job)
        return max(1, (share or 1) // len(self.order.gpus))

    def _start_command(self, kind: str, stage: str, words: tuple[str, ...]) -> None:
        """It is told of its deadline by a file: that must be right from its first line on."""
        from tasuki.jobs.command import order_command, start_command

        attempt = self.attempt
        assert attempt is not None
        if not self.has_heard:
            self.ask_deadline()
        run, gpus = attempt.item.run, self.order.gpus
        number, world = attempt.num_phases, len(gpus) * self.place.nodes
        phase = PhaseOrder(
            run=run,
            claim=attempt.claim,
            kind=kind,
            stage=stage,
            number=number,
            world=world,
            cpus=self._cpus_of_rank(),
        )
        ranks = read_ranks(run, stage) or world if kind == "train" else 1
        attempt.events.add("worker-started", phase=kind, stage=stage, ranks=ranks, is_command=True)
        if kind == "train":
            self._write_state(attempt, "running", **begin_state(run, stage))
        now = self.clock.monotonic()
        ends_at = None if self.remaining_s is None else now + self.remaining_s
        order = order_command(phase, words, self.job, gpus=gpus, ends_at=ends_at)
        try:
            self.phase = start_command(
                order, self.job, clock=self.clock, environment=self.environment
            )
        except UsageError as error:
            end = PhaseEnded(ending=Ending.MISTAKE, message=error.message, hint=error.hint)
            self._tell_end(kind, stage, end)
            self._after(end)
            return
        self._tell_deadline()
        if self.notice is not Cause.NONE:
            self._notice_phase()

    def on_phase_ended(self) -> None:
        """All ranks are gone: find out what that means and go on."""
        phase, attempt = self.phase, self.attempt
        assert phase is not None and attempt is not None
        self.phase = None
        phase.close()
        end = self._ending(phase)
        self._tell_end(phase.kind, phase.stage, end)
        if phase.is_command and end.ending is Ending.DONE:
            self._keep_result(phase)
        attempt.has_stepped |= end.has_stepped
        attempt.has_progressed |= end.has_progressed or end.ending is Ending.DONE
        self._after(end)

    def _tell_end(self, kind: str, stage: str, end: PhaseEnded) -> None:
        assert self.attempt is not None
        facts = {"ending": end.ending, "cause": end.cause, "message": end.message}
        self.attempt.events.add("worker-ended", phase=kind, stage=stage, **facts)

    def _keep_result(self, phase: Phase) -> None:
        from tasuki.jobs.result import Done, keep_result

        assert self.attempt is not None
        done = Done(
            run=self.attempt.item.run,
            claim=self.attempt.claim,
            stage=phase.stage,
            kind=phase.kind,
            job=self.job,
            gpus=len(self.order.gpus) * self.place.nodes,
        )
        keep_result(done, self.attempt.events, clock=self.clock)

    def _ending(self, phase: Phase) -> PhaseEnded:
        """As our own ranks tell, or those of another node where ours have only lost them."""
        end = phase.ending()
        if self.place.nodes == 1 or phase.kind != "train" or phase.is_command:
            return end
        if end.cause is Cause.INTERRUPTED and self.notice is Cause.NONE:
            return replace(end, cause=Cause.LOST)  # they have lost their supervisor, not we ours
        if end.ending is Ending.FAILED and phase.is_only_lost:
            told = self._reported()
            return end if told is None else replace(told, has_progressed=end.has_progressed)
        return end

    def _reported(self) -> PhaseEnded | None:
        """How a phase ended on the node where it failed first."""
        until = self.clock.monotonic() + _REPORTS_WITHIN_S
        while True:
            for node in range(1, self.place.nodes):
                path = self.job.folder.report(self.start, self._published, node)
                told = read_json_or_none(path)
                if told is not None and not told.get("is_only_lost"):
                    with shaped(path):
                        return replace(read_end(told), message=f"node {node}: {told['message']}")
            if self.clock.monotonic() >= until:
                return None
            self.clock.sleep(0.1)

    def _after(self, end: PhaseEnded) -> None:
        attempt = self.attempt
        assert attempt is not None
        whole = PhaseEnded(
            ending=end.ending,
            cause=end.cause if end.cause is not Cause.NONE else self.notice,
            message=end.message,
            hint=end.hint,
            has_progressed=attempt.has_progressed,
            has_stepped=attempt.has_stepped,
        )
        whole = as_superseded(attempt.item.run, attempt.claim, whole)
        action = next_action(self._view(attempt.item), whole)
        if not isinstance(action, Train | Evaluate | Finish):
            self._close_attempt(whole, _state_after(action))
        self._act(action)

    def _close_attempt(self, end: PhaseEnded, state: str) -> None:
        attempt = self.attempt
        assert attempt is not None
        run, claim, events = attempt.item.run, attempt.claim, attempt.events
        close_attempt(run, claim, end, state, events=events, clock=self.clock)
        self._sinks.let_go()

    def _write_state(self, attempt: Attempt, state: str, **figures: Any) -> None:
        write_state(attempt.item.run, attempt.claim, state, clock=self.clock, **figures)

    def _note(self, action: Action) -> None:
        """Remember the gravest end: it makes the job's exit code."""
        if _gravity(action) > _gravity(self._worst):
            self._worst = action

    def _finish_lane(self, action: Action, *, is_continued: bool) -> None:
        self._note(action)
        final = action if isinstance(action, HandOver) else self._worst
        self.end = LaneEnd(gpus=len(self.order.gpus), action=final, is_continued=is_continued)

    def give_up(self, error: TasukiError) -> None:
        """The run's own folder cannot be used: hold it, if that can be written at all. An attempt
        that lost the run leaves it alone: its files were swept."""
        if self.phase is not None:
            self.phase.kill()
            self.phase = None
        action: Action = Hold(error.message, error.hint)
        if self.attempt is not None:
            run, claim = self.attempt.item.run, self.attempt.claim
            with contextlib.suppress(TasukiError):
                end = PhaseEnded(ending=Ending.STUCK, message=error.message)
                end = as_superseded(run, claim, end)
                if end.ending is Ending.SUPERSEDED:
                    action = Leave("superseded")
                else:
                    say(run, Word.HOLD, reason=error.message, hint=error.hint, claim=claim)
                self._close_attempt(end, _state_after(action))
            self.tell(run)
        self.end = LaneEnd(gpus=len(self.order.gpus), action=action)

    # -- from outside -----------------------------------------------------------------------

    def end_sinks(self) -> None:
        """At the very end, when everything that counts is written: as long as there is time."""
        is_continued = self.end is not None and isinstance(self.end.action, HandOver)
        within_s = AT_HANDOVER_S if is_continued else AT_END_S
        if self.notice_until is not None:
            within_s = min(within_s, self.notice_until - self.clock.monotonic())
        if self.remaining_s is not None:
            within_s = min(within_s, self.remaining_s - AT_HANDOVER_S)
        self._sinks.wait(max(0.0, within_s))

    def set_remaining(self, remaining_s: float | None) -> None:
        """The scheduler's word on the end, now."""
        self.has_heard = True
        self.remaining_s = remaining_s
        if remaining_s is not None:
            self._tell_deadline()

    def _tell_deadline(self) -> None:
        if self.phase is not None:
            grace_s = self.job.ranks_grace_s
            self.phase.tell("deadline", remaining_s=self.remaining_s, grace_s=grace_s)

    def watch_clock(self, now: float) -> None:
        """Kill what is due, and find out who hangs."""
        hung = self.phase.tick(now) if self.phase is not None else None
        if hung is not None and self.attempt is not None:
            self.attempt.events.add("hung", **asdict(hung))
        self._watch_limit(now)
        events = self.attempt.events if self.attempt is not None else None
        self._sinks.look()
        self._figures.look(now, phase=self.phase, events=events)

    def _watch_limit(self, now: float) -> None:
        """For a phase that has nobody who watches this clock; it may have been extended."""
        if self.phase is not None and self.phase.is_due(now):
            self.ask_deadline()
            if self.phase.is_due(now):
                self.give_notice(Cause.LIMIT, until=self.phase.last_moment)

    def give_notice(self, cause: Cause, *, until: float | None) -> None:
        """The end is near: told to the ranks at once; a second notice changes nothing, but that
        after one of our own clock a command must leave as soon as the scheduler says."""
        if self.notice is Cause.NONE:
            self.notice, self.notice_until = cause, until
            self._notice_phase()
        elif self.phase is not None and self.phase.is_command and until is not None:
            self.phase.kill_by(until, "the notice was over")

    def _notice_phase(self) -> None:
        if self.phase is None:
            return
        self.phase.notice = self.notice
        left = None if self.notice_until is None else self.notice_until - self.clock.monotonic()
        self.phase.tell("notice", cause=self.notice, remaining_s=left)
        if self.notice_until is not None:
            self.phase.kill_by(self.notice_until, "the notice was over")
        if self.attempt is not None:
            self.attempt.events.add("notice", cause=self.notice, remaining_s=left)


def _state_after(action: Action) -> str:
    match action:
        case Leave(state):
            return "waiting" if state in ("done", "superseded", "blocked") else state
        case Hold():
            return "held"
        case Fail():
            return "failed"
        case HandOver():
            return "handed-over"
        case _:
            return "waiting"


def _gravity(action: Action) -> int:
    match action:
        case Leave(state):
            return {"done": 0, "complete": 0, "held": 3, "failed": 3}.get(state, 1)
        case HandOver():
            return 2
        case Hold() | Fail():
            return 3
        case _:
            return 0
