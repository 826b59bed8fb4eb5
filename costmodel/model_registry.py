"""Models by name, alias, size name or path."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from costmodel.huggingface import read_hf_config
from costmodel.model_file import from_mapping, nearest, read_toml
from costmodel.model_spec import ModelSpec

MODELS = Path(__file__).parent / "models"
_ALIASES = MODELS / "aliases.toml"
_SIZE_NAME = re.compile(r"gpt-h([0-9]{1,9})-l([0-9]{1,9})-a([0-9]{1,9})")
_LONGEST_NAME = 4096  # characters, as the longest path of Linux
# What Hugging Face ids say beside the architecture: its maker in front, behind it the training, the format, a date.
_MAKER = re.compile(r"(?:nvidia|meta|meta-llama)-")
_VARIANT = re.compile(
    r"-(?:hf|base|instruct|chat|it|thinking|pretrained|bf16|fp8|v[01]\.\d|\d+k|\d{4})$|-*\([^()]*\)$"
)


@cache
def list_models() -> tuple[str, ...]:
    """Names of the models that have a file, in order of the alphabet."""
    return tuple(sorted(path.stem for path in MODELS.glob("*.toml") if path != _ALIASES))


@cache
def list_aliases() -> dict[str, str]:
    """Other names of models: alias -> name."""
    aliases: dict[str, str] = tomllib.loads(_ALIASES.read_text(encoding="utf-8"))["aliases"]
    return aliases


def load_model(name_or_path: str | Path) -> ModelSpec:
    """The model of a name, an alias, a size name (gpt-h8192-l48-a64), a TOML, or a Hugging Face config.

    Names come before paths; write ./NAME for a file of that name. A folder is read for its config.json.
    Raises ValueError with the nearest names when nothing fits.
    """
    given = str(name_or_path).strip()
    if not given or len(given) > _LONGEST_NAME or "\0" in given:
        raise ValueError(f"--model {given[:60]!r} is not a name or a path. Try --model llama3-8b.")
    if not isinstance(name_or_path, Path):
        found = _by_name(given)
        if found is not None:
            return found
    path = Path(given)
    try:
        path = path.expanduser()
        if path.exists():
            return _read(path)
    except RuntimeError:  # ~ of a user that does not exist
        pass
    except OSError as error:
        raise ValueError(
            f"--model {given[:60]!r} cannot be read: {error.strerror}. Check the path."
        ) from None
    # A Hugging Face id such as meta-llama/Llama-3.1-8B names a model we know by its last part.
    may_be_id = given.count("/") <= 1 and path.suffix not in (".toml", ".json")
    found = _by_variant(given.rpartition("/")[2]) if may_be_id else None
    if found is not None:
        return found
    raise ValueError(_unknown(given, may_be_id))


def is_known(name: str) -> bool:
    """Whether a text names a model that we have, in any of its spellings."""
    given = name.strip()
    return len(given) <= _LONGEST_NAME and bool(_by_name(given) or _by_variant(given.rpartition("/")[2]))


def parse_size_name(name: str) -> ModelSpec | None:
    """The GPT of a name such as gpt-h8192-l48-a64 (hidden, layers, heads); None for any other name.

    Ungated GELU with f = 4h, multi-head attention, LayerNorm, biases, tied embeddings, vocabulary 51200 and
    2048 learned positions: the GPT of D. Narayanan et al., SC 2021, arXiv:2104.04473, and of the vTrain
    measurements (J. Bang et al., MICRO 2024, arXiv:2312.12391), which do not state vocabulary and positions.
    """
    match = _SIZE_NAME.fullmatch(name.strip().lower())
    if match is None:
        return None
    hidden, layers, heads = (int(group) for group in match.groups())
    try:
        return from_mapping(
            {
                "name": match.group(0),
                "num_layers": layers,
                "hidden": hidden,
                "ffn_hidden": 4 * hidden,
                "num_heads": heads,
                "gated": False,
                "activation": "gelu",
                "norm": "LayerNorm",
                "vocab": 51200,
                "tied_embeddings": True,
                "linear_bias": True,
                "qkv_bias": True,
                "learned_positions": 2048,
                "source": "sizes in the name; the rest as GPT in arXiv:2104.04473",
                "note": "vocabulary 51200 and 2048 learned positions are assumed",
            }
        )
    except ValueError as error:
        raise ValueError(f"--model {name.strip()}: {error}") from None


def _by_name(given: str) -> ModelSpec | None:
    name = _normal(given)
    name = _normal_aliases().get(name, name)
    if name in list_models():
        return _load_known(name)
    return parse_size_name(name)


def _by_variant(given: str) -> ModelSpec | None:
    """The model of a name however its parts are joined, and of one of its variants, which have its sizes."""
    name = _MAKER.sub("", _normal(given), count=1)
    while True:
        found = _by_name(name) or _by_joined(name)
        shorter = _VARIANT.sub("", name)
        if found is not None or shorter == name:
            return found
        name = shorter


def _by_joined(name: str) -> ModelSpec | None:
    """The model whose name has the same letters, digits and dots, or failing that the same letters and digits."""
    for signs in ("[-]", "[-.]"):
        found = _joined_names(signs).get(re.sub(signs, "", name))
        if found is not None:
            return _load_known(found)
    return None


@cache
def _joined_names(signs: str) -> dict[str, str]:
    """Names without some signs, but those that only these tell apart."""
    names = {name: name for name in list_models()} | _normal_aliases()
    joined: dict[str, set[str]] = {}
    for name, model in names.items():
        joined.setdefault(re.sub(signs, "", name), set()).add(model)
    return {key: found.pop() for key, found in joined.items() if len(found) == 1}


@cache
def _load_known(name: str) -> ModelSpec:
    return read_toml(MODELS / f"{name}.toml")


@cache
def _normal_aliases() -> dict[str, str]:
    return {_normal(alias): name for alias, name in list_aliases().items()}


def _normal(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _read(path: Path) -> ModelSpec:
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    return read_hf_config(path) if path.suffix == ".json" else read_toml(path)


def _unknown(given: str, may_be_id: bool) -> str:
    shown = given if len(given) <= 60 else given[:57] + "..."
    if not may_be_id:
        return f"--model {shown!r} is not a file. Check the path, or give a name of `advisor models`."
    name = _normal(given.rpartition("/")[2])
    # 9b is no part of gpt-119b or pythia-6.9b.
    part = re.compile(("(?<![0-9.])" if name[:1].isdigit() else "") + re.escape(name))
    could_be = [model for model in list_models() if name and part.search(model)]
    if len(could_be) > 1:
        more = f" and {len(could_be) - 5} more" if len(could_be) > 5 else ""
        return f"--model {shown!r} is ambiguous: {', '.join(could_be[:5])}{more}. Give one of them in full."
    near = f" Did you mean {could_be[0]}?" if could_be else nearest(name, [*list_models(), *list_aliases()])
    return f"--model {shown!r} is not a known model or file.{near} `advisor models` lists them."
