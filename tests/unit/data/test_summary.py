"""What sizes say: counts that do not depend on how they come, bins that hold everything, stages
that a spec accepts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.boundaries import waste_of
from tasuki.data.proposal import MOST_STAGES, Slice, propose
from tasuki.data.summary import NUM_LARGEST, Tally, describe, histogram, padding, spread
from tasuki.spec.load import load_spec

MIX = {512: 1200, 1024: 900, 1536: 480, 2048: 144, 3072: 88, 4096: 30}


def tally_of(counts):
    sizes = np.repeat(np.array(list(counts), dtype=np.int64), list(counts.values()))
    return Tally().with_block(sizes, sizes * 2, file="a.h5")


one = st.tuples(st.sampled_from([*range(-1, 20), 2**40]), st.integers(0, 2**33))
samples = st.lists(one, max_size=5) | st.lists(one, min_size=20, max_size=60)


@settings(max_examples=40)
@given(samples=samples, block=st.integers(1, 70))
def test_counts_bytes_and_the_largest_do_not_depend_on_the_blocks_they_come_in(samples, block):
    tally = Tally()
    for first in range(0, len(samples), block):
        piece = np.array(samples[first : first + block], dtype=np.int64)
        tally = tally.with_block(piece[:, 0], piece[:, 1], file="f", first=first)
    usable = [(size, num_bytes, i) for i, (size, num_bytes) in enumerate(samples) if size >= 1]
    sizes = sorted({size for size, _, _ in usable})
    assert tally.sizes.tolist() == sizes
    assert tally.samples.tolist() == [sum(s == size for s, _, _ in usable) for size in sizes]
    assert tally.bytes.tolist() == [sum(b for s, b, _ in usable if s == size) for size in sizes]
    ranked = sorted(usable, key=lambda one: (-one[0], -one[1], one[2]))[:NUM_LARGEST]
    assert [(one.size, one.bytes, one.index) for one in tally.largest] == ranked
    assert tally.num_left_out == len(samples) - len(usable)
    bad = [i for i, (size, _) in enumerate(samples) if size < 1]
    assert [one.index for one in tally.left_out] == bad[:5]


def test_files_add_up_and_the_earlier_of_equals_stays():
    one = Tally().with_block(np.array([5, 7]), np.array([10, 10]), file="a", first=0)
    other = Tally().with_block(np.array([7, 9, 0]), np.array([10, 3, 1]), file="b", first=4)
    both = one.plus(other)
    assert dict(zip(both.sizes.tolist(), both.samples.tolist(), strict=True)) == {5: 1, 7: 2, 9: 1}
    named = [(sample.file, sample.index, sample.size) for sample in both.largest]
    assert named == [("b", 5, 9), ("a", 1, 7), ("b", 4, 7), ("a", 0, 5)]
    assert (both.num_left_out, both.left_out[0].index) == (1, 6)


def test_padding_is_the_share_that_is_not_data():
    found = padding(tally_of(MIX))
    data = sum(size * n for size, n in MIX.items())
    assert found["largest"] == pytest.approx(1 - data / (4096 * sum(MIX.values())))
    assert found["exact"] == 0
    auto = found["auto"]
    assert set(auto["uppers"]) <= set(MIX) and auto["uppers"][-1] == 4096
    assert auto["buckets"] == len(auto["uppers"])
    expected = waste_of(list(MIX), list(MIX.values()), auto["uppers"])
    assert auto["waste"] == pytest.approx(expected) and auto["waste"] <= 0.05


def test_a_description_says_spread_and_evenness_in_plain_numbers():
    told = json.loads(json.dumps(describe(tally_of(MIX))))
    assert told["buckets"][0] == {"size": 512, "samples": 1200, "bytes": 1200 * 1024}
    assert told["largest"][0] == {"file": "a.h5", "index": 2812, "size": 4096, "bytes": 8192}
    bins = histogram(tally_of(dict.fromkeys(range(1, 301), 3)))
    assert [one["high"] for one in bins] == [*range(20, 300, 20), 300]
    assert [one["samples"] for one in bins] == [19 * 3 + 3] * 15
    found = spread(tally_of(MIX))
    assert (found["median"], found["p90"]) == (1024, 1536)
    assert (found["smallest"], found["largest"], found["sizes"]) == (512, 4096, 6)
    even, uneven, alone = ({3: n, 5: 7, 9: 7} if n else {3: 7} for n in (7, 200, 0))
    assert spread(tally_of(even))["evenness"] == pytest.approx(1)
    assert 0 < spread(tally_of(uneven))["evenness"] < 0.5
    assert spread(tally_of(alone))["evenness"] == 1


def stages_in(folder, yaml):
    """A proposal as a spec reads it."""
    (folder / "tasuki.yaml").write_text("recipe: r:R\n" + yaml)
    spec = load_spec(str(folder / "tasuki.yaml"), environ={})
    assert spec.warnings == ()
    [experiment] = spec.experiments
    return [
        (stage.name, stage.data, stage.size and stage.size.label(), stage.buckets.label())
        for stage in experiment.stages
    ]


def slice_of(data, path, sizes):
    return Slice(data=data, path=path, sizes=sorted(sizes))


def test_few_sizes_give_a_stage_per_size_and_file_small_ones_first(tmp_path):
    one = slice_of("data/small.h5", "/p/data/small.h5", MIX)
    found = propose([one], one, [512, 4096])
    assert stages_in(tmp_path, found["yaml"]) == [
        (f"small_{size}", "data/small.h5", str(size), "exact") for size in MIX
    ]
    slices = [slice_of(f"{n}.h5", f"/p/{n}.h5", [8, 16]) for n in ("a", "b")]
    found = propose(slices, slice_of(["a.h5", "b.h5"], "/p", [8, 16]), [16])
    names = [stage[:2] for stage in stages_in(tmp_path, found["yaml"])]
    assert names == [("a_8", "a.h5"), ("b_8", "b.h5"), ("a_16", "a.h5"), ("b_16", "b.h5")]


def test_many_files_share_their_stages(tmp_path):
    files = [f"s{i}.h5" for i in range(MOST_STAGES)]
    slices = [slice_of(name, f"/p/shards/{name}", [8, 16]) for name in files]
    found = propose(slices, slice_of(files, "/p/shards", [8, 16]), [16])
    assert stages_in(tmp_path, found["yaml"]) == [
        ("shards_8", files, "8", "exact"),
        ("shards_16", files, "16", "exact"),
    ]


def test_many_sizes_give_a_stage_per_range_and_no_size_is_lost(tmp_path):
    sizes = [*range(16, 90), 200]
    one = slice_of("z.h5", "/p/z.h5", sizes)
    found = propose([one], one, [20, 64, 150, 200])
    stages = stages_in(tmp_path, found["yaml"])
    assert [stage[2] for stage in stages] == ["16..20", "21..64", "65..150", "151..200"]
    assert [stage[0] for stage in stages] == ["z_20", "z_64", "z_150", "z_200"]
    assert {tuple(stage[3]) for stage in stages} == {(20, 64, 150, 200)}
    # A range that only other splits have makes no stage.
    one = slice_of("d", "/p/d/train.h5", range(1, 80))
    stages = stages_in(tmp_path, propose([one], one, [40, 79, 500])["yaml"])
    assert [stage[2] for stage in stages] == ["1..40", "41..79"]


@pytest.mark.parametrize("data", ["a b/c.h5", "no", "1e3", 'q"u{o}te.h5', "*.h5", "é: #.h5", "512"])
def test_a_path_means_the_same_in_the_proposal_whatever_it_looks_like(tmp_path, data):
    one = slice_of(data, "/p/x.h5", [8])
    assert stages_in(tmp_path, propose([one], one, [8])["yaml"]) == [("x_8", data, "8", "exact")]
