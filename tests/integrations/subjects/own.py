"""One's own loop."""

import random
import sys

import numpy as np
import torch
from common import (
    ACCUMULATION,
    BATCH,
    EPOCHS,
    VALIDATE_EVERY,
    WORKERS,
    Net,
    Noisy,
    remember,
    strike,
)
from torch.utils.data import DataLoader

import tasuki

random.seed(7)
np.random.seed(7)
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=WORKERS)
losses = []
with tasuki.open_run(sys.argv[1], save="3 steps", log_every=1) as run:
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for batch in run.steps(loader, epochs=EPOCHS, accumulation=ACCUMULATION):
        strike(run.step)
        loss = model(**batch)["loss"]
        (loss / ACCUMULATION).backward()
        if (run.step % len(loader) + 1) % ACCUMULATION == 0 or (run.step + 1) % len(loader) == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        run.log(loss=loss)
        if VALIDATE_EVERY and (run.step + 1) % VALIDATE_EVERY == 0:
            with torch.no_grad():
                model.eval()
                fixed = {"x": torch.ones(2, 4), "labels": torch.zeros(2, dtype=torch.long)}
                run.log(loss=model(**fixed)["loss"], split="val")
                model.train()
    remember(model, optimizer=optimizer.state_dict(), scheduler=scheduler.state_dict())
