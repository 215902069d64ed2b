"""Loops that tasuki did not write, and that must go on exactly where they were interrupted.

A subject is a script that trains through `tasuki.open_run` or an adapter, and how it is started.
Every test of the contract (test_contract.py) holds for every subject. To add one: a script that
leaves its run in ./runs/train, with a model, state and metrics as tasuki's own loop does.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.warm import Started, Warm, warm_server

from tasuki.commands.compare import compare_runs
from tasuki.runs.runs import RunFolder

DATA = '''
import os, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
import tasuki

torch.manual_seed(1); random.seed(2); np.random.seed(3)
WORKERS = int(os.environ.get("WORKERS", "0"))
MEET = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"]),
        "init_method": os.environ["MEET"]} if "MEET" in os.environ else {}


class Noisy(Dataset):
    """Every sample draws from all three random generators."""

    def __init__(self, n=44):
        g = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 6, generator=g)
        self.y = self.x[:, :2].sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + 0.01 * torch.randn(6)
        return x + 0.01 * random.random() + 0.01 * float(np.random.rand()), self.y[i]


def build(norm=nn.BatchNorm1d):
    """State and random numbers that a sloppy resume loses: BatchNorm, dropout, momenta."""
    return nn.Sequential(
        nn.Linear(6, 16), norm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )


def loss_of(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y) + 0.001 * random.random() + 0.001 * np.random.rand()
'''

FLAT = (
    DATA
    + """
model = build()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=30)
loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=WORKERS)
with tasuki.open_run(save="7 steps", log_every=3) as run:
    run.track(model=model, optimizer=opt, scheduler=sched)
    for batch in run.steps(loader, epochs=5):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step(); sched.step()
        run.log(loss=loss)
"""
)

MORE = (
    DATA
    + """
model, ema = build(), build()
opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
counts = {"seen": 0, "worst": 0.0, "names": ("a", "b")}
loader = DataLoader(Noisy(), batch_size=8, num_workers=WORKERS)
with tasuki.open_run(save="5 steps", log_every=4) as run:
    run.track(model=model, ema=ema, optimizer=opt, scheduler=sched, scaler=scaler, state=counts)
    for batch in run.steps(loader, steps=27, accumulation=2):
        loss = loss_of(model, batch)
        scaler.scale(loss / 2).backward()
        counts["seen"] += len(batch[0])
        if run.completes_step:
            scaler.step(opt); scaler.update(); opt.zero_grad()
            with torch.no_grad():
                for a, b in zip(ema.parameters(), model.parameters()):
                    a.lerp_(b, 0.1)
        counts["worst"] = max(counts["worst"], loss.item())
        if run.step % 6 == 5:
            sched.step(loss.item())
            run.log(val_loss=loss.item(), split="val")
            run.best(val_loss=loss)
        run.log(loss=loss, worst=counts["worst"], text="fine", nothing=float("nan"))
    run.finish({"seen": counts["seen"]})
"""
)

EPOCHS = (
    DATA
    + """
model = build()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)
loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=WORKERS)
with tasuki.open_run(save="4 steps", log_every=3) as run:
    run.track(model=model, optimizer=opt, scheduler=sched)
    for epoch in run.epochs(4):
        model.train()
        for batch in run.steps(loader):
            loss = loss_of(model, batch)
            opt.zero_grad(); loss.backward(); opt.step()
            run.log(loss=loss, own=epoch)
        sched.step()
        model.eval()
        run.log(val_loss=loss_of(model, next(iter(DataLoader(Noisy(), batch_size=44)))))
"""
)

STREAM = (
    DATA
    + """
class Stream(IterableDataset):
    def __iter__(self):
        data = Noisy()
        for i in torch.randperm(44).tolist():
            yield data[i]

    def __len__(self):
        return 44

model = build()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Stream(), batch_size=8)
with tasuki.open_run(save="7 steps", log_every=3) as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=4):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step()
        run.log(loss=loss)
"""
)

STATEFUL = STREAM.replace(
    "loader = DataLoader(Stream(), batch_size=8)",
    "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    "loader = StatefulDataLoader(Noisy(), batch_size=8, shuffle=True)",
)

RANKS = (
    DATA
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", **MEET)
torch.manual_seed(1 + dist.get_rank())
model = DistributedDataParallel(build(nn.LayerNorm))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(46), batch_size=4, shuffle=True, num_workers=WORKERS)
with tasuki.open_run(save="7 steps", log_every=3) as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=5):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step()
        run.log(loss=loss)
"""
)

ALIKE = (
    DATA
    + """
import time
model = build(nn.LayerNorm)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(24), batch_size=4, shuffle=True)
with tasuki.open_run(save="4 steps", log_every=2) as run:
    run.track(model=model, optimizer=opt)
    for batch in run.steps(loader, epochs=8):
        loss = loss_of(model, batch)
        opt.zero_grad(); loss.backward(); opt.step()
        run.log(loss=loss)
        time.sleep(0.03)  # no collective keeps these ranks together
"""
)


@dataclass(frozen=True)
class Subject:
    name: str
    script: str
    steps: int
    """Of an undisturbed run."""
    ranks: int = 1
    workers: tuple[int, ...] = (0,)
    """With how many loader workers it may be started: it makes no difference."""
    environment: dict[str, str] = field(default_factory=dict)
    framework: str = "tasuki.integrations.open"
    """What it imports first; a process that has it already forks the script."""
    is_slow: bool = False
    """Only in the full tests."""

    def __str__(self) -> str:
        return self.name


