"""Random chunks by HF `datasets` under torch's DataLoader, as its manual shows. For tokens.py.

Runs in the other tools' environment. The data set is saved to disk once and loaded from there:
Arrow files in a memory map. The first order gives the chunk size, each later one batches.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from datasets import Dataset, Features, List, Value, load_from_disk
from torch.utils.data import DataLoader

from _peers import answer, orders


def open_chunks(folder: Path, chunk: int) -> Any:
    tokens = np.load(folder / "tokens.npy")
    features = Features({"tokens": List(Value("uint16"), length=chunk)})
    rows = {"tokens": list(tokens.reshape(-1, chunk))}
    Dataset.from_dict(rows, features=features).save_to_disk(str(folder / "hf"))
    return load_from_disk(str(folder / "hf")).with_format("torch", dtype=torch.int64)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    requests = orders()
    dataset = open_chunks(folder, next(requests)["chunk"])
    assert dataset[0]["tokens"].dtype == torch.int64
    answer({})
    for order in requests:
        loader = DataLoader(dataset, batch_sampler=order["batches"])
        wall, cpu = time.perf_counter(), time.process_time()
        shapes = [tuple(batch["tokens"].shape) for batch in loader]
        taken = (time.perf_counter() - wall, time.process_time() - cpu)
        assert shapes[0] == (len(order["batches"][0]), len(dataset[0]["tokens"])), shapes[0]
        answer(taken)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
