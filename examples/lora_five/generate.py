"""Make the base model that the five experiments adapt: a small Llama with random weights.

It stands for the pretrained model that one would have on disk: a folder as transformers writes it.
Nothing is downloaded. Run once:

    python generate.py             # base/: 1.2 MB, in seconds, most of them for the import
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
from recipe import VOCABULARY


def make_base(folder: Path, *, width: int, layers: int, seed: int) -> int:
    """Write the model; the number of its parameters."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=width**-0.5,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft)
    draft.rename(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("base"))
    parser.add_argument("--width", type=int, default=128, help="a multiple of 8")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.width < 8 or given.width % 8 or given.layers < 1:
        parser.error("--width must be a multiple of 8, --layers at least 1")
    if given.out.exists():
        print(f"{given.out}: there already")
        return 0
    count = make_base(given.out, width=given.width, layers=given.layers, seed=given.seed)
    size = sum(path.stat().st_size for path in given.out.iterdir())
    print(f"{given.out}: {count:,} parameters, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
