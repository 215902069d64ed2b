"""`compile`: the same training, or the model as it is written and a word about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasuki.train.compiled import Compiled
from tasuki.train.engine import LossModule
from tasuki.train.kernels import keep_kernels
from tasuki.train.recompute import recompute


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)


def loss(model, batch):
    return model(batch).square().mean()


def make(monkeypatch, backend, loss=loss):
    """`torch.compile` with another backend: code for the CPU takes a compiler half a minute."""
    real = torch.compile

    def compile_with(module, *, mode, dynamic):
        torch._dynamo.reset()
        return real(module, backend=backend, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compile_with)
    torch.manual_seed(0)
    said = []
    module = Compiled(LossModule(Model(), loss), mode="default", num_shapes=2, say=said.append)
    return module, said


def test_a_graph_that_compiles_gives_the_numbers_of_the_model(monkeypatch):
    module, said = make(monkeypatch, "eager")
    x = torch.randn(4, 6)
    torch.manual_seed(3)
    plain = module.module(x)
    torch.manual_seed(3)
    assert torch.equal(plain, module(x))
    assert module.is_compiled and not said


def test_what_cannot_be_compiled_runs_as_written_with_the_same_random_numbers(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no such instruction")

    module, said = make(monkeypatch, broken)
    x = torch.randn(4, 6)
    torch.manual_seed(3)
    plain = module.module(x)
    torch.manual_seed(3)
    assert torch.equal(plain, module(x))
    assert not module.is_compiled
    assert len(said) == 1
    assert "runs as it is written" in said[0] and "no such instruction" in said[0]
    module(x)
    assert len(said) == 1


def test_an_error_of_the_recipe_is_not_taken_for_the_compilers(monkeypatch):
    def wrong(model, batch):
        return model(batch.reshape(7, 7))

    module, said = make(monkeypatch, "eager", wrong)
    with pytest.raises(Exception, match="invalid for input of size") as caught:
        module(torch.randn(4, 6))
    assert said or isinstance(caught.value, RuntimeError)


def test_shapes_without_end_stop_the_compiling_aloud_instead_of_in_silence(monkeypatch):
    module, said = make(monkeypatch, "eager")
    sizes = iter(range(2, 40))
    while module.is_compiled:
        module(torch.randn(next(sizes), 6))
    module(torch.randn(next(sizes), 6))
    assert len(said) == 1


def test_kernels_are_kept_with_the_run_unless_the_user_chose_a_place(tmp_path):
    environment = {"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_me"}  # torch's own default
    keep_kernels(tmp_path, environment, cpus=1)
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    chosen = {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere"}
    keep_kernels(tmp_path, chosen, cpus=8)
    assert chosen == {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere"}


def test_blocks_that_compute_anew_can_be_compiled(monkeypatch):
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()) for _ in range(2)
            )

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    module, said = make(monkeypatch, "aot_eager")
    model = module.module.model = Deep()
    recompute(model, True)
    x = torch.randn(8, 6)
    module(x).backward()
    assert module.is_compiled and not said
    assert all(int(block[1].num_batches_tracked) == 1 for block in model.blocks)
