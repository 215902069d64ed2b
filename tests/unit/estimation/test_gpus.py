"""The table of cards: any usual spelling finds one, and what is in it makes sense."""

from __future__ import annotations

import pytest

from tasuki.errors import UsageError
from tasuki.estimation.gpus import PRECISIONS, TABLE, find_gpu
from tasuki.spec.site import SiteGpu

CARDS = [gpu for gpu in TABLE.values() if not gpu.is_cpu]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("h100_sxm", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("3090", "rtx-3090"),
        ("a6000", "rtx-a6000"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("L40S", "l40s"),
        ("NVIDIA A10G", "a10g"),
    ],
)
def test_a_card_is_found_by_any_usual_spelling(spelling, name):
    for written in (spelling, name):
        found = find_gpu(written)
        assert (found.gpu.name, found.note) == (name, "")


@pytest.mark.parametrize(
    ("spelling", "name", "others"),
    [
        ("a100", "a100-40gb", "a100-pcie-80gb, a100-sxm-80gb"),
        ("a100 sxm", "a100-40gb", "a100-sxm-80gb"),
        ("NVIDIA H100", "h100-pcie", "h100-sxm, h100-nvl"),
    ],
)
def test_a_name_that_fits_several_means_the_smallest_and_this_is_said(spelling, name, others):
    found = find_gpu(spelling)
    assert found.gpu.name == name
    assert found.note == f"`{spelling}` is taken as {name}; it may also be {others}"


@pytest.mark.parametrize(
    ("spelling", "near"),
    [
        ("RTX 3080 Ti", "rtx-3080"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "rtx-3080"),
        ("Quadro RTX 6000", "rtx-6000-ada"),
        ("a100_3g.20gb", "a100-40gb"),
        ("h10", "did you mean h100-pcie, h100-sxm, h100-nvl"),
        ("mi300x", "known: p100"),
    ],
)
def test_another_card_is_refused_with_the_nearest_names_and_what_to_write(spelling, near):
    with pytest.raises(UsageError, match="is not known") as caught:
        find_gpu(spelling)
    assert near in caught.value.hint and "site file" in caught.value.hint


def test_every_card_makes_sense():
    for gpu in CARDS:
        assert 0.9 < gpu.memory_bytes / gpu.advertised_bytes < 1.0, "the driver keeps a few percent"
        assert 2.5e11 < gpu.bandwidth < 1e13
        assert set(gpu.tflops) == set(PRECISIONS)
        fp32, tf32, fp16, bf16 = (gpu.tflops[name] for name in PRECISIONS)
        assert fp32 <= (tf32 or fp32) < fp16, "the shorter the quicker"
        assert bf16 in (None, fp16)
        assert (tf32 is None) == (bf16 is None), "both came with the same generation"
        # A value with a digit too many or too few, or one with sparsity, falls out of line.
        assert 20 < fp16 * 1e12 / gpu.bandwidth < 430, gpu.name


def test_variants_of_a_card_differ_as_they_are_sold():
    def figures(name):
        return TABLE[name].memory_bytes, TABLE[name].bandwidth

    assert figures("a100-40gb") < figures("a100-pcie-80gb") < figures("a100-sxm-80gb")
    assert figures("h100-pcie") < figures("h100-sxm") < figures("h100-nvl") < figures("h200")
    assert figures("v100-16gb") < figures("v100-32gb")


def test_a_card_without_units_for_a_precision_computes_it_in_fp32():
    assert TABLE["v100-16gb"].flops("bf16") == (14e12, "fp32")
    assert TABLE["v100-16gb"].flops("fp16") == (112e12, "fp16")
    assert TABLE["a100-40gb"].flops("tf32") == (156e12, "tf32")
    assert TABLE["cpu"].flops("bf16") == (0.05e12, "fp32")


def test_a_site_file_corrects_a_card_value_by_value():
    site = {"a100-40gb": SiteGpu(gres="gpu:a100", memory_bytes=39 * 2**30, tflops={"bf16": 280.0})}
    gpu = find_gpu("a100-40gb", site=site).gpu
    assert (gpu.memory_bytes, gpu.bandwidth) == (39 * 2**30, 1555e9)
    assert (gpu.tflops["bf16"], gpu.tflops["fp32"]) == (280.0, 19.5)
    assert gpu.source == "site file over data sheet"
    only_slurm = {"a100-40gb": SiteGpu(gres="gpu:a100")}
    assert find_gpu("a100-40gb", site=only_slurm).gpu == TABLE["a100-40gb"]
    assert find_gpu("a100", site={"a100": SiteGpu(gres="gpu:a100")}).note
    told = find_gpu("a100", site={"a100": SiteGpu(memory_bytes=80 * 2**30)})
    assert (told.note, told.gpu.memory_bytes) == ("", 80 * 2**30)


def test_a_site_file_adds_cards_that_the_table_does_not_have():
    site = {"mi300x": SiteGpu(memory_bytes=192 * 2**30, bandwidth=5300 * 10**9)}
    gpu = find_gpu("mi300x", site=site).gpu
    assert (gpu.name, gpu.bandwidth, gpu.source) == ("mi300x", 5300e9, "site file")
    assert gpu.flops("bf16") is None, "nobody said how quick it computes"


def test_a_card_of_the_site_without_its_memory_says_what_is_missing():
    with pytest.raises(UsageError, match="how much memory a `big` has is not known") as caught:
        find_gpu("big", site={"big": SiteGpu(gres="gpu:big")})
    assert "big: {memory: 40GB" in caught.value.hint
