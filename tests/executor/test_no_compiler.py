"""Where torch's compiler is off a rank starts without it, and whoever needs it still gets it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from executor.run import missing_software

pytestmark = pytest.mark.skipif(missing_software() is not None, reason="needs torch and megatron-core")

# An optimizer's step and a compiled function, which load the compiler, then something that needs it.
CODE = """
import os, sys, torch
from executor.workers import no_compiler
plain = torch.compile
def loaded():
    return "torch._dynamo.convert_frame" in sys.modules
no_compiler.install()
if os.environ["TORCHDYNAMO_DISABLE"] == "0":
    assert torch.compile is plain and "torch._dynamo" not in sys.modules
    sys.exit()
def twice(x):
    return 2 * x
assert torch.compile(twice) is twice is torch.compile(mode="reduce-overhead")(twice)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
twice(weight).sum().backward()
optimizer.step()
optimizer.zero_grad()
torch.testing.assert_close(weight.detach(), torch.full((3,), 0.9))
assert not loaded()
import torch._dynamo.utils
assert loaded() and torch._dynamo.utils.counters is not None
assert type(torch._dynamo).__name__ == "module" and callable(torch._dynamo.reset)
"""


@pytest.mark.parametrize("off", ["1", "0"])
def test_the_compiler_is_loaded_when_it_is_needed(off):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        capture_output=True,
        text=True,
        env=os.environ | {"TORCHDYNAMO_DISABLE": off},
    )
    assert done.returncode == 0, done.stderr
