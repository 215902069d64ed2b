"""Numbers of a recipe's own in a line of metrics."""

from __future__ import annotations

import pytest
import torch

from tasuki.errors import RecipeError
from tasuki.train.rows import numbers


def test_numbers_and_tensors_of_one_element_are_logged():
    assert numbers({"acc": torch.tensor(0.5), "n": 3}) == {"acc": 0.5, "n": 3.0}


@pytest.mark.parametrize("value", ["x", torch.ones(3), None])
def test_what_is_no_number_is_named(value):
    with pytest.raises(RecipeError, match="`acc` to be logged, which is no number"):
        numbers({"acc": value})


@pytest.mark.parametrize("name", ["loss", "t", "step", "overflows"])
def test_a_name_that_a_line_has_already_is_refused(name):
    with pytest.raises(RecipeError, match=f"called `{name}`"):
        numbers({name: 1.0})
