"""From the work of all experiments to jobs in time: packed, or a chain of jobs per experiment.

Pure. Where every stage uses all GPUs of a job, each experiment has jobs of its own; where any uses
fewer, all of them are packed together. Refuses what misses its deadline or is more jobs than the
site takes; refusals.py then looks for the nearest layout that works.
"""

from __future__ import annotations

from dataclasses import replace

from tasuki.errors import PlanError
from tasuki.planning.chains import bound_of_chains, chain_into_jobs
from tasuki.planning.forecast import spread_of_end
from tasuki.planning.laid import Chains, Layout, Terms
from tasuki.planning.packed import Packed, pack_into_jobs
from tasuki.planning.spread import spread
from tasuki.units import format_seconds


def lay_out(chains: Chains, terms: Terms) -> Layout:
    layout = lay_out_freely(chains, terms)
    _refuse_too_many(layout, terms)
    _refuse_late(layout, terms)
    found = spread_of_end(layout.jobs) if layout.makespan_s is not None else None
    if found is None:
        return layout
    return replace(layout, p10_s=found[0], p90_s=found[1])


def lay_out_freely(chains: Chains, terms: Terms) -> Layout:
    """Whatever it takes; a deadline is met if it can be."""
    chains = [chain for chain in chains if chain]
    if not is_packed(chains, terms):
        jobs = chain_into_jobs(chains, terms)
        return Layout(jobs=jobs, lower_bound_s=bound_of_chains(chains, terms), is_packed=False)
    layout = _packed(pack_into_jobs(chains, terms))
    if _is_late(layout, terms) and (found := spread(chains, terms)) is not None:
        return _packed(found)
    return layout


def _packed(packed: Packed) -> Layout:
    return Layout(
        jobs=packed.jobs,
        lower_bound_s=packed.lower_bound_s,
        is_packed=True,
        reasons=packed.reasons,
    )


def is_packed(chains: Chains, terms: Terms) -> bool:
    return any(work.gpus < terms.gpus for chain in chains for work in chain)


def _is_late(layout: Layout, terms: Terms) -> bool:
    makespan_s, deadline_s = layout.makespan_s, terms.deadline_s
    return deadline_s is not None and makespan_s is not None and makespan_s > deadline_s


def _refuse_late(layout: Layout, terms: Terms) -> None:
    if not _is_late(layout, terms):
        return
    assert terms.deadline_s is not None and layout.makespan_s is not None
    bound_s = layout.lower_bound_s or 0.0
    told = ""
    if bound_s > terms.deadline_s:
        told = f"; nothing is shorter than {format_seconds(bound_s)} with as many GPUs"
    raise PlanError(
        f"the plan takes {format_seconds(layout.makespan_s)} and misses its deadline of "
        f"{format_seconds(terms.deadline_s)} by "
        f"{format_seconds(layout.makespan_s - terms.deadline_s)}{told}",
        hint="give it more time (`deadline`), or less to do",
    )


def _refuse_too_many(layout: Layout, terms: Terms) -> None:
    if terms.max_jobs is not None and len(layout.jobs) > terms.max_jobs:
        raise PlanError(
            f"{len(layout.jobs)} jobs are planned, but this site takes {terms.max_jobs} of a user "
            "(`queue.max_jobs` of the site file)",
            hint="submit fewer with `--experiment`, or ask for a longer `cluster.time_limit`",
        )
