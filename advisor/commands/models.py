"""advisor models: the models known, or one of them in full."""

from __future__ import annotations

import json
from typing import Any

import click

from advisor import render
from advisor.commands import HELP
from costmodel.model_file import to_mapping
from costmodel.model_registry import list_aliases, list_models, load_model
from costmodel.model_spec import ModelSpec
from costmodel.parameter_counts import count_parameters, encoder_parameters

_LONG_TEXTS = ("source", "vocab_source", "params_published_source", "note")


@click.command(name="models", context_settings=HELP)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(name: str | None, as_json: bool) -> None:
    """The models known, with sizes and sources; with NAME, every size and where its parameters are.

    NAME is a name, an alias, a size name such as gpt-h8192-l48-a64 (hidden, layers, heads), a model TOML,
    or a Hugging Face config.json or the folder that holds it.

    \b
    advisor models                 all of them
    advisor models llama3-70b      one, with its parameters by part
    """
    if name is None:
        specs = [load_model(known) for known in list_models()]
        click.echo(
            json.dumps({"models": [summary(spec) for spec in specs]}, indent=2) if as_json else table(specs)
        )
        return
    try:
        spec = load_model(name)
    except ValueError as error:
        # The name is an argument here; the rest of the message holds.
        raise ValueError(str(error).removeprefix("--model ")) from None
    click.echo(json.dumps(details(spec), indent=2) if as_json else page(spec))


def summary(spec: ModelSpec) -> dict[str, Any]:
    """One line of the table as plain values; counts [1]."""
    count = count_parameters(spec) if spec.parameters_known else None
    return {
        "name": spec.name,
        "family": spec.family,
        "num_layers": spec.num_layers,
        "hidden": spec.hidden,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "parameters": count.total if count else None,
        "active_parameters": count.active if count else None,
        "source": spec.source,
    }


def details(spec: ModelSpec) -> dict[str, Any]:
    """Everything known of one model as plain values; counts [1]."""
    count = count_parameters(spec) if spec.parameters_known else None
    breakdown = None
    if count is not None:
        breakdown = {
            "total": count.total,
            "active": count.active,
            "parts": count.parts,
            "per_layer": count.per_layer,
            "multi_token_prediction": count.mtp,
            "encoder": encoder_parameters(spec),
        }
    return {
        "model": to_mapping(spec),
        "parameters": breakdown,
        "layers": spec.layer_counts(),
        "aliases": [alias for alias, target in list_aliases().items() if target == spec.name],
    }


def table(specs: list[ModelSpec]) -> str:
    """All models, a line each."""
    rows = []
    for spec in specs:
        line = summary(spec)
        rows.append(
            [
                spec.name,
                spec.family,
                str(spec.num_layers),
                str(spec.hidden),
                _short(line["parameters"]),
                _short(line["active_parameters"]) if spec.moe is not None else "",
            ]
        )
    headers = ["model", "family", "layers", "hidden", "params", "active"]
    lines = render.table(headers, rows, "llrrrr")
    return "\n".join([*lines, "", f"{len(specs)} models. `advisor models NAME` shows one in full."])


def page(spec: ModelSpec) -> str:
    """One model: parameters first, then every field, then where they come from."""
    from tabulate import tabulate

    known = details(spec)
    lines = [render.wrap(_headline(spec)), ""]
    if known["parameters"] is not None:
        lines += [_breakdown(known["parameters"]), "", _layers(known), ""]
    fields = {key: value for key, value in _flat(known["model"]).items() if key not in _LONG_TEXTS}
    lines += [tabulate([[key, _said(key, value)] for key, value in fields.items()], tablefmt="plain"), ""]
    lines += [
        render.folded(f"{_TITLES[key]}: {known['model'][key]}")
        for key in _LONG_TEXTS
        if key in known["model"]
    ]
    if known["aliases"]:
        lines.append(render.wrap(f"Also called: {', '.join(known['aliases'])}"))
    return "\n".join(lines).rstrip()


def _breakdown(parameters: dict[str, Any]) -> str:
    from tabulate import tabulate

    total = parameters["total"]
    rows = [
        [part, f"{count:,}", render.percent(count / total)] for part, count in parameters["parts"].items()
    ]
    rows.append(["total", f"{total:,}", "100.0 %"])
    return tabulate(rows, ["parameters", "count", "share"], disable_numparse=True, colalign=_RIGHT)


def _layers(known: dict[str, Any]) -> str:
    from tabulate import tabulate

    per_layer = known["parameters"]["per_layer"]
    rows = [[kind, count, f"{per_layer[kind]:,}"] for kind, count in known["layers"].items()]
    return tabulate(rows, ["layer", "count", "parameters each"], disable_numparse=True, colalign=_RIGHT)


_RIGHT = ("left", "right", "right")
_TITLES = {
    "source": "Source",
    "vocab_source": "Vocabulary",
    "params_published_source": "Published total",
    "note": "Note",
}


def _headline(spec: ModelSpec) -> str:
    if not spec.parameters_known:
        return f"{spec.name}: {spec.family}, parameters not known ({spec.note.rstrip('.')})."
    count = count_parameters(spec)
    words = [f"{_short(count.total)} parameters"]
    if count.active != count.total:
        words.append(f"{_short(count.active)} active per token")
    if count.mtp:
        words.append(f"{_short(count.mtp)} more for multi-token prediction")
    if spec.encoder is not None:
        words.append(f"{_short(encoder_parameters(spec))} more in the encoder")
    if spec.params_printed:
        words.append(f"published {spec.params_printed}")
    return f"{spec.name}: {spec.family}, {', '.join(words)}."


def _flat(mapping: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{part}": each for part, each in value.items()}
        else:
            flat[key] = value
    return flat


def _text(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _said(field: str, value: Any) -> str:
    """A field's value; the training length is the only size whose 0 stands for one that the source leaves out."""
    return "not said" if field == "seq_len" and not value else _text(value)


def _short(count: int | None) -> str:
    """8.03B for 8030261248; '?' when not known."""
    if count is None:
        return "?"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.{3 if unit == 'T' else 2 if count < 100 * size else 1}f}{unit}"
    return f"{count:,}"
