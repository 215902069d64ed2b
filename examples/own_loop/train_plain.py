"""Learn two moons, as many scripts do it: no way to stop and go on. `train.py` is the same with
tasuki."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def two_moons(n: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    angle = torch.pi * torch.rand(n, generator=generator)
    side = torch.arange(n) % 2
    sign = 1 - 2 * side
    x = torch.stack([angle.cos() * sign + side, angle.sin() * sign + 0.5 * side], dim=1)
    return TensorDataset(x + 0.1 * torch.randn(n, 2, generator=generator), side)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8 * 32)
data = two_moons(1024)
loader = DataLoader(data, batch_size=32, shuffle=True)

for _ in range(8):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()

model.eval()
x, y = data.tensors
print(f"accuracy {(model(x).argmax(1) == y).float().mean().item():.3f}")
