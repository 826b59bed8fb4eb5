"""The fit of step constants: planted constants are recovered, groups that are left out do not count."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)

import fit_cases  # noqa: E402
import fit_priors  # noqa: E402
import fit_solver  # noqa: E402
import fit_step  # noqa: E402
import weigh_priors  # noqa: E402

from advisor.measurements import Row, row_case  # noqa: E402
from costmodel.robust import STEP  # noqa: E402

PLANTED = {"gemm_rate/all-bf16": 0.80, "attention_rate/hopper-cudnn": 0.70, "straggler/all": 0.006}


def rows() -> list[Row]:
    """Llama-like runs with more and less attention, on more and fewer GPUs."""
    return [
        Row(
            {
                "id": f"{model}-{seq_len}-{gpus}", "source": "planted", "container": "nemo:25.02", "task": "pretrain",
                "model": model, "system": "dgx-h100", "gpus": str(gpus), "precision": "bf16", "gbs": str(8 * gpus),
                "mbs": "1", "seq_len": str(seq_len), "tp": "8", "pp": "1", "step_time_s": "1",
            }
        )
        for model in ("llama3-8b", "llama2-13b", "llama3-70b")
        for seq_len in (2048, 8192, 32768)
        for gpus in (8, 64, 512)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def stack():
    """Cases whose measured times are predictions with the planted constants, and speak louder than priors."""
    cases = [row_case(row) for row in rows()]
    found = fit_cases.stack_cases(cases, [10.0] * len(cases))
    found.measured = found.measured * np.exp(found.residuals(list(PLANTED), np.array(list(PLANTED.values()))))
    return found


@pytest.fixture(scope="module")
def whole(stack):
    return fit_solver.fit(stack)


def test_planted_constants_are_recovered(stack, whole):
    """As products: a format's rate and its release's move the same times."""
    found = dict(zip(whole.parameters, whole.values, strict=True))
    constant_of = {symbol: name for name, own in stack.symbols_of.items() for symbol in own}
    assert np.abs(np.expm1(whole.residuals)).max() < 0.01
    for planted, symbols in (
        ("gemm_rate/all-bf16", ("release_scale",)),
        ("attention_rate/hopper-cudnn", ("release_scale",)),
    ):
        on_file = PLANTED[planted] * np.prod([stack.inputs[symbol][0] for symbol in symbols])
        assert found[planted] * np.prod([found[constant_of[symbol]] for symbol in symbols]) == pytest.approx(
            on_file, rel=0.05
        )


def test_derivatives_are_those_of_the_residuals(stack, whole):
    """Constants of one colour are moved together; each keeps its own rows, to the digits of a difference."""
    for index in range(0, len(whole.parameters), 5):
        moved = whole.point.copy()
        moved[index] += STEP
        change = (stack.residuals(whole.parameters, np.exp(moved)) - whole.residuals) / STEP
        assert change == pytest.approx(whole.jacobian[:, index], abs=1e-8)


def test_priors_leave_fewer_free_constants_than_there_are(whole):
    assert len(PLANTED) <= whole.freedom < len(whole.parameters)


def test_constants_of_one_colour_share_no_row(stack, whole):
    for members in fit_solver.colours(stack, whole.parameters):
        masks = [stack.mask(whole.parameters[index]).astype(int) for index in members]
        assert np.sum(masks, axis=0).max() <= 1


def test_leaving_a_group_out_is_a_fit_without_its_rows(stack, whole):
    """Measured times of the group may be anything: the constants come out the same."""
    held = np.array([case.model.name == "llama3-70b" for case in stack.cases])
    first = fit_solver.without(stack, whole, held)
    spoilt = replace(whole, residuals=np.where(held, 5.0, whole.residuals))
    assert fit_solver.without(stack, spoilt, held) == pytest.approx(first)
    errors = fit_solver.left_out(stack, whole, [case.model.name for case in stack.cases])
    assert np.isfinite(errors).all()
    assert np.abs(np.expm1(errors)).mean() < 0.1


def test_near_the_fit_groups_left_out_miss_as_in_whole_refits(stack, whole):
    """Taken as linear around the fit, with the fit's own priors: the same errors where constants stay near."""
    groups = [fit_step.GROUPS["tenth"](case) for case in stack.cases]
    near = fit_solver.left_out(stack, whole, groups, fit_solver.believed(whole.parameters))
    apart = np.abs(near - fit_solver.left_out(stack, whole, groups))
    assert np.median(apart) < 1e-4
    assert apart.mean() < 1e-3
    assert apart.max() < 5e-3


def test_each_variant_of_the_priors_changes_one_belief():
    names = ["gemm_rate", "straggler"]
    found = list(weigh_priors.variants(names))
    assert found[0][1:] == (fit_priors.KINSHIP, {})
    assert len({title for title, *_ in found}) == len(found)
    for _, kinship, widths in found[1:]:
        changed = [value for name, value in asdict(kinship).items() if value != asdict(found[0][1])[name]]
        assert len(changed) + len(widths) == 1
        assert all(value > 0 for value in [*changed, *widths.values()])


def test_priors_far_too_narrow_miss_more(stack, whole):
    """The planted rates are well off their priors: sure of those, the fit misses and runs left out miss."""
    as_they_are = weigh_priors.errors(stack, whole, len(stack.cases), fit_priors.KINSHIP, {})
    narrow = dict.fromkeys(("gemm_rate", "attention_rate", "release_rate"), 0.01)
    sure = weigh_priors.errors(stack, whole, len(stack.cases), fit_priors.KINSHIP, narrow)
    assert set(sure) == {"fit", *fit_step.GROUPS}
    assert all(sure[kind]["mape"] > 2 * as_they_are[kind]["mape"] for kind in ("fit", "tenth"))
