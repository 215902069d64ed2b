"""Adapters on a frozen language model learn to say what is in a picture.

tasuki calls the methods of `Captions`; the spec's `params` are the arguments of its constructor,
and have the names that they had in the files the spec was made from. The base comes from a folder
as transformers writes it (`generate.py` makes a small one) and is never written again: what
`state_dict` gives, and so what checkpoints and weights hold, are the trained parameters alone.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "white": (1, 1, 1)}
SHAPES = {
    "square": (0b111, 0b101, 0b111),
    "cross": (0b010, 0b111, 0b010),
    "bar": (0b000, 0b111, 0b000),
    "pole": (0b010, 0b010, 0b010),
}
ROWS, COLUMNS = ("upper", "middle", "lower"), ("left", "centre", "right")
VOCABULARY = ("<pad>", "<caption>", "<end>", *COLOURS, *SHAPES, *ROWS, *COLUMNS)
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}
PATCHES = len(ROWS) * len(COLUMNS)
PIXELS = 3 * 3 * 3
"""Of a patch: three rows of three, in three colours."""
MOST_THINGS = {"easy": 1, "medium": 2, "hard": 3}
"""In a picture, by the name of the data; there is at least one."""
MOST_WORDS = 3 * 4 + 1
SPLITS = {"train": 1, "val": 2, "test": 3}
NOISE = 0.1


def draw_scenes(level: str, split: str, count: int) -> tuple[Tensor, Tensor]:
    """Pictures (count, patches, pixels) and their captions, which name the things in the order in
    which one reads: `red cross upper left blue bar lower right <end>`."""
    most = MOST_THINGS[level]
    generator = torch.Generator().manual_seed(10 * SPLITS[split] + most)
    pictures = torch.zeros(count, PATCHES, PIXELS)
    captions = torch.zeros(count, MOST_WORDS, dtype=torch.int64)
    things = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    looks = torch.tensor([look_of(*thing) for thing in things])
    for place in range(count):
        number = int(torch.randint(1, most + 1, (), generator=generator))
        patches = torch.randperm(PATCHES, generator=generator)[:number].sort().values
        chosen = torch.randint(len(things), (number,), generator=generator)
        pictures[place, patches] = looks[chosen]
        words = []
        for patch, thing in zip(patches.tolist(), chosen.tolist(), strict=True):
            words += [*things[thing], ROWS[patch // 3], COLUMNS[patch % 3]]
        caption = [NUMBER[word] for word in [*words, "<end>"]]
        captions[place, : len(caption)] = torch.tensor(caption)
    return pictures + NOISE * torch.randn(pictures.shape, generator=generator), captions


def look_of(colour: str, shape: str) -> list[float]:
    """The pixels of one thing."""
    bits = [row >> (2 - column) & 1 for row in SHAPES[shape] for column in range(3)]
    return [float(bit * part) for bit in bits for part in COLOURS[colour]]


class Captioner(nn.Module):
    """Patches and words become states of the language model; it says the next word."""

    def __init__(self, language: nn.Module, width: int, *, digest: bytes) -> None:
        super().__init__()
        self.language = language
        self.eye = nn.Linear(PIXELS, width)
        self.places = nn.Parameter(0.5 * torch.randn(PATCHES, width))
        self.register_buffer("base", torch.tensor(list(digest), dtype=torch.uint8))
        self.register_state_dict_post_hook(_keep_own)
        self.register_load_state_dict_pre_hook(_refuse_other_base)
        self.register_load_state_dict_post_hook(_expect_own)

    def forward(self, pictures: Tensor, words: Tensor) -> Tensor:
        """Logits of each word after the first."""
        seen = self.eye(pictures) + self.places
        said = self.language.get_input_embeddings()(words)
        states = torch.cat((seen, said.to(seen.dtype)), 1)
        return self.language(inputs_embeds=states, use_cache=False).logits[:, PATCHES:-1]


def own_names(model: nn.Module) -> set[str]:
    """What is trained, and which base it was trained on. The base itself is on disk already, once
    for all experiments: its folder is a parameter."""
    return {"base", *(name for name, value in model.named_parameters() if value.requires_grad)}


def _keep_own(model: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    names = {prefix + name for name in own_names(model)}
    for name in [name for name in state if name.startswith(prefix) and name not in names]:
        del state[name]


def _refuse_other_base(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    held = state.get(f"{prefix}base")
    if held is not None and not torch.equal(held.cpu(), model.base.cpu()):
        raise ValueError("these adapters were trained on another base than the one in the folder")


def _expect_own(model: nn.Module, keys: Any) -> None:
    names = own_names(model)
    keys.missing_keys[:] = [name for name in keys.missing_keys if name in names]


class Captions:
    tokens_per_sample = "weight"
    """The weight of the loss counts words."""

    def __init__(
        self,
        model_name_or_path: str = "base",
        lora_r: int = 8,
        lora_alpha: int = 16,
        lora_dropout: float = 0.0,
        lora_target_modules: str | list[str] = "all-linear",
        load_in_4bit: bool = False,
        bnb_4bit_quant_type: str = "nf4",
        train_samples: int = 1024,
        eval_samples: int = 256,
    ) -> None:
        self.base = Path(model_name_or_path)
        self.adapters = {
            "r": lora_r,
            "lora_alpha": lora_alpha,
            "lora_dropout": lora_dropout,
            "target_modules": lora_target_modules,
        }
        self.kind = bnb_4bit_quant_type if load_in_4bit else None
        self.counts = {"train": train_samples, "val": eval_samples, "test": eval_samples}

    def build_model(self) -> nn.Module:
        if not (self.base / "config.json").is_file():
            raise FileNotFoundError(f"there is no model in {self.base}: generate.py makes it")
        base = load_base(self.base, kind=self.kind)
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(base, LoraConfig(**self.adapters))
        return Captioner(model, base.config.hidden_size, digest=digest_of(self.base))

    def build_dataset(self, source: str, split: str) -> TensorDataset:
        if source not in MOST_THINGS:
            known = ", ".join(MOST_THINGS)
            raise ValueError(f"there are no pictures called {source}: write one of {known}")
        return TensorDataset(*draw_scenes(source, split, self.counts[split]))

    def loss(self, model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The sum over all words and their number: so the split of a step into micro-batches
        changes nothing, however long their captions are."""
        pictures, captions = batch
        logits = model(pictures, with_start(captions))
        total = functional.cross_entropy(
            logits.flatten(0, 1).float(), captions.flatten(), ignore_index=0, reduction="sum"
        )
        return total, (captions > 0).sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: TensorDataset) -> dict[str, float]:
        """Surprise per word; the share of words, and of whole captions, that it would say."""
        device = next(model.parameters()).device
        pictures, captions = (part.to(device) for part in dataset.tensors)
        loss = words = right = whole = 0.0
        for piece, wanted in zip(pictures.split(64), captions.split(64), strict=True):
            logits = model(piece, with_start(wanted)).float()
            counts, is_right = wanted > 0, logits.argmax(-1) == wanted
            loss += float(
                functional.cross_entropy(
                    logits.flatten(0, 1), wanted.flatten(), ignore_index=0, reduction="sum"
                )
            )
            words += float(counts.sum())
            right += float((is_right & counts).sum())
            whole += float((is_right | ~counts).all(1).sum())
        return {"loss": loss / words, "words": right / words, "captions": whole / len(captions)}


def with_start(captions: Tensor) -> Tensor:
    """What is read: `<caption>` before the first word."""
    return functional.pad(captions, (1, 0), value=NUMBER["<caption>"])


def digest_of(folder: Path) -> bytes:
    """Of the weights in it."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()


def load_base(folder: Path, *, kind: str | None) -> Any:
    """The base, frozen by whoever adapts it; with `kind` its layers have 4 bits (QLoRA)."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    more: dict[str, Any] = {}
    if kind is not None:
        from transformers import BitsAndBytesConfig

        is_gpu = torch.cuda.is_available()
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind,
            bnb_4bit_compute_dtype=torch.bfloat16 if is_gpu else torch.float32,
        )
        more["device_map"] = {"": torch.cuda.current_device() if is_gpu else "cpu"}
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, **more)
    for module in model.modules():
        # On CPUs with AVX-512, bitsandbytes packs 4-bit weights at the first validation and rounds
        # their scales. The same step of a resumed run would then have other numbers.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model
