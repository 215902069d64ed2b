"""What `inspect` says of a spec's buckets beside their samples: a micro-batch, and what it needs;
of stages whose micro-batches a budget bounds, that budget.

From the memory probe of the stage that takes a bucket's samples (outlook.py): asked for with the
name of a GPU, else only if it is kept already; never measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tasuki.commands.asking import Asking
from tasuki.commands.outlook import Outlook, Prospect, untraced_in_words
from tasuki.errors import TasukiError
from tasuki.estimation.fitted import Card, fit_bucket
from tasuki.spec.resolved import ResolvedSpec
from tasuki.spec.site import load_site


def add_batches(
    parts: Sequence[dict[str, Any]], spec: ResolvedSpec, *, gpu: str | None, asking: Asking
) -> Iterator[str]:
    """Fills the buckets of the parts; what there is to know about it. `gpu`: as somebody asked;
    None: the spec's own, and nobody is made to wait for it."""
    name = gpu or spec.cluster.gpu
    if name is None:
        return
    prospect = Prospect(
        spec=spec,
        ranks=spec.cluster.gpus * spec.cluster.nodes,
        site=load_site(environ=asking.environment),
        asking=asking if gpu is not None else None,
    )
    try:
        card = prospect.card(name)
        looked = _look(parts, spec, prospect, card)
    except TasukiError:
        if gpu is not None:
            raise
        return
    for part in parts:
        outlooks = [looked[_key(stage)] for stage in part["stages"]]
        for stage, outlook in zip(part["stages"], outlooks, strict=True):
            _fill_budget(stage, outlook)
        for bucket in part["buckets"]:
            _fill(bucket, outlooks)
    if gpu is not None:
        yield from prospect.notes
        yield from untraced_in_words(looked.values())
    yield from (
        f"stage `{one.stage.name}` does not fit: {'; '.join(one.remedies)}"
        for one in looked.values()
        if one.remedies
    )


def _look(
    parts: Sequence[dict[str, Any]], spec: ResolvedSpec, prospect: Prospect, card: Card
) -> dict[tuple[str, str], Outlook]:
    stages = {(e.name, stage.name): stage for e in spec.experiments for stage in e.stages}
    wanted = list(dict.fromkeys(_key(stage) for part in parts for stage in part["stages"]))
    [found] = prospect.look([stages[key] for key in wanted], [card])
    return dict(zip(wanted, found, strict=True))


def _key(stage: dict[str, Any]) -> tuple[str, str]:
    return stage["experiment"], stage["stage"]


def _fill_budget(stage: dict[str, Any], one: Outlook) -> None:
    """All samples of such a stage share one bucket, whatever their sizes."""
    fit = one.fits[0] if one.stage.buckets.kind == "cost" and one.fits else None
    if fit is None or fit.needs is None or fit.budget is None:
        return
    stage["gpu"], stage["cost"] = one.card.gpu.name, one.stage.buckets.cost
    stage["budget"] = fit.budget if fit.fits else 0
    stage["cost_budget"] = fit.max_budget
    stage["peak_bytes"] = one.peak_bytes


def _fill(bucket: dict[str, Any], outlooks: Sequence[Outlook]) -> None:
    """By the first stage that takes samples of this size and whose memory is known."""
    for one in outlooks:
        takes = one.stage.size is None or (
            bucket["size"] is not None and one.stage.size.contains(bucket["size"])
        )
        takes = takes and one.stage.buckets.kind != "cost"
        if takes and one.foretold is not None and one.foretold.probe is not None:
            asked = {"largest": bucket["size"], "steps": None, **bucket}
            fit = fit_bucket(one.stage, asked, one.foretold.probe, one.card)
            bucket["gpu"] = one.card.gpu.name
            bucket["micro_batch"] = fit.micro_batch if fit.fits else 0
            bucket["max_micro_batch"] = fit.max_micro_batch
            bucket["peak_bytes"] = fit.needs.peak_bytes if fit.needs is not None else None
            return
