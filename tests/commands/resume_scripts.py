"""Training scripts for `verify resume`, made from one text: sound ones, and some with bugs."""

from __future__ import annotations

SOUND = """
import os, random, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import tasuki

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataset = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
data = DataLoader(dataset, 8, shuffle=True)
calls = 0

with tasuki.open_run(save="1h") as run:
    run.track(model=model, optimizer=opt)
    for x, y in run.steps(data, epochs=200):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss)
"""
_LOSS = "        opt.zero_grad()\n"
_STEPS = "    for x, y in run.steps(data, epochs=200):\n"
_LOG = "        run.log(loss=loss)\n"
_OPEN = 'with tasuki.open_run(save="1h") as run:\n'


def _with(old: str, new: str, text: str = SOUND) -> str:
    assert old in text
    return text.replace(old, new)


BUGS = {
    "counter": _with(_LOSS, "        calls += 1; loss = loss * min(1, calls / 100)\n" + _LOSS),
    "generator": _with(
        "model(x)",
        "model(x + 0.1 * torch.randn(x.shape, generator=noise))",
        _with(_OPEN, "noise = torch.Generator().manual_seed(3)\n" + _OPEN),
    ),
    "attempt_rate": _with(
        _LOSS,
        '        opt.param_groups[0]["lr"] = 0.01 / int(os.environ["TASUKI_ATTEMPT"])\n' + _LOSS,
    ),
    "address_order": _with(
        _LOSS,
        "        for p in model.parameters():\n"
        "            loss = loss + 1e-4 * (hash(p) % 1009) * p.square().sum()\n" + _LOSS,
    ),
    "clock": _with(_LOSS, "        loss = loss * (1 + time.time() % 1e5 * 1e-6)\n" + _LOSS),
}

_PER_EPOCH = "    for epoch in run.epochs(200):\n      for x, y in run.steps(data):\n"
SOUND_SCRIPTS = {
    "plain": SOUND,
    "unlogged": _with(_LOG, ""),
    "epochs": _with(_STEPS, _PER_EPOCH),
    "accumulation": _with(
        _STEPS + "        loss = nn.functional.mse_loss(model(x), y)\n" + _LOSS,
        "    for x, y in run.steps(data, epochs=200, accumulation=2):\n"
        "        loss = nn.functional.mse_loss(model(x), y)\n" + _LOSS,
    ),
    "schedule_per_epoch": _with(
        _LOG,
        _LOG + "      sched.step()\n",
        _with(
            "optimizer=opt)",
            "optimizer=opt, scheduler=sched)",
            _with(
                _OPEN,
                "sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.9)\n" + _OPEN,
                _with(_STEPS, _PER_EPOCH),
            ),
        ),
    ),
    "unseeded": _with("torch.manual_seed(0)", "torch.manual_seed(0)\nrandom.random()"),
    "momentum": _with("AdamW(model.parameters(), lr=1e-2)", "SGD(model.parameters(), 0.01, 0.9)"),
    "workers": _with("8, shuffle=True", "8, shuffle=True, num_workers=2"),
    "ragged": _with(
        "torch.randn(96, 4), torch.randn(96, 1)", "torch.randn(93, 4), torch.randn(93, 1)"
    ),
    "average": _with(
        _LOSS,
        _LOSS + "        average.update_parameters(model)\n",
        _with(
            "optimizer=opt)",
            "optimizer=opt, average=average)",
            _with(_OPEN, "average = torch.optim.swa_utils.AveragedModel(model)\n" + _OPEN),
        ),
    ),
}
