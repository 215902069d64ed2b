"""Recipes around models of other libraries: transformers, peft, torch_geometric, bitsandbytes.

Tiny configurations, random weights, nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.unit.memory.models import Mlp
from torch import nn
from torch.nn import functional

# -- transformers ---------------------------------------------------------------------------------


class Gpt2:
    def __init__(self, *, width: int = 32, attention: str = "eager") -> None:
        self.width, self.attention = width, attention

    def build_model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=96,
                n_positions=512,
                n_embd=self.width,
                n_layer=2,
                n_head=2,
                use_cache=False,
                attn_implementation=self.attention,
            )
        )

    def batch(self, batch: int, size: int = 16) -> Any:
        return {"input_ids": torch.ones(batch, size, dtype=torch.int64)}

    def loss(self, model: Any, batch: Any) -> Any:
        return model(**batch, labels=batch["input_ids"]).loss


class Llama(Gpt2):
    def build_model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=96,
                hidden_size=self.width,
                intermediate_size=3 * self.width,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                use_cache=False,
                attn_implementation=self.attention,
            )
        )


class Bert(Gpt2):
    """With a mask of padding."""

    def build_model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        return BertForSequenceClassification(
            BertConfig(
                vocab_size=96,
                hidden_size=self.width,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                attn_implementation=self.attention,
                num_labels=3,
            )
        )

    def batch(self, batch: int, size: int = 16) -> Any:
        ids = torch.ones(batch, size, dtype=torch.int64)
        mask = torch.ones_like(ids)
        mask[:, -3:] = 0
        labels = torch.zeros(batch, dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def loss(self, model: Any, batch: Any) -> Any:
        return model(**batch).loss


class Lora(Gpt2):
    """peft's adapters on a frozen base."""

    def build_model(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
        )
        return get_peft_model(super().build_model(), config)  # type: ignore[arg-type]


# -- bitsandbytes ---------------------------------------------------------------------------------


class FourBit(Mlp):
    """Frozen layers of 4 bits, their scales of 8, with trained ones next to them: QLoRA."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            import bitsandbytes as bnb

            self.base = bnb.nn.Linear4bit(
                width,
                width,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
                compress_statistics=True,
            )
            self.base.requires_grad_(False)
            self.down = nn.Linear(width, 4, bias=False)
            self.up = nn.Linear(4, width, bias=False)

        def forward(self, x: Any) -> Any:
            return functional.gelu(self.base(x) + self.up(self.down(x)))

    def build_model(self) -> nn.Module:
        blocks = [self.Block(self.width) for _ in range(3)]
        return nn.Sequential(*blocks, nn.Linear(self.width, 5)).to("cpu")


# -- torch_geometric ------------------------------------------------------------------------------


class Pyg(Mlp):
    """Graphs of 6 nodes and 14 edges; some edges are loops, which layers take out."""

    def data(self) -> Any:
        from torch_geometric.data import Data

        sources = torch.arange(14) % 6
        targets = (torch.arange(14) * 5 + 1) % 6
        return Data(
            x=torch.zeros(6, self.width),
            edge_index=torch.stack([sources, targets]),
            y=torch.zeros(1, dtype=torch.int64),
        )

    def batch(self, batch: int, size: int = 0) -> Any:
        from torch_geometric.data import Batch

        return Batch.from_data_list([self.data() for _ in range(batch)])


class Gcn(Pyg):
    def build_model(self) -> nn.Module:
        from torch_geometric.nn import GCNConv

        first, second = GCNConv(self.width, self.width), GCNConv(self.width, self.width)
        return nn.ModuleList([first, second, nn.Linear(self.width, 5)])

    def loss(self, model: Any, batch: Any) -> Any:
        from torch_geometric.nn import global_mean_pool

        x = model[0](batch.x, batch.edge_index).relu()
        x = model[1](x, batch.edge_index).relu()
        pooled = global_mean_pool(x, batch.batch)
        return functional.cross_entropy(model[2](pooled), batch.y)


class Gat(Gcn):
    def build_model(self) -> nn.Module:
        from torch_geometric.nn import GATConv

        first = GATConv(self.width, self.width // 4, heads=4, dropout=0.1)
        second = GATConv(self.width, self.width, heads=1)
        return nn.ModuleList([first, second, nn.Linear(self.width, 5)])


class Gin(Gcn):
    """With normalisation, another pooling, and edges that are dropped."""

    def build_model(self) -> nn.Module:
        from torch_geometric.nn import GIN, BatchNorm

        gin = GIN(self.width, self.width, num_layers=2, norm=BatchNorm(self.width))
        return nn.ModuleList([gin, nn.Linear(self.width, 5)])

    def loss(self, model: Any, batch: Any) -> Any:
        from torch_geometric.nn import global_max_pool

        x = model[0](batch.x, batch.edge_index)
        return functional.cross_entropy(model[1](global_max_pool(x, batch.batch)), batch.y)
