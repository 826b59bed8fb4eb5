"""Write the documents that are made from code: docs/cli.md, docs/glossary.md, docs/formulas*.md.

python tools/build_docs.py            write them
python tools/build_docs.py --check    exit 1 when one differs from the code
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
# Characters of a formula's line.
WIDTH = 110
if __name__ == "__main__":  # run as a script: the packages lie beside this folder
    sys.path.insert(0, str(ROOT))

_MADE = "<!-- Made by tools/build_docs.py. Change the code, then run `make fix-docs`. -->\n"


def cli_page() -> str:
    """docs/cli.md: the help of every command."""
    from advisor.cli import COMMANDS, advisor

    parts = [_MADE, "# Commands\n"]
    parts.append(
        "Exit codes: 0 good, 1 a plan that does not hold (it breaks an ERROR rule or does not fit), 2 bad input (one "
        "line on standard error), 130 interrupted. "
        "Every command takes `--json`.\n"
    )
    context = click.Context(advisor, info_name="advisor", **advisor.context_settings)
    for name, summary in COMMANDS.items():
        try:
            command = advisor.get_command(context, name)
        except ModuleNotFoundError:
            continue  # announced, not written yet; a test says so
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name, terminal_width=100)
        parts.append(f"## {name}\n\n{summary}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n")
    return "\n".join(parts)


def glossary_page() -> str:
    """docs/glossary.md: symbols by group, then knobs."""
    from costmodel.symbols import GROUPS, INPUTS

    titles = {
        "plan": "Plan symbols",
        "model": "Model symbols",
        "workload": "Workload symbols",
        "hardware": "Hardware symbols",
        "precision": "Precision symbols",
        "step": "Step constants",
    }
    parts = [_MADE, "# Glossary\n"]
    parts.append(
        "The words of the cost model. FLOP is a count, FLOP/s a rate. MFU counts model FLOPs without recompute, "
        "over the dense peak of the linear layers' format. A bubble is over ideal or over step time, always said. "
        "GB is 1e9 bytes, GiB is 2**30.\n"
    )
    for group in GROUPS:
        rows = [(f"`{x.name}`", _unit(x.unit), x.meaning) for x in INPUTS if x.group == group]
        parts += [f"## {titles[group]}\n", _table(("symbol", "unit", "meaning"), rows)]
    parts.append("Knobs have a [page of their own](knobs.md).\n")
    return "\n".join(parts)


def formulas_page() -> str:
    """docs/formulas.md: every entry of the ledger, under the documented function it comes from."""
    from costmodel.formulas import all_formulas

    parts = [_MADE, "# Formulas\n"]
    parts.append(
        "Every quantity of one training step of a dense decoder, in order of definition: the same entries that "
        "search evaluates and `advisor predict --formulas` prints with numbers. What other families add stands in "
        "[formulas-families.md](formulas-families.md). Symbols stand in the "
        "[glossary](glossary.md); other words are entries defined above.\n"
    )
    return "\n".join(parts + _entries(all_formulas(), set(), "##"))


# What stands in each section of the page of families: title, and what its formulas need.
FAMILIES = {
    "Experts and multi-head latent attention, as DeepSeek-V3": (
        "mla",
        "mlp",
        "experts",
        "shared",
        "q_lora",
        "mtp",
    ),
    "Mamba-2 hybrids, as Nemotron-H": ("attention", "mlp", "mamba"),
    "Gated delta net, as Qwen3-Next": ("attention", "experts", "delta", "shared"),
    "Experts on a latent, as Nemotron-3 Super": ("attention", "experts", "mamba", "latent", "shared"),
    "Sparse latent attention, as GLM-5": ("dsa", "mlp", "experts", "shared", "q_lora", "mtp"),
    "Compressed sparse attention, as DeepSeek-V4": ("csa", "experts", "shared", "mtp"),
    "Windows with heads of their own, as MiMo-V2-Flash": (
        "attention",
        "window_attention",
        "mlp",
        "experts",
        "mtp",
    ),
    "Norms around every block, as Gemma 4": (
        "attention",
        "window_attention",
        "experts",
        "shared",
        "norms",
        "tied_values",
    ),
    "Adapters (task lora)": ("attention", "mlp", "lora"),
    "Offloaded activations": ("attention", "mlp", "offload"),
    "Muon": ("attention", "mlp", "muon"),
    "Encoders": ("attention", "mlp", "encoder"),
}


def families_page() -> str:
    """docs/formulas-families.md: entries that other families have and dense decoders lack."""
    from costmodel.formulas import all_formulas

    parts = [_MADE, "# Formulas of other families\n"]
    parts.append(
        "Entries that stand beside those of [dense decoders](formulas.md), once each. Sums over the blocks of a stage "
        "(step time, stage times, memory) take in these blocks as they take in attention and MLP there.\n"
    )
    told = {entry["name"] for entry in all_formulas()}
    for title, features in FAMILIES.items():
        new = [entry for entry in all_formulas(frozenset(features)) if entry["name"] not in told]
        told |= {entry["name"] for entry in new}
        parts += [f"## {title}\n", *_entries(new, set(), "###")]
    return "\n".join(parts)


def _entries(entries: list[dict[str, str]], told: set[str], mark: str) -> list[str]:
    """Entries as Markdown; the docstring of a formula once."""
    parts = []
    for entry in entries:
        parts.append(f"{mark} {entry['name']}\n")
        parts.append(f"{entry['title']} [{_unit(entry['unit'])}], from `{entry['formula']}`\n")
        parts.append(f"```text\n{_broken(entry['expression'])}\n```\n")
        if entry["doc"] and entry["formula"] not in told:
            told.add(entry["formula"])
            parts.append(f"```text\n{inspect.cleandoc(entry['doc'])}\n```\n")
    return parts


PAGES = {
    "cli.md": cli_page,
    "glossary.md": glossary_page,
    "formulas.md": formulas_page,
    "formulas-families.md": families_page,
}


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headers = tuple(headers)
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _unit(unit: str) -> str:
    return "count" if unit == "1" else unit


def _broken(expression: str) -> str:
    """The expression over several lines, broken at spaces so that a diff shows what changed."""
    lines, line = [], ""
    for word in expression.split(" "):
        if line and len(line) + len(word) + 1 > WIDTH:
            lines.append(line)
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def main(arguments: list[str] | None = None) -> int:
    """0 when the documents are (now) equal to the code, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the documents are")
    options = parser.parse_args(arguments)
    stale = []
    for name, page in PAGES.items():
        path, text = options.folder / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if stale:
        print(f"docs differ from the code: {', '.join(stale)}. Run `make fix-docs`.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
