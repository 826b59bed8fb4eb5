"""Whether a log and a prediction are of one run: plan, batch, parameters, and the count of FLOP."""

from __future__ import annotations

from advisor.measured.run import Measured

COLD = "the only line holds the start of the run too"
# Beyond this ratio the steps of a trace and of a log are not those of one run. [1]
OTHER_STEP = 1.5
UNMARKED = "the trace marks no steps, so its whole window is taken as one"
# Knobs whose difference makes another run of it, told in full; those whose times do not compare at all.
APART = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch", "precision", "recompute")
TELLING = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "micro_batch",
    "precision",
    "sequence_parallel",
    "recompute",
    "recompute_num_layers",
    "zero_stage",
    "fsdp",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
    "overlap_p2p",
    "cuda_graph",
    "moe_dispatcher",
    "cp_comm_type",
)


def _warn_of_another_plan(found: Measured) -> None:
    """What the log's own dump says otherwise than the plan that it is compared with."""
    from costmodel.plan import Plan
    from executor.export.bundle import target_module
    from executor.logs.plan_text import plan_text

    assert found.log is not None
    target, text = plan_text(found.log)
    if not target or found.case is None:
        return
    try:
        reading = target_module(target).read(text)
        told = Plan(**reading.knobs)
    except ValueError:
        return
    plan = found.case.plan
    length = reading.workload.get("seq_len")
    if length and length != found.case.workload.seq_len:
        found.another.append(f"{length:,} tokens a sequence (plan: {found.case.workload.seq_len:,})")
    skipped = set() if found.case.model.moe else {"moe_dispatcher", "ep", "etp"}
    # Configurations without ranks name no dp: the number of ranks tells, where the log has it.
    skipped |= {"dp"} - set(reading.knobs)
    differing = {
        name: f"{name} {getattr(told, name)} (plan: {getattr(plan, name)})"
        for name in TELLING
        if name not in skipped and getattr(told, name) != getattr(plan, name)
    }
    if differing:
        found.another += [text for name, text in differing.items() if name in APART]
        found.warnings.append(f"the log shows another plan: {', '.join(differing.values())}")


def _tell_parameters(found: Measured) -> None:
    """Parameters of every rank that told, beside the plan's: equal to the digit, or another model."""
    from costmodel.amounts import rank_amounts

    assert found.log is not None
    case = found.case
    if case is None or not found.log.parameters:
        return
    try:
        stages = {stage for _, stage in found.log.parameters}
        ours = {
            stage: sum(rank_amounts(case.plan, case.workload, case.model, stage).parameters.values())
            for stage in stages
        }
    except ValueError:
        return  # more stages than the plan has: the warning about sizes tells
    wrong = {rank: count for rank, count in found.log.parameters.items() if count != ours[rank[1]]}
    if not wrong:
        number = len(found.log.parameters)
        found.notes.append(
            f"Parameters of {number} rank{'s' if number > 1 else ''} equal the plan's to the digit."
        )
        return
    (tensor, stage), count = next(iter(wrong.items()))
    found.another.append(f"{count:,} parameters on a rank (plan: {ours[stage]:,.0f})")
    found.warnings.append(
        f"the rank (tensor {tensor}, stage {stage}) holds {count:,} parameters in the log, {ours[stage]:,.0f} by the "
        "plan: another model, vocabulary or layout"
    )


def warn(found: Measured) -> None:
    """What makes measured and predicted two different things."""
    log, predicted = found.log, found.predicted
    if found.unmarked:
        found.warnings.append(f"{UNMARKED}; torch.profiler marks them by prof.step()")
    if log is None or found.kept is None:
        return
    _warn_of_another_trace(found)
    batches = {each.global_batch for each in log.iterations[-10:] if each.global_batch}
    if predicted and batches and batches != {predicted["workload"]["global_batch"]}:
        told = ", ".join(f"{batch:,}" for batch in sorted(batches))
        found.warnings.append(
            f"the log trains {told} sequences a step, the plan {predicted['workload']['global_batch']:,}: "
            "the prediction is of another step"
        )
        found.another.append(f"{told} sequences a step (plan: {predicted['workload']['global_batch']:,})")
    if predicted and log.world and log.world != predicted["gpus"]:
        found.another.append(f"{log.world:,} ranks (plan: {predicted['gpus']:,})")
        found.warnings.append(f"the log is of {log.world:,} ranks, the plan of {predicted['gpus']:,} GPUs")
    _warn_of_another_plan(found)
    _tell_parameters(found)
    if log.truncated:
        found.warnings.append("the log ends inside a dump: it was cut")
    number = found.kept.num_lines
    if number < 5:
        found.warnings.append(f"only {number} steady line{'s' * (number > 1)}: too few for a spread")
    if log.cold:
        found.warnings.append(f"{COLD}: a steady step takes less")
    if log.restarts:
        steps = ", ".join(str(step) for step in log.restarts[:5])
        found.warnings.append(
            f"the run was started again at step {steps}; of a step that ran twice the last attempt counts"
        )
    _warn_of_counting(found)


def _warn_of_another_trace(found: Measured) -> None:
    """A trace whose step is not the log's: profiling slows a step, but hardly by half."""
    from advisor.render import seconds

    for each in found.profiles:
        if not 1 / OTHER_STEP < each.step_seconds / found.step < OTHER_STEP:
            found.warnings.append(
                f"a step of {each.path} takes {seconds(each.step_seconds)}, one of the log {seconds(found.step)}: "
                "likely not the same run"
            )


def _warn_of_counting(found: Measured) -> None:
    """The framework's FLOP count beside ours: a difference is another convention, or another model."""
    from executor.logs.summary import median_of

    assert found.log is not None
    assert found.kept is not None
    told = median_of(found.log, "tflops", found.kept)
    if not told or not found.predicted:
        return
    ours = found.predicted["model_tflops_per_gpu"] * found.predicted["step_time_s"]
    ratio = told * found.kept.seconds / ours
    if abs(ratio - 1) > 0.03 + 0.05 / told:  # half of the last digit that Megatron prints
        found.warnings.append(
            f"the log counts {ratio:.2f} times the FLOP of a step that we count: another convention (attention "
            "without the causal half, padded vocabulary), or another model or batch than the plan's"
        )
