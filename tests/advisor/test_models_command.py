"""advisor models: what the user reads, and what a script parses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from advisor.commands.models import command
from costmodel.model_registry import list_models


def run(*args):
    result = CliRunner().invoke(command, args, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_lists_every_model():
    lines = run().splitlines()
    assert {line.split()[0] for line in lines[1:-2]} == set(list_models())
    row = next(line for line in lines if line.strip().startswith("llama3-70b"))
    assert row.split() == ["llama3-70b", "dense", "80", "8192", "70.55B"]
    row = next(line for line in lines if line.strip().startswith("deepseek-v3"))
    assert row.split() == ["deepseek-v3", "mla-moe", "61", "7168", "671.0B", "37.55B"]
    assert lines[-1].startswith(f"{len(list_models())} models.")


def test_list_as_json():
    models = {line["name"]: line for line in json.loads(run("--json"))["models"]}
    assert set(models) == set(list_models())
    assert models["llama3-8b"]["parameters"] == 8_030_261_248
    assert models["deepseek-v4-flash"]["parameters"] == 284_346_582_482
    assert all(line["source"] for line in models.values())


def test_one_model_says_everything():
    text = run("70b")
    assert text.startswith("llama3-70b: dense, 70.55B parameters, published 70.6B.\n")
    assert "70,553,706,496" in text
    assert "Llama3ModelProvider70B" in text
    assert "Also called: 70b, llama-3-70b" in text
    assert "not built" not in text


def test_parts_of_one_model_sum_to_its_total():
    for name in ("llama3-8b", "deepseek-v3", "nemotron3-super-120b-a12b", "gpt3-175b"):
        parameters = json.loads(run(name, "--json"))["parameters"]
        assert sum(parameters["parts"].values()) == parameters["total"]


@pytest.mark.parametrize("name", list_models())
def test_every_model_has_a_page(name):
    text = run(name)
    assert "Source: " in text
    assert "num_layers" in text


def test_size_name_and_file(tmp_path):
    assert "39.10B parameters" in run("gpt-h8192-l48-a64")
    path = tmp_path / "mine.toml"
    path.write_text("num_layers = 2\nhidden = 64\nffn_hidden = 128\nnum_heads = 4\nvocab = 100\n")
    assert run(str(path)).startswith("mine: dense, ")


def test_unknown_name_is_a_value_error():
    with pytest.raises(ValueError, match="Did you mean llama3-70b"):
        run("lama3-70b")


def test_an_encoder_is_counted_beside_its_decoder(tmp_path):
    path = tmp_path / "vision.toml"
    path.write_text(
        "num_layers = 28\nhidden = 3584\nffn_hidden = 18944\nnum_heads = 28\nnum_kv_heads = 4\nvocab = 152064\n"
        "[encoder]\nnum_layers = 32\nhidden = 1280\nffn_hidden = 3420\nnum_heads = 16\ntokens = 1024\ngated = true\n"
    )
    encoder = 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    assert json.loads(run(str(path), "--json"))["parameters"]["encoder"] == encoder
    assert "7.62B parameters, 630.0M more in the encoder." in run(str(path)).splitlines()[0]
    assert json.loads(run("8b", "--json"))["parameters"]["encoder"] == 0
