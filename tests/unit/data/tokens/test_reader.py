"""Tokens that were stored are read as they are, by any process, in pieces of any length."""

from __future__ import annotations

import json
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from tests.unit.data.tokens.corpus import make_documents, read_stream, tokenize, write_jsonl
from torch.utils.data import DataLoader, default_collate

import tasuki
from tasuki.data.fetch import Fetcher, Request
from tasuki.data.tokens import TokenDataset
from tasuki.errors import DataError, StoreError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """12,000 tokens or so in chunks of 64, in several shards."""
    path = tmp_path_factory.mktemp("tokens")
    write_jsonl(path / "a.jsonl", make_documents(60))
    tokenize(path / "a.jsonl", output=path / "t", shard_size="1500")
    return path / "t"


@pytest.fixture
def copy(folder, tmp_path):
    target = tmp_path / "t"
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def padded(folder, chunk=64):
    stream = read_stream(folder).astype(np.int64)
    return np.concatenate([stream, np.full(-len(stream) % chunk, 256)])


def test_samples_are_the_stream_in_order_whatever_shard_they_lie_in(folder):
    dataset = TokenDataset(folder)
    assert len(dataset.index.shards) > 3 and tasuki.TokenDataset is TokenDataset
    assert dataset[0].dtype == torch.int64 and dataset[0].shape == (64,)
    whole = torch.cat([dataset[i] for i in range(len(dataset))])
    np.testing.assert_array_equal(whole.numpy(), padded(folder))
    assert torch.equal(dataset[-1], dataset[len(dataset) - 1])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_batch_is_the_stack_of_its_samples(folder):
    dataset = TokenDataset(folder)
    indices = np.random.default_rng(0).permutation(len(dataset))[:20].tolist()
    expected = torch.stack([dataset[i] for i in indices])
    assert torch.equal(dataset.batch(indices), expected)
    assert torch.equal(default_collate(dataset.__getitems__(indices)), expected)
    fetcher = Fetcher(dataset, None)
    assert not fetcher.is_seeded
    assert torch.equal(fetcher(Request(indices, None)), expected)


@pytest.mark.parametrize("context", [1, 16, 64])
def test_a_context_cuts_chunks_and_loses_no_token(folder, context):
    dataset = TokenDataset(folder, context=context)
    whole = torch.cat([dataset[i] for i in range(len(dataset))]).numpy()
    stream = read_stream(folder)
    np.testing.assert_array_equal(whole[: len(stream)], stream)
    assert len(whole) - len(stream) < context, "pieces of padding alone are left out"
    counts = [dataset.num_tokens(i) for i in range(len(dataset))]
    assert sum(counts) == len(stream) and set(counts[:-1]) <= {context}


def test_a_context_that_does_not_divide_the_chunk_names_those_that_do(folder):
    for context in (0, 30, 65):
        with pytest.raises(DataError, match="cannot be cut") as error:
            TokenDataset(folder, context=context)
        assert "8" in error.value.hint or "32" in error.value.hint
        assert "64 (the whole of it)" in error.value.hint
    with pytest.raises(DataError, match=r"a number of tokens, not 32\.0"):
        TokenDataset(folder, context=32.0)


def test_parts_are_disjoint_complete_and_always_the_same(folder, tmp_path):
    shares = (0.5, 0.25, 0.25)
    parts = {name: TokenDataset(folder, name, shares=shares) for name in ("train", "val", "test")}
    chunks = [part._chunks.tolist() for part in parts.values()]
    assert sorted(chunk for some in chunks for chunk in some) == list(
        range(parts["train"].index.chunks)
    )
    (tmp_path / "val").symlink_to(folder)  # a folder per part is taken whole
    assert len(TokenDataset(tmp_path, "val")) == parts["train"].index.chunks
    again = TokenDataset(folder, "val", shares=shares)
    assert again._chunks.tolist() == chunks[1]
    other = TokenDataset(folder, "val", shares=shares, seed=1)
    assert other._chunks.tolist() != chunks[1]
    whole = TokenDataset(folder)
    assert torch.equal(parts["val"][0], whole[chunks[1][0]])


