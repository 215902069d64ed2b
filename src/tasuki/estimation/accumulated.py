"""A probe of a step in one micro-batch, as the same step is in several.

Pure. From the second micro-batch on all gradients lie there from the beginning; each new one comes,
is added to the one that is there, and goes. So no second trace is needed, which would take twice as
long. Held against real traces of accumulating steps in tests/memory.
"""

from __future__ import annotations

from dataclasses import replace

from tasuki.estimation.probes import Probe


def accumulated(probe: Probe) -> Probe:
    """The last micro-batch of a step, and the optimizer. One whose gradients lie there before the
    step is such a step already."""
    before, during = probe.events[: probe.begin], probe.events[probe.begin :]
    new = [
        (number, which)
        for number, which in during
        if number > 0 and probe.kinds[probe.polynomials[which][0]] == "gradients"
    ]
    if not new:
        return probe
    first = max(number for number, _ in probe.events) + 1
    stays = {number: first + place for place, (number, _) in enumerate(new)}
    events = [*before, *((stays[number], which) for number, which in new)]
    going: list[tuple[int, int]] = []
    for number, which in during:
        if number in stays:
            # Autograd holds it until its next operation has allocated: seen in traces.
            events += [(number, which), *going]
            going = [(-number, which)]
        elif number > 0:
            events += [(number, which), *going]
            going = []
        elif -number in stays:
            events.append((-stays[-number], which))
        else:
            events.append((number, which))
    events += going
    return replace(probe, events=tuple(events), begin=probe.begin + len(new))
