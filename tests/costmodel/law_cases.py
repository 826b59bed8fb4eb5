"""Plans of dense models that laws are tried on: drawn ones, and the clusters and models they run on."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import hardware_db
from costmodel.model_registry import load_model
from costmodel.plan import Plan
from costmodel.workload import Workload

B200 = hardware_db.resolve("b200", None)[0]
H100 = hardware_db.resolve("h100", None)[0]
LLAMA = load_model("llama3-70b")
GENTLE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Workload]:
    tp, pp, cp, dp = (
        draw(powers),
        draw(st.sampled_from([1, 2, 4, 8])),
        draw(st.sampled_from([1, 2, 4])),
        draw(powers),
    )
    vpp = draw(st.sampled_from([1, 2, 5])) if pp > 1 else 1
    fsdp = pp == 1 and draw(st.booleans())
    micro_batch = draw(st.sampled_from([1, 2]))
    m = pp * draw(st.integers(1, 8))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    plan = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        vpp=vpp,
        micro_batch=micro_batch,
        fsdp=fsdp,
        zero_stage=draw(st.sampled_from([2, 3])) if fsdp else draw(st.sampled_from([0, 1])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        precision=draw(st.sampled_from(["bf16", "fp8-cs", "mxfp8", "nvfp4"])),
        cp_comm_type=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        recompute=recompute,
        recompute_modules=("mlp",) if recompute == "selective" else (),
        cuda_graph=draw(st.booleans()),
        tp_comm_overlap=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
    )
    return plan, Workload(seq_len=draw(st.sampled_from([2048, 8192])), global_batch=m * micro_batch * dp)
