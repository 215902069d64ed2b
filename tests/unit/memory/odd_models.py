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


class Einsum(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        rows = model[:2](x).view(len(x), 4, -1)
        scores = torch.einsum("bid,bjd->bij", rows, rows).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", scores, rows).flatten(1)
        return functional.cross_entropy(model[2:](mixed), y)


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
    def __init__(self, width: int = 24, *, kind: Any = nn.LSTM) -> None:
        super().__init__(width)
        self.kind = kind

    def build_model(self) -> nn.Module:
        recurrent = self.kind(self.width, self.width, 2, batch_first=True)
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


class DenseExperts(Experts):
    """The same with a capacity of its own, as many libraries do: no size depends on the data."""

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        weights, chosen = model["route"](x).softmax(-1).topk(2)
        one_hot = functional.one_hot(chosen, 4).to(x.dtype) * weights[..., None]
        outs = torch.stack([expert(x) for expert in model["experts"]], 1)
        return functional.cross_entropy(
            model["last"](torch.einsum("bke,bed->bd", one_hot, outs)), y
        )


class Caching(Mlp):
    """Keeps a tensor of the last batch on itself: it is there when the next one comes."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        hidden = model[:2](x)
        self.last_hidden = hidden.detach().clone()
        model.last_seen = hidden.detach() * 2  # type: ignore[assignment]
        return functional.cross_entropy(model[2:](hidden), y)


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


class ReadsLoss(Mlp):
    """`.item()` for a log, and a branch on it."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        loss = functional.cross_entropy(model(x), y)
        if loss.item() > 100:
            loss = loss * 0.5
        return loss, 1.0, {"loss": loss.item()}


class ReadsLengths(Mlp):
    """Cuts a batch to its longest sample: a size that is read from the data."""

    def batch(self, batch: int, size: int = 0) -> Any:
        x = torch.zeros(batch, 10, self.width)
        return x, torch.zeros(batch, dtype=torch.int64), torch.full((batch,), 7)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, lengths = batch
        x = x[:, : int(lengths.max())]
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        return functional.cross_entropy((model(x) * mask[..., None]).sum(1), y)


class Repeats(Mlp):
    """Rows as often as the batch says."""

    def batch(self, batch: int, size: int = 0) -> Any:
        x, y = super().batch(batch)
        return x, y, torch.full((batch,), 3)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, times = batch
        out = model(x.repeat_interleave(times, 0))
        counts = torch.bincount(y.repeat_interleave(times))
        return functional.cross_entropy(out, y.repeat_interleave(times)) + 0 * counts.sum()


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


class Hardest(Mlp):
    """The worse half of the batch, rounded down: no polynomial."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        losses = functional.cross_entropy(model(x), y, reduction="none")
        return losses.topk(max(1, len(losses) // 2)).values.mean()


class Sgd(Mlp):
    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Adagrad(Mlp):
    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.Adagrad(model.parameters(), lr=0.1)


class Adafactor(Mlp):
    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.Adafactor(model.parameters(), lr=0.1)


class RmsProp(Mlp):
    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.RMSprop(model.parameters(), lr=0.1, momentum=0.5, centered=True)


class Muon(Mlp):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("weight" in name)
        return model

    def build_optimizer(self, model: nn.Module) -> Any:
        return torch.optim.Muon([p for p in model.parameters() if p.requires_grad], lr=0.1)


class TwoGroups(Mlp):
    """Parameters that are not used in the loss, and two groups."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.unused = nn.Linear(self.width, self.width)
        return model

    def build_optimizer(self, model: Any) -> Any:
        rest = [p for p in model.parameters() if p is not model[0].weight]
        return torch.optim.AdamW([{"params": [model[0].weight], "lr": 1.0}, {"params": rest}])

    def loss(self, model: Any, batch: Any) -> Any:
        x, y = batch
        for layer in list(model)[:7]:
            x = layer(x)
        return functional.cross_entropy(x, y)


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


class Normed(Mlp):
    """weight_norm and spectral_norm compute weights anew in each pass."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        nn.utils.parametrizations.weight_norm(model[0])
        nn.utils.parametrizations.spectral_norm(model[2])
        return model


class Complex(Mlp):
    """Fourier transforms: complex numbers in between."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        x = torch.fft.irfft(torch.fft.rfft(model[:2](x)) * 2, n=self.width)
        return functional.cross_entropy(model[2:](x), y)


class Sorted(Mlp):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        h = model[:6](x)
        h = h.sort(-1).values.cumsum(-1) + h.gather(1, h.argsort(-1))
        return functional.cross_entropy(model[6](h), y)


class NoMask(Mlp):
    """Takes the samples of one class only, by a mask."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        keep = y >= 0
        return functional.cross_entropy(model(x)[keep], y[keep])


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
