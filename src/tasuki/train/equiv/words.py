"""What a culprit is, and what to do about it, in plain words. Pure; called by child.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tasuki.train.equiv.causes import Finding

_SHOWN = 3
_SUM = "return (sum, weight): the sum over {}, and their number"


class Words(NamedTuple):
    what: str
    advice: str


def words_of(finding: Finding, *, is_partial_only: bool) -> Words:
    match finding.cause:
        case "random":
            return _random(finding)
        case "statistics":
            return _statistics(finding)
        case "checkpointing":
            return _checkpointing(finding)
        case "data":
            return _DATA
        case "padding":
            return _PADDING
        case "weights":
            return _weights(finding, is_partial_only=is_partial_only)
        case "whole_batch":
            return _whole_batch(finding)
        case "state":
            return _STATE
        case "engine":
            return _ENGINE
        case "unknown":
            return _UNKNOWN


_DATA = Words(
    "sample-dependent randomness in data: a sample, or what `collate` makes of some, is not the "
    "same each time it is fetched, so the sides did not get the same numbers",
    "draw in `__getitem__` from the global generators (random, numpy.random, torch), which are "
    "seeded for each sample; not in `collate`, and not from a generator of your own",
)
_PADDING = Words(
    "padding: samples are padded to the longest of their micro-batch, and something reads the "
    "padding, so a sample counts differently among other samples",
    "mask the padding in model and loss, and return (sum, weight) with the number of entries that "
    "are not padding; or pad to a fixed length, or write `buckets: exact`",
)
_STATE = Words(
    "a pass is not a function of weights and batch: the same batch gave another gradient the "
    "second time, with all random numbers at rest",
    "look for what model or loss remember between passes: counters, caches, moving averages; keep "
    "them in buffers, and change them once a step",
)
_ENGINE = Words(
    "tasuki's own step: with the weights of the loss the micro-batches add up to the plain batch, "
    "but the step gave another gradient",
    "please report it, with this output: it is a bug of tasuki's",
)
_UNKNOWN = Words(
    "no experiment tells why: with each cause at rest the sides still differ, and with all of them "
    "at rest they do not",
    "try a smaller case with --samples 4, and `--set gradient_checkpointing=false`",
)


def _random(finding: Finding) -> Words:
    own = [module for module in finding.modules if module[0]]
    where = _modules(own) if own else "the loss, or code outside of any module,"
    return Words(
        f"dropout and other random numbers: {where} {_draws(own)}, and micro-batches draw others "
        "than the plain batch",
        "nothing to mend: on average the gradient is the same, and every split is as good as "
        "another; without it (`p` = 0) the trade is compared exactly",
    )


def _draws(modules: Sequence[tuple[str, str]]) -> str:
    return "draw" if len(modules) > 1 else "draws"


def _statistics(finding: Finding) -> Words:
    mix = "mix" if len(finding.modules) > 1 else "mixes"
    error = f" ({finding.error})" if finding.error else ""
    kinds = sorted({kind for _, kind in finding.modules})
    is_norm = any("BatchNorm" in kind for kind in kinds)
    what = "BatchNorm" if is_norm else "statistics of the batch"
    return Words(
        f"{what}: {_modules(finding.modules)} {mix} the samples of a micro-batch in training"
        f"{error}",
        "use a norm that looks at one sample (LayerNorm, GroupNorm, RMSNorm), or freeze its "
        "statistics (`module.eval()` in the loss); or keep one micro-batch of this size on "
        "purpose: what is learnt depends on the micro-batch, not on the effective batch",
    )


def _checkpointing(finding: Finding) -> Words:
    told = f": {finding.error}" if finding.error else " numbers"
    return Words(
        "gradient checkpointing changes"
        + (told if not finding.error else f" the pass{told}")
        + "; what is computed anew for the backward pass is not what the forward pass was",
        "in a part that is computed anew: draw random numbers from the global generators only, "
        "with preserve_rng_state=True where you call `checkpoint` yourself; change no input in "
        "place; remember nothing between passes. Or leave `gradient_checkpointing` off",
    )


def _weights(finding: Finding, *, is_partial_only: bool) -> Words:
    over = finding.over
    if over == "samples":
        what = "partial last group: " if is_partial_only else ""
        return Words(
            f"{what}micro-batches of unequal numbers of samples are not weighed by these numbers: "
            f"the weights are {_shares(finding)}",
            "the weight that `loss` returns must be the number of what it is a sum of: for a mean "
            "over samples return the bare mean, or (sum, number of samples)",
        )
    total = sum(finding.weights[1]) if finding.weights else 1.0
    if abs(total - 1.0) > 1e-3:
        return Words(
            "the loss is no sum: what it gives for a batch is not what it gives for the parts of "
            f"it, added up ({_shares(finding)})",
            "for a mean return it bare; else return (sum, weight), where both grow with the batch",
        )
    things = over or "tokens, nodes or pixels"
    kind = "a bare mean" if finding.is_mean else "(sum, weight)"
    taken = "the number of samples" if finding.is_mean else "another number"
    begin = "partial last group: " if is_partial_only else ""
    return Words(
        f"{begin}a mean over {things}, not over samples: `loss` gives {kind}, whose weight is "
        f"{taken}, while micro-batches hold unequal numbers of them ({_shares(finding)})",
        _SUM.format(things),
    )


def _shares(finding: Finding) -> str:
    if finding.weights is None:
        return "unknown"
    taken, right = (
        ", ".join(f"{one:.3g}" for one in weights[:_SHOWN])
        + (" …" if len(weights) > _SHOWN else "")
        for weights in finding.weights
    )
    return f"{taken}; {right} would be right"


def _whole_batch(finding: Finding) -> Words:
    if finding.modules:
        who = f"{_modules(finding.modules)} look{'' if len(finding.modules) > 1 else 's'}"
        return Words(
            f"the whole batch is needed: {who} at all samples of a micro-batch, in training and in "
            "evaluation",
            "no split is equivalent: keep the whole effective batch in one micro-batch on one rank",
        )
    return Words(
        "the whole batch is needed: the loss is no sum over samples, as with in-batch negatives "
        "(contrastive losses), ranks or correlations over the batch",
        "no split is equivalent, whatever its weights: keep the whole effective batch in one "
        "micro-batch on one rank (`micro_batch` = `effective_batch`; gradient checkpointing does "
        "no harm), or make the micro-batch itself the batch on purpose",
    )


def _modules(modules: Sequence[tuple[str, str]]) -> str:
    named = [
        f"`{name}` ({kind})" if name else f"the model itself ({kind})" for name, kind in modules
    ]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more
