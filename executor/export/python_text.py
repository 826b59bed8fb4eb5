"""Plain values as Python text: types of torch, enumerations and functions by the fields that hold them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32", "fp8": "torch.uint8"}
DTYPE_FIELDS = ("params_dtype", "pipeline_dtype", "main_params_dtype", "main_grads_dtype")
DTYPE_FIELDS += ("exp_avg_dtype", "exp_avg_sq_dtype")
# activation_func by our word: expression and the import it needs.
ACTIVATIONS = {
    "silu": ("torch.nn.functional.silu", "import torch"),
    "gelu": ("torch.nn.functional.gelu", "import torch"),
    "fast_gelu": ("fast_gelu", "from megatron.core.activations import fast_gelu"),
    "relu": ("torch.nn.functional.relu", "import torch"),
    "quick_gelu": ("quick_gelu", "from megatron.core.fusions.fused_bias_geglu import quick_gelu"),
    "squared_relu": ("squared_relu", "from megatron.core.activations import squared_relu"),
}
ATTENTION = "from megatron.core.transformer.enums import AttnBackend"


def literal(field: str, value: Any, imports: set[str]) -> str:
    """The value of a field as an expression; what it needs is added to the imports."""
    name = field.rsplit(".", 1)[-1]
    if name in DTYPE_FIELDS and value in DTYPES:
        imports.add("import torch")
        return DTYPES[value]
    if name == "activation_func":
        expression, needed = ACTIVATIONS[value]
        imports.add(needed)
        return expression
    if name == "attention_backend" and isinstance(value, str):
        imports.add(ATTENTION)
        return f"AttnBackend.{value}"
    if name == "window_size" and value is not None:
        return repr(tuple(value))
    return repr(value).replace("'", '"') if isinstance(value, str | list) else repr(value)


def plain(expression: str) -> Any:
    """The plain value of a written name such as torch.bfloat16 or AttnBackend.auto; the text itself otherwise."""
    found = {text: word for word, text in DTYPES.items()} | {"torch.float": "fp32", "torch.half": "fp16"}
    found |= {text: word for word, (text, _) in ACTIVATIONS.items()}
    if expression.startswith("AttnBackend."):
        return expression.partition(".")[2]
    return found.get(expression, expression)


def assignment(target: str, value: str, indent: str = "    ") -> str:
    """One statement, its list broken over lines where it is longer than 110 letters."""
    line = f"{indent}{target} = {value}"
    if len(line) <= 110 or not value.startswith("["):
        return line
    body = textwrap.fill(value[1:-1], 100, initial_indent=indent + "    ", subsequent_indent=indent + "    ")
    return f"{indent}{target} = [\n{body},\n{indent}]"


def sorted_imports(imports: set[str]) -> list[str]:
    """Import lines in the usual order: the standard library, then the rest, plain imports first."""
    standard = sorted(
        line for line in imports if line in ("import argparse", "from functools import partial")
    )
    others = sorted(imports - set(standard), key=lambda line: (line.startswith("from"), line))
    return [*standard, *([""] if standard and others else []), *others]


def option(variable: str) -> str:
    """The option of an exported file for a variable of the launch script: --data-path for DATA_PATH."""
    return "--" + variable.lower().replace("_", "-")


def options_of(variables: Iterable[str]) -> list[str]:
    """A function that reads those options."""
    return [
        "def given() -> argparse.Namespace:",
        '    """What the launch script says of data, tokenizer and schedule."""',
        "    parser = argparse.ArgumentParser()",
        *(f'    parser.add_argument("{option(name)}", required=True)' for name in variables),
        "    return parser.parse_args()",
    ]
