"""gradient = Σ sums / Σ weights over real ranks (promise 8): any number of them, with any shares,
makes the step of one process over the same samples.

In double, with SGD of lr 1: the weights after a step are those before less the gradient.
Between ranks only the order of additions differs: a relative 1e-12 is thousands of roundings, and
far below what a wrong factor or a lost sample would do.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.train.engines import CPU, weights
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tasuki.data.loader import MicroBatch
from tasuki.data.split import micro_batches, resolve_batch, share_of_rank
from tasuki.loop.ranks import Ranks, wrap_module
from tasuki.train.engine import LossModule, LossWindow, StepEngine

X = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


@dataclass(frozen=True)
class Case:
    """One step."""

    loss: str
    samples: int
    micro_batch: int
    clip: float | None = None


def mean(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def weighted(model, batch):
    x, y = batch
    each = 1.0 + x[:, :1].abs()
    return (each * (model(x) - y) ** 2).sum(), float(each.sum())


def masked(model, batch):
    """Nothing counts, though there is a gradient."""
    return model(batch[0]).sum(), 0.0


LOSSES = {"mean": mean, "weighted": weighted, "masked": masked}


@dataclass(frozen=True)
class Done:
    """What one rank saw of a step."""

    before: list[float]
    after: list[float]
    momenta: int
    """How many parameters the optimizer knows."""
    micro_batches: list[int]
    exchanges: int
    """How often DDP added up a bucket of gradients."""


def make_step(case: Case, ranks: Ranks) -> Done:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    before = weights(model).tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    module = wrap_module(LossModule(model, LOSSES[case.loss]), ranks, CPU)
    counted: list[int] = []
    if isinstance(module, DistributedDataParallel):

        def count(group, bucket):
            counted.append(bucket.index())
            return allreduce_hook(group, bucket)

        module.register_comm_hook(None, count)
    engine = StepEngine(module, optimizer, device=CPU, clip=case.clip, world=ranks.world)
    batches = share_of(case, ranks)
    engine.step(iter(batches), case.samples)
    counts = [batch.num_samples for batch in batches]
    return Done(before, weights(model).tolist(), len(optimizer.state), counts, len(counted))


def share_of(case: Case, ranks: Ranks) -> list[MicroBatch]:
    mine = share_of_rank(case.samples, ranks.rank, ranks.world)
    pieces = micro_batches(mine, case.micro_batch) if mine else [range(1)]  # borrowed: counts 0
    return [
        MicroBatch((X[list(piece)], Y[list(piece)]), len(piece) if mine else 0) for piece in pieces
    ]


def work(rank: int, world: int, store: str, cases: list[Case], answer) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    answer.send([make_step(case, Ranks(rank, world, None, None)) for case in cases])
    dist.barrier()
    dist.destroy_process_group()


CASES = [
    Case(loss, samples, micro_batch)
    for loss in ("mean", "weighted")
    for samples, micro_batch in ((16, 2), (7, 2), (11, 16), (2, 2), (1, 1))
]
CASES += [Case("mean", 7, 2, clip=0.5), Case("weighted", 16, 2, clip=0.5)]
SILENT = [Case("masked", 16, 2), Case("masked", 1, 1)]


def steps_of_ranks(world: int, store: str) -> list[list[dict[str, Any]]]:
    """What each rank saw of each case; called in a fork of a process with one thread."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    cases = CASES + SILENT
    processes = [
        context.Process(target=work, args=(rank, world, store, cases, pipes[rank][1]), daemon=True)
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    found = []
    for reader, _ in pipes:
        assert reader.poll(60), "a rank has no answer"
        found.append([asdict(done) for done in reader.recv()])
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return found


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, forks, tmp_path_factory) -> list[dict[Case, Done]]:
    """What each rank saw of each case."""
    store = str(tmp_path_factory.mktemp("store") / "store")
    function = "tests.train.test_sums_over_ranks:steps_of_ranks"
    found = forks.do(function, world=request.param, store=store)
    cases = CASES + SILENT
    return [
        {case: Done(**done) for case, done in zip(cases, of_rank, strict=True)} for of_rank in found
    ]


def alone(case: Case) -> Done:
    """One process, one micro-batch."""
    return make_step(replace(case, micro_batch=case.samples), Ranks(0, 1, None, None))


def test_any_number_of_ranks_makes_the_step_of_one_process_over_the_same_samples(ranks):
    for case in CASES:
        whole = alone(case)
        assert whole.after != whole.before
        for rank, seen in enumerate(ranks):
            assert seen[case].after == pytest.approx(whole.after, rel=1e-12, abs=1e-14), (
                case,
                rank,
            )
            assert seen[case].after == ranks[0][case].after, "ranks went apart"


def test_ranks_without_a_sample_take_part_with_weight_0(ranks):
    for case in (case for case in CASES if case.samples < len(ranks)):
        assert sum(sum(seen[case].micro_batches) for seen in ranks) == case.samples
        assert ranks[-1][case].micro_batches == [0]
        assert ranks[-1][case].exchanges == ranks[0][case].exchanges


def test_a_step_without_any_weight_changes_neither_weights_nor_optimizer(ranks):
    for case in SILENT:
        for seen in ranks:
            assert seen[case].after == seen[case].before
            assert seen[case].momenta == 0


def test_gradients_are_exchanged_once_a_step_however_many_micro_batches_it_has(ranks):
    numbers = {len(seen[case].micro_batches) for seen in ranks for case in CASES}
    assert len(numbers) > 1, "some accumulate, some do not"
    assert {seen[case].exchanges for seen in ranks for case in CASES} == {1}


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_4_ranks_with_micro_batches_of_2_and_accumulation_2_make_the_step_of_16_samples(ranks):
    """As 4 × 128 × 2 = 1,024."""
    batch = resolve_batch(None, 2, 2, 4)
    assert batch.effective_batch == 16
    for loss in ("mean", "weighted"):
        case = Case(loss, batch.effective_batch, batch.micro_batch)
        assert [seen[case].micro_batches for seen in ranks] == [[2, 2]] * 4
        whole = alone(case)
        assert whole.micro_batches == [16]
        assert ranks[3][case].after == pytest.approx(whole.after, rel=1e-12, abs=1e-14)


def test_the_weight_of_a_log_line_is_counted_in_double():
    window = LossWindow()
    window.add(torch.tensor(1.0), float(2**24 + 1))  # the first whole number that float lacks
    total, weight = window.sums()
    assert (float(total), float(weight)) == (1.0, 2**24 + 1)
