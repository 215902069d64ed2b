"""Recipes that do what models in the wild do and small examples do not."""

from __future__ import annotations

from typing import Any

import torch
from tests.unit.memory.models import Mlp
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Tied(Mlp):
    """Two layers with one weight."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[2].weight = model[0].weight
        return model


class Contrastive(Mlp):
    """Every sample against every other: quadratic in the batch."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, _ = batch
        one = functional.normalize(model(x), dim=-1)
        other = functional.normalize(model(x + 1), dim=-1)
        scores = one @ other.T / 0.1
        goal = torch.arange(len(x))
        return functional.cross_entropy(scores, goal) + functional.cross_entropy(scores.T, goal)


class Sparse(Mlp):
    """An embedding whose gradient has the rows of the batch only."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(50, self.width, sparse=True), nn.Linear(self.width, 5))

    def batch(self, batch: int, size: int = 0) -> Any:
        numbers = torch.arange(batch * 4).view(batch, 4) % 50
        return numbers, torch.zeros(batch, dtype=torch.int64)

    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model[1](model[0](x).mean(1)), y)


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, x.exp())
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, _ = ctx.saved_tensors
        return 2 * x * grad


class OwnFunction(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model[2:](_Squared.apply(model[:2](x))), y)


class Recurrent(Mlp):
    def build_model(self) -> nn.Module:
        recurrent = nn.LSTM(self.width, self.width, 2, batch_first=True)
        return nn.ModuleList([recurrent, nn.Linear(self.width, 5)])

    def batch(self, batch: int, size: int = 6) -> Any:
        return torch.zeros(batch, size, self.width), torch.zeros(batch, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model[1](model[0](x)[0][:, -1]), y)


class Packed(Recurrent):
    """Sequences of their own lengths, packed."""

    def batch(self, batch: int, size: int = 6) -> Any:
        x, y = super().batch(batch, size)
        return x, y, torch.arange(batch) % size + 1

    def loss(self, model: Any, batch: Any) -> Any:
        x, y, lengths = batch
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(model[0](packed)[0], batch_first=True)
        return functional.cross_entropy(model[1](out[:, 0]), y)


class UNet(Mlp):
    """Skip connections: early tensors live long."""

    class Model(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, width, 3, 1, 1), nn.Conv2d(width, width, 3, 2, 1)
            self.up = nn.ConvTranspose2d(width, width, 2, 2)
            self.norm = nn.GroupNorm(2, 2 * width)
            self.last = nn.Conv2d(2 * width, 1, 1)

        def forward(self, x: Any) -> Any:
            kept = functional.silu(self.first(x))
            low = functional.silu(self.second(kept))
            low = functional.interpolate(
                functional.max_pool2d(low, 2), scale_factor=2, mode="bilinear"
            )
            return self.last(self.norm(torch.cat([kept, self.up(low)], 1)))

    def __init__(self, width: int = 6) -> None:
        super().__init__(width)

    def build_model(self) -> nn.Module:
        return self.Model(self.width)

    def batch(self, batch: int, size: int = 16) -> Any:
        return torch.zeros(batch, 1, size, size)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.mse_loss(model(batch), batch)


class Experts(Mlp):
    """A sample goes to its two best experts: how many come to one is in the data."""

    def build_model(self) -> nn.Module:
        width = self.width
        experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        return nn.ModuleDict(
            {"route": nn.Linear(width, 4), "experts": experts, "last": nn.Linear(width, 5)}
        )

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        weights, chosen = model["route"](x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(model["experts"]):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return functional.cross_entropy(model["last"](out), y)


class InPlace(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        h = model[0](x)
        h.mul_(2.0).relu_()
        h = model[2](h)
        h[:, :3] = 0.0
        h.tanh_()
        return functional.cross_entropy(model[4:](h), y)


class Functional(Mlp):
    """torch.func: gradients per sample."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch

        def one(parameters: Any, row: Any, goal: Any) -> Any:
            out = torch.func.functional_call(model, parameters, row[None])
            return functional.cross_entropy(out, goal[None])

        parameters = dict(model.named_parameters())
        each = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(parameters, x, y)
        norm = sum(g.square().sum() for g in each.values())
        return functional.cross_entropy(model(x), y) + 1e-3 * norm


class Checkpointed(Mlp):
    def __init__(self, width: int = 24, *, is_reentrant: bool = False) -> None:
        super().__init__(width)
        self.is_reentrant = is_reentrant

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        h = model[:2](x)
        h = checkpoint(model[2:6], h, use_reentrant=self.is_reentrant)
        return functional.cross_entropy(model[6](h), y)


class Segments(Mlp):
    """Sums over groups whose number is the largest group of the batch."""

    def batch(self, batch: int, size: int = 0) -> Any:
        group = torch.arange(batch).repeat_interleave(3)
        return torch.zeros(3 * batch, self.width), group

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, group = batch
        h = model[:6](x)
        sums = h.new_zeros(int(group.max()) + 1, h.shape[1]).index_add(0, group, h)
        return model[6](sums).square().mean()


class NestedBackward(Mlp):
    """A penalty on the gradient at the input: a graph of a graph."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        x = x.detach().clone().requires_grad_()
        loss = functional.cross_entropy(model(x), y)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + grad.square().sum()


class Switching(Mlp):
    """Another way from 30 samples on: nothing that small batches could tell."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        if len(x) >= 30:
            x = torch.cat([x] * 6)
            y = torch.cat([y] * 6)
        return functional.cross_entropy(model(x), y)


class Chunked(Mlp):
    """In pieces of 16 rows: the number of events grows with the batch."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        outs = torch.cat([model(piece) for piece in x.split(4)])
        return functional.cross_entropy(outs, y)


class Encoder(Mlp):
    """torch's own transformer layers, with a mask of padding."""

    def build_model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(self.width, 4, 48, batch_first=True, dropout=0.1)
        return nn.ModuleList([nn.TransformerEncoder(layer, 2), nn.Linear(self.width, 5)])

    def batch(self, batch: int, size: int = 8) -> Any:
        return torch.zeros(batch, size, self.width), torch.zeros(batch, dtype=torch.int64)

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        padding = torch.arange(x.shape[1])[None].expand(len(x), -1) > 5
        return functional.cross_entropy(
            model[1](model[0](x, src_key_padding_mask=padding).mean(1)), y
        )


class TwoModels(Mlp):
    """A teacher that is not trained, in no_grad, and moved along by hand."""

    def build_model(self) -> nn.Module:
        model = nn.ModuleDict({"student": super().build_model(), "teacher": super().build_model()})
        model["teacher"].requires_grad_(False)
        return model

    def loss(self, model: Any, batch: Any) -> Any:
        x, _ = batch
        with torch.no_grad():
            goal = model["teacher"](x)
            pairs = zip(model["teacher"].parameters(), model["student"].parameters(), strict=True)
            for teacher, student in pairs:
                teacher.lerp_(student, 0.01)
        return functional.mse_loss(model["student"](x), goal)
