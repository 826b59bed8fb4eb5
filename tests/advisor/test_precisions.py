"""Precision recipes that a question names, and slips of them."""

from __future__ import annotations

import pytest

from advisor.precisions import choose_precisions
from hardware_db import resolve


@pytest.mark.parametrize(
    ("gpu", "asked", "told"),
    [
        ("h100", "nvfp", "H100 SXM5 80GB lacks what nvfp4 needs, or has no peak of it on file"),
        ("h100", "mxfp", "H100 SXM5 80GB lacks what mxfp8 needs"),
        ("h100", "fp4", "H100 SXM5 80GB has no FP4"),
        ("mi355x", "fp4", "MI355X lacks what nvfp4 needs"),
        ("b200", "nvfp", "Did you mean nvfp4?"),
        ("h100", "fp88", "Did you mean fp8-delayed, fp8-cs, fp8-sc?"),
        ("h100", "fp8", "Did you mean fp8-delayed, fp8-cs, fp8-sc?"),
        ("h100", "bf", "Did you mean bf16?"),
    ],
)
def test_the_recipe_nearest_to_a_slip_is_suggested_where_the_gpu_has_it(gpu, asked, told):
    """nvfp on an H100 was answered with "Did you mean nvfp4?", which it cannot compute."""
    cluster = resolve(gpu, None)[0]
    with pytest.raises(ValueError) as error:
        choose_precisions(asked, cluster)
    assert told in str(error.value)
    if "Did you mean" not in told:
        way_out = str(error.value).partition("Try --precision ")[2].rstrip(".")
        assert choose_precisions(way_out, cluster)[0] == (way_out,)
        assert "mean" not in str(error.value)
