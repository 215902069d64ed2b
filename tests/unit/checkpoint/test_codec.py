"""What goes into a checkpoint comes out, exactly; what cannot is refused with its place."""

from __future__ import annotations

import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import save as save_safetensors
from tests.unit.checkpoint.commits import raw, same

from tasuki.checkpoint.blobs import DTYPES
from tasuki.checkpoint.codec import decode, encode
from tasuki.errors import StateNotStorable


def round_trip(state):
    """Through real JSON text and real safetensors bytes' rules."""
    encoded = encode(state)
    save_safetensors(encoded.tensors)
    tree = json.loads(json.dumps(encoded.tree, allow_nan=False, ensure_ascii=False).encode())
    return decode(tree, encoded.tensors)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(st.characters(codec=None, exclude_categories=()))
)
keys = scalars | st.tuples(scalars, scalars)
arrays = hnp.arrays(
    st.sampled_from(["<f4", ">f8", "<i8", ">u2", "|b1", "<c16", "<f2", "|u1"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = scalars | st.binary() | arrays
trees = st.recursive(
    leaves,
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(keys, children, max_size=4)
        | st.dictionaries(st.text(), children, max_size=4)
        | st.dictionaries(keys, children, max_size=3).map(OrderedDict)
        | st.dictionaries(st.text(), children, max_size=3).map(lambda d: defaultdict(list, d))
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_every_tree_of_known_values_comes_back_exactly(state):
    assert same(round_trip(state), state)


@st.composite
def views(draw):
    """A view of some base: sliced, permuted, strided, expanded."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex128]))
    tensor = torch.arange(math.prod(sizes)).reshape(sizes).to(dtype)
    tensor = tensor.permute(draw(st.permutations(range(len(sizes)))))
    tensor = tensor[draw(st.integers(0, tensor.shape[0] - 1)) :: draw(st.integers(1, 2))]
    return tensor.unsqueeze(0).expand(3, *tensor.shape) if draw(st.booleans()) else tensor


@settings(max_examples=50, deadline=None)
@given(views())
def test_every_view_comes_back_with_its_stride(tensor):
    assert same(round_trip({"t": tensor}), {"t": tensor})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 12), st.integers(1, 3)), max_size=6))
def test_views_that_overlap_still_overlap_afterwards(cuts):
    base = torch.arange(64.0)
    state = [base[start : start + length * step : step] for start, length, step in cuts]
    back = round_trip(state)
    assert same(back, state)
    for tensors in (state, back):
        for number, tensor in enumerate(tensors):
            tensor.fill_(-float(number))
    assert same(back, state)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_survives_bit_by_bit(name):
    tensor = (torch.arange(192) * 37 % 256).byte().view(4, 3, 16).view(DTYPES[name])
    if name == "bool":
        tensor = torch.tensor([[True, False], [False, False]])
    for case in (tensor, tensor[1], tensor[:0], tensor.transpose(0, 1)):
        back = round_trip([case])[0]
        assert (back.dtype, back.shape, back.stride()) == (case.dtype, case.shape, case.stride())
        assert raw(back) == raw(case)


def test_tied_weights_are_stored_once_and_come_back_tied():
    model = torch.nn.Module()
    model.encoder = torch.nn.Linear(8, 8, bias=False)
    model.decoder = torch.nn.Linear(8, 8, bias=False)
    model.decoder.weight = model.encoder.weight
    encoded = encode({"model": model.state_dict()})
    assert list(encoded.tensors) == ["model.encoder.weight"]
    back: Any = decode(encoded.tree, encoded.tensors)
    back["model"]["encoder.weight"].zero_()
    assert not back["model"]["decoder.weight"].any()


def test_a_slice_of_a_giant_base_does_not_store_the_base():
    base = torch.zeros(1_000_000)
    encoded = encode({"a": base[10:13], "b": base[900_000:900_005], "c": base[:1].expand(99)})
    assert {name: len(blob) for name, blob in encoded.tensors.items()} == {"a": 3, "b": 5, "c": 1}


def test_names_that_clash_or_cannot_be_written_get_others():
    state = {
        "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "__metadata__": torch.ones(2),
        "\ud800\x00": torch.ones(3), "": torch.ones(4), "x" * 999: torch.ones(5),
    }  # fmt: skip
    assert same(round_trip(state), state)
    assert list(encode(state).tensors)[:2] == ["a.b", "a.b~2"]


def test_special_values_keep_type_and_bits():
    shared, frozen = [1, 2], np.arange(3)
    frozen.flags.writeable = False
    (odd_nan,) = struct.unpack(">d", bytes.fromhex("fff8000000abcdef"))
    state = {
        "floats": [math.inf, -math.inf, odd_nan, -0.0, 5e-324, 1e308, 0.1],
        "ints": [2**63, -(2**63) - 1, 2**63 - 1, 10**5000, -(10**5000)],
        "text": ["\ud800", "\ud800\udc00", "\U00010000", "\0", "é"],
        "bytes": b"\x00\xff",
        "tuple": (1, (2, [3])),
        "keys": {1: "a", "1": "b", None: 0, (1, "x"): 2, 2.5: 3, "$t": 4, math.inf: 5},
        "bools": {True: 1, False: 0},
        "dollar": {"$tensor": 1},
        "counter": Counter({"a": 3, 7: 2}),
        "ordered": OrderedDict([(2, "b"), (1, "a")]),
        "factories": [defaultdict(f, {1: 2}) for f in (list, dict, int, float, str, None)],
        "views": [
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            torch.randn(1, 3, 1, 1).to(memory_format=torch.channels_last),
            torch.randn(3, dtype=torch.complex64).conj(),
            torch.tensor(2.5),
            torch.zeros(0, 3),
        ],
        "shared twice": [shared, shared],
        "not writable": [np.broadcast_to(np.float32(2.0), (3, 2)), frozen],
        "module": torch.nn.BatchNorm1d(3).state_dict(),
        "torch": [torch.Size([2, 3]), torch.float8_e5m2, torch.device("cuda:3"), torch.qint8],
        "numpy": [np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan")],
        "arrays": [np.asfortranarray(np.ones((2, 3))), np.array(5), np.zeros((0, 2))],
        "reversed": np.arange(9)[::-2],
    }  # fmt: skip
    back = round_trip(state)
    assert same(back, state)
    assert [d.default_factory for d in back["factories"]] == [list, dict, int, float, str, None]
    assert back["arrays"][0].flags.f_contiguous
    back["arrays"][0][0, 0] = 7  # writable, as it was
    assert back["module"]._metadata == state["module"]._metadata
    [parameter] = round_trip([torch.nn.Parameter(torch.ones(2))])
    assert type(parameter) is torch.Tensor and not parameter.requires_grad


class Color(enum.IntEnum):
    RED = 1


class Sub(torch.Tensor):
    pass


Point = namedtuple("Point", "x y")
loop: list[object] = []
loop.append(loop)
freed = torch.ones(4)
freed.untyped_storage().resize_(0)
ordered = OrderedDict(a=1)
ordered.hidden = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: 0, "function"),
        (Color.RED, "Color"),
        (Point(1, 2), "Point"),
        ({1, 2}, "set"),
        (object(), "object"),
        (torch.Generator(), "Generator"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta"),
        (torch.ones(2).as_subclass(Sub), "Sub"),
        (np.array(["text"]), "dtype"),
        (np.array([object()]), "dtype"),
        (np.zeros(2, dtype=[("a", "f4")]), "dtype"),
        (defaultdict(set), "factory"),
        (loop, "contains itself"),
        (freed, "freed"),
        (ordered, "hidden"),
        ({np.int64(1): 2}, "dict key"),
        ({((1,),): 2}, "dict key"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_place_and_what_to_do(value, words):
    with pytest.raises(StateNotStorable, match=words) as caught:
        encode({"optimizer": {"state": {3: {"hook": value}}}})
    assert "optimizer.state[3]['hook']" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {1: x}, OrderedDict])
def test_depth_is_kept_up_to_200_and_refused_beyond(wrap):
    state: Any = [] if wrap is not OrderedDict else OrderedDict()
    step = wrap if wrap is not OrderedDict else lambda x: OrderedDict({1: x})
    for _ in range(199):
        state = step(state)
    assert same(round_trip(state), state)
    with pytest.raises(StateNotStorable, match="deep"):
        encode(step(state))


def test_a_numpy_array_and_a_tensor_of_the_same_memory_stay_together():
    array = np.arange(6.0)
    encoded = encode({"a": array, "t": torch.from_numpy(array), "again": array})
    assert len(encoded.tensors) == 1
    back: Any = decode(encoded.tree, encoded.tensors)
    back["t"].zero_()
    assert not back["a"].any()
    assert not back["again"].any()
