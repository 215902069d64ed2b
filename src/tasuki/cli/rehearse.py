"""`tasuki rehearse`."""

from __future__ import annotations

import click

from tasuki.cli.options import ManyValues, json_option, make_request, print_json, read_spec
from tasuki.cli.watching import watch_runs

_EXAMPLES = """\b
Example:
  tasuki rehearse
  tasuki rehearse small_512 --micro-batch 1
  tasuki rehearse tasuki.yaml --experiment progressive --budget 3m
"""


@click.command(cls=ManyValues, epilog=_EXAMPLES)
@click.argument("words", nargs=-1, metavar="[SPEC] [STAGE]...")
@click.option("--experiment", "experiments", multiple=True, help="Only these experiments.")
@click.option("--stages", multiple=True, help="Only these stages (and whose weights they need).")
@click.option("--config", help="A named overlay of the spec's `configs`.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override.")
@click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="So many samples at once: a quick look at the memory.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), default=1, metavar="N", help="Processes of a stage (1)."
)
@click.option(
    "--budget", default="60s", metavar="TIME", help="What is not done by then is left (60s)."
)
@click.option("--online", is_flag=True, help="Let recipes and data reach the network.")
@json_option
def command(
    words: tuple[str, ...],
    experiments: tuple[str, ...],
    stages: tuple[str, ...],
    config: str | None,
    settings: tuple[str, ...],
    micro_batch: int | None,
    ranks: int,
    budget: str,
    online: bool,
    as_json: bool,
) -> int:
    """A minute for what usually fails after hours in a queue.

    Every stage imports its recipe, opens its data, does two real steps on its largest samples,
    saves, loads that again and into the next stage, validates and evaluates on a few samples:
    offline, by the same processes as a run, in a scratch folder below `runs` that is removed. Then
    disk, schedules and sinks. On a machine without the spec's GPU it takes the CPU, and says
    so. Exit code 0 if all passed, 1 if not; no run is touched.
    """
    from tasuki.answers import Progress
    from tasuki.clock import SystemClock
    from tasuki.commands.inspect import is_spec
    from tasuki.commands.rehearse import RehearseRequest, rehearse_stages
    from tasuki.units import Duration
    from tasuki.views.rehearse import show_rehearsal

    spec, named = "tasuki.yaml", words
    if words and is_spec(words[0]):
        spec, named = words[0], words[1:]
    budget_s = Duration.parse(budget).seconds
    request = make_request(read_spec(spec, settings, config), experiments, (*named, *stages))
    with watch_runs() as (view, tick):

        def progress(told: Progress) -> None:
            of = f" ({told.done + 1} of {told.total})" if told.total else ""
            if told.total:
                view.begin(f"{told.what}{of}")

        report = rehearse_stages(
            RehearseRequest(
                plan=request,
                clock=SystemClock(),
                budget_s=budget_s,
                micro_batch=micro_batch,
                ranks=ranks,
                is_online=online,
                on_step=view.headline,
                on_result=lambda text: view.say("result", text),
                on_progress=progress,
                on_tick=tick,
                on_event=lambda kind, text: view.say(kind, text) if kind == "interrupted" else None,
            )
        )
    if as_json:
        print_json(report)
    else:
        show_rehearsal(report)
    return 0 if report["ok"] else 1