SUBJECTS = [
    Subject("own-loop", FLAT, 30, workers=(0, 2)),
    Subject("own-loop-much-state", MORE, 27, workers=(0, 2)),
    Subject("own-loop-epochs", EPOCHS, 24, workers=(0, 2)),
    Subject("own-loop-stream", STREAM, 24),
    Subject("own-loop-stateful-loader", STATEFUL, 24),
    Subject("own-loop-2-ranks", RANKS, 30, ranks=2, workers=(0, 1)),
    # Two numbers have one sum: what hangs on the order of ranks shows from three on.
    Subject("own-loop-4-ranks", RANKS, 15, ranks=4, is_slow=True),
]

FRAMEWORKS = Path(__file__).parent / "frameworks"
LIGHTNING, HF = "tasuki.integrations.lightning", "tasuki.integrations.hf"


def _of_framework(name: str) -> str:
    """A script of a framework, with its run where the contract wants it."""
    lines = (
        "import runpy, sys",
        f"sys.path.insert(0, {str(FRAMEWORKS)!r})",
        "sys.argv = ['train.py', 'runs/train']",
        f"runpy.run_path({str(FRAMEWORKS / name)!r}, run_name='__main__')",
    )
    return "\n".join(lines)


_LIGHT, _HUGGING = _of_framework("light.py"), _of_framework("hugging.py")
_MUCH = {"ACCUMULATION": "2", "VALIDATE_EVERY": "4", "SCHEDULE": "plateau", "EPOCHS": "3"}
_MUCH["QUIET_VALIDATION"] = "yes"
ADAPTERS = [
    Subject("lightning", _LIGHT, 18, 1, (0, 2), _MUCH, LIGHTNING),
    Subject("hf", _HUGGING, 18, 1, (0, 2), _MUCH, HF),
]
_THREE = {"EPOCHS": "3"}
ADAPTERS_OF_RANKS = [
    # With two ranks a sum has one order: three are the first that can tell whether DDP's groups of
    # gradients are the same after a resume.
    Subject("lightning-3-ranks", _LIGHT, 12, 3, (0,), _THREE, LIGHTNING, is_slow=True),
    Subject("hf-3-ranks", _HUGGING, 12, 3, (0,), _THREE, HF, is_slow=True),
]
# It steps after every second batch: every other boundary lies between backward and step.
MANUAL = Subject("lightning-manual", _LIGHT, 22, 1, (0,), {"MANUAL": "yes"}, LIGHTNING, True)


class Servers:
    """By the module that is imported beforehand; started when first asked for."""

    def __init__(self, folder: Path, stack: ExitStack, warm: Warm) -> None:
        self._folder, self._stack = folder, stack
        self._known = {"tasuki.integrations.open": warm}

    def __getitem__(self, framework: str) -> Warm:
        if framework not in self._known:
            folder = self._folder / framework
            folder.mkdir()
            server = self._stack.enter_context(warm_server(folder, framework))
            self._known[framework] = server
        return self._known[framework]


@dataclass(frozen=True)
class Script:
    """A subject's script in a folder of its own."""

    folder: Path
    subject: Subject

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / "train")

    def start(
        self, warm: Servers | Warm, *failpoints: dict, workers: int = 0, **environment: str
    ) -> list[Started]:
        """Its ranks."""
        server = warm if isinstance(warm, Warm) else warm[self.subject.framework]
        port = _free_port()
        meet = self.folder / f"meet.{len(list(self.folder.glob('meet.*')))}"
        environment = {
            **self.subject.environment,
            "WORKERS": str(workers),
            "TASUKI_SITE": "",
            "TASUKI_FAILPOINTS": json.dumps(failpoints),
            **environment,
        }
        started = []
        for rank in range(self.subject.ranks):
            own = dict(environment)
            if self.subject.ranks > 1:
                own |= {"RANK": str(rank), "WORLD_SIZE": str(self.subject.ranks)}
                own |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
                # Frameworks meet at the port, our own loops at a file: another process may take a
                # port between its choice and its use.
                own |= {"MASTER_PORT": str(port), "MEET": f"file://{meet}"}
            log = self.folder / f"{rank}.log"
            started.append(server.start_script(self.folder / "train.py", log=log, **own))
        return started

    def attempt(self, warm: Servers | Warm, *failpoints: dict, **more) -> list[int]:
        """The exit status of each rank."""
        return [one.wait() for one in self.start(warm, *failpoints, **more)]

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def differences(self, other: Script) -> list[str]:
        """What is not bit for bit the same, also of what a framework has at its end."""
        comparison = compare_runs(self.run, other.run, ["train"])
        found = [what for what, is_equal in comparison.checks if not is_equal]
        outcomes = [
            {path.name: path.read_text() for path in one.folder.glob("out.*.json")}
            for one in (self, other)
        ]
        return found if outcomes[0] == outcomes[1] else [*found, f"outcome: {outcomes}"]


def make_script(folder: Path, subject: Subject) -> Script:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(subject.script)
    return Script(folder, subject)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


SMALL = (
    DATA
    + """
model = nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(24), batch_size=8, shuffle=True)

def step(batch):
    loss = loss_of(model, batch)
    opt.zero_grad(); loss.backward(); opt.step()
    return loss
"""
)
"""A script up to its loop."""
