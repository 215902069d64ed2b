"""Drawn by hypothesis: pools, and items that fit them, with chains and starts from elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st

from tasuki.planning.packing.values import Item, Pool

EFFORT = 600
"""A search of milliseconds; what it promises does not hang on its length."""


@st.composite
def pools(draw: st.DrawFn, *, most_nodes: int = 3) -> Pool:
    return Pool(
        gpus_per_node=draw(st.sampled_from([1, 2, 3, 4, 8])),
        num_nodes=draw(st.integers(1, most_nodes)),
        cpus_per_node=draw(st.none() | st.integers(4, 10)),
    )


@st.composite
def items_for(draw: st.DrawFn, pool: Pool, *, most: int = 12) -> list[Item]:
    seconds = st.sampled_from([1, 2, 3, 5, 60, 61]) | st.floats(0.001, 500)
    found: list[Item] = []
    for number in range(draw(st.integers(0, most))):
        after = draw(st.lists(st.sampled_from(found), max_size=2)) if found else []
        found.append(
            Item(
                experiment=f"exp{draw(st.integers(0, 3))}",
                stage=f"stage{number}",
                kind=draw(st.sampled_from(["train", "train", "evaluate"])),
                gpus=draw(st.integers(1, pool.gpus_per_node)),
                seconds=draw(seconds),
                cpus=draw(st.integers(0, 4)),
                after=tuple(before.id for before in after),
            )
        )
    return draw(st.permutations(found))


@st.composite
def problems(draw: st.DrawFn, *, most: int = 12, most_nodes: int = 3) -> tuple[list[Item], Pool]:
    pool = draw(pools(most_nodes=most_nodes))
    return draw(items_for(pool, most=most)), pool
