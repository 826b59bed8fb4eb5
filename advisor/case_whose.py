"""Whose configuration a text is, where it was given as another framework's."""

from __future__ import annotations

import re

# Overrides as both of NVIDIA's frameworks with recipes take them.
_OVERRIDES = r"(?:^|[\s+~])(?:model|train|trainer|ddp|optimizer|optim|data)\.[\w.]+="
# Of a framework whose configurations nothing here reads.
_UNREAD = "automodel"
# What only texts of a framework hold, by the value of --from; a plan file of ours last.
_MARKS = {
    "megatron-bridge": rf"^\s*_target_:\s*megatron\.bridge|^(?:from|import) megatron\.bridge|{_OVERRIDES}",
    "nemo": rf"^\s*_target_:\s*nemo\.|^(?:from|import) nemo\b|{_OVERRIDES}",
    "torchtitan": r"^\[(?:parallelism|activation_checkpoint)\]|^(?:from|import) torchtitan",
    "megatron-lm": r"\bpretrain_(?:gpt|mamba|hybrid)\.py",
    _UNREAD: r"^\s*_target_:\s*nemo_automodel\.",
    "": r"^\[knobs\]",
}


def check_whose(text: str, given: str, target: str) -> None:
    """ValueError in one line where the text is another framework's, or a plan file, and not of `target`.

    given: the file's name, or the text itself.
    """
    found = [name for name, mark in _MARKS.items() if re.search(mark, text, re.MULTILINE)]
    if len(found) != 1 or target in found:
        return
    file = given if given != text else "it"
    if not found[0]:
        raise ValueError(f"{file} is a plan file, no configuration of {target}. Leave --from {target} out.")
    if found[0] == _UNREAD:
        raise ValueError(
            f"{file} is a configuration of NeMo AutoModel, which is not read here. Say its sizes as options: "
            "`advisor check --stack automodel --model M --gpus N --gpu h100`."
        )
    raise ValueError(
        f"{file} is a configuration of {found[0]}, not of {target}. Say --from {found[0]} before it."
    )