def test_the_split_is_the_one_that_is_documented():
    """By hand, in plain Python: it must never change."""
    from hashlib import blake2b

    from tasuki.data.permutation import mix_word
    from tasuki.data.tokens.parts import chunks_of

    key = blake2b(b"tasuki tokens0").digest()
    first, second = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    numbers = [mix_word(mix_word(chunk ^ first) ^ second) for chunk in range(5000)]
    expected = [i for i, x in enumerate(numbers) if 98 * 2**64 <= 100 * x < 99 * 2**64]
    found = chunks_of("val", num_chunks=5000, shares=(0.98, 0.01, 0.01), seed=0)
    assert found.tolist() == expected and 30 < len(expected) < 70


def test_a_part_without_chunks_and_a_part_of_another_name_are_refused(folder):
    with pytest.raises(DataError, match="none of them falls to `val`") as error:
        TokenDataset(folder, "val", shares=(1, 0, 0))
    assert "--chunk" in error.value.hint
    with pytest.raises(DataError, match="no part `valid`"):
        TokenDataset(folder, "valid")
    with pytest.raises(DataError, match="not those of train"):
        TokenDataset(folder, "val", shares=(0.9, 0.2, 0.1))


@pytest.mark.parametrize("change", [-2, 2])
def test_a_shard_of_another_length_is_refused_with_name_and_numbers(copy, change):
    path = copy / "tokens-00001.bin"
    size = path.stat().st_size
    path.write_bytes((path.read_bytes() + b"\0\0")[: size + change])
    word = "shorter" if change < 0 else "longer"
    with pytest.raises(DataError, match=f"tokens-00001.bin` is {word}") as error:
        TokenDataset(copy)
    assert f"{size + change:,} bytes instead of {size:,}" in error.value.message


def test_a_shard_that_shrinks_or_vanishes_while_it_is_read_is_an_error(copy):
    dataset = TokenDataset(copy)
    dataset[0]
    (copy / "tokens-00000.bin").write_bytes(b"")
    with pytest.raises(DataError, match="shorter than"):
        dataset[1]
    (copy / "tokens-00001.bin").unlink()
    with pytest.raises(DataError, match="cannot be opened any more"):
        dataset[dataset._ends[0]]
    with pytest.raises(DataError, match=r"tokens-00001.bin` cannot be read|shorter"):
        TokenDataset(copy)


def test_an_index_that_is_newer_damaged_or_missing_is_refused(copy, tmp_path):
    path = copy / "index.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | {"format": 2}))
    with pytest.raises(StoreError, match="has format 2"):
        TokenDataset(copy)
    outside = [good["shards"][0] | {"name": "../secret"}, *good["shards"][1:]]
    for change in (
        {"dtype": "float32"},
        {"vocab": 70_000},
        {"tokens": 5},
        {"shards": []},
        {"shards": outside},
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(StoreError, match="is damaged"):
            TokenDataset(copy)
    path.unlink()
    with pytest.raises(DataError, match=r"it has no `index\.json`") as error:
        TokenDataset(copy)
    assert "tasuki data tokenize" in error.value.hint
    with pytest.raises(DataError, match="does not exist"):
        TokenDataset(tmp_path / "tokens")


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_and_pickles_read_the_same(folder, context):
    dataset = TokenDataset(folder)
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again.batch([3, 50, 1]), dataset.batch([3, 50, 1]))
    loader = DataLoader(
        dataset, 16, num_workers=1, multiprocessing_context=multiprocessing.get_context(context)
    )
    found = torch.cat(list(loader))
    np.testing.assert_array_equal(found.reshape(-1).numpy(), padded(folder))


def test_more_shards_than_files_may_be_open(folder, monkeypatch):
    monkeypatch.setattr("tasuki.data.tokens.reader._MOST_OPEN", 2)
    dataset = TokenDataset(folder)
    whole = torch.cat([dataset[i] for i in range(len(dataset))])
    np.testing.assert_array_equal(whole.numpy(), padded(folder))
    assert len(dataset._files._open) == 2


def test_a_subclass_with_its_own_samples_or_batches_is_asked_and_seeded(folder):
    class Shifted(TokenDataset):
        def __getitem__(self, index):
            return super().__getitem__(index) + 1

    class Masked(TokenDataset):
        def batch(self, indices):
            batch = super().batch(indices)
            return torch.where(torch.rand(batch.shape) < 0.5, -1, batch)

    fetcher = Fetcher(Shifted(folder), None)
    assert fetcher.is_seeded
    assert torch.equal(fetcher(Request([4], [0])), TokenDataset(folder).batch([4]) + 1)
    fetcher = Fetcher(Masked(folder), None)
    assert fetcher.is_seeded
    request = Request([4, 5], [0, 1])
    assert torch.equal(fetcher(request), fetcher(request))
