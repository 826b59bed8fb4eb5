"""advisor hardware shows every number with its source, for shipped and for users' files."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from advisor.commands.hardware import command

MINE = """
[gpu]
name = "mine"
generation = "hopper"
calibrated_like = "h100-sxm"
sm_count = { value = 132, unit = "1", source = "me" }
hbm_capacity_usable = { value = 70, unit = "GiB", source = "me" }
hbm_bandwidth = { value = 3.0, unit = "TB/s", kind = "measured", source = "my stopwatch", read_on = 2026-01-02 }
peak_bf16 = { value = 900, unit = "TFLOP/s", source = "me" }
"""


def show(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_overview_fits_a_page_and_names_what_gpu_means():
    text = show()
    assert max(map(len, text.splitlines())) <= 110
    assert "--gpu b200" in text
    assert "gb300-nvl72" in text


def test_the_overview_has_every_name_that_a_file_of_ones_own_may_refer_to():
    """Errors and documents said that it lists links: it had none."""
    known = json.loads(show("--json"))
    first = {line.split()[0] for line in show().splitlines() if line.strip()}
    assert {link["name"] for link in known["links"]} <= first
    assert {gpu["name"] for gpu in known["gpus"]} <= first


def test_the_title_of_a_file_is_said_once(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ntitle = "My nodes"\ngpu = "h100-sxm"\ngpus_per_node = 8\ndomain_size = 8\n'
        'intra = "nvlink4"\ninter = "ib-hdr-200"\nhost_link = "pcie5-x16"\n'
    )
    text = show(str(path))
    assert text.startswith("mine: My nodes\n")
    assert text.count("My nodes") == 1
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", ["b200", "dgx-h100", "nvlink5", "mi300x", "dgx-gb200-nvl72"])
def test_one_of_them_with_sources(name):
    record = json.loads(show(name, "--json"))
    for quantity in record["quantities"].values():
        assert quantity["source"]
        assert quantity["unit"]
    assert "file:" in show(name)


def test_all_of_them_as_one_document():
    record = json.loads(show("--json"))
    assert {"h100-sxm", "b200"} <= {gpu["name"] for gpu in record["gpus"]}


def test_a_users_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    text = show(str(path))
    assert "my stopwatch" in text
    assert "2026-01-02" in text
    assert "dgx-h100" in text


def test_unknown_names_suggest():
    with pytest.raises(ValueError, match="dgx-b200"):
        show("dgx-b20")


def test_the_links_of_a_cluster_are_shown_with_what_they_do(tmp_path):
    """Of a link of one's own the page told the name alone."""
    own = tmp_path / "own.toml"
    text = (
        'name = "own"\ntitle = "own"\ngpu = "h100-sxm"\ngpus_per_node = 4\ndomain_size = 4\nintra = "nvlink4"\n'
        'inter = "eth-100"\nhost_link = "pcie5-x16"\n[links.eth-100]\nscope = "inter"\n'
        'bandwidth = { value = 25, unit = "Gbit/s", kind = "assumed", source = "me", read_on = 2026-11-26 }\n'
        'latency = { value = 20, unit = "us", kind = "assumed", source = "me", read_on = 2026-11-26 }\n'
    )
    own.write_text(text)
    assert "eth-100: eth-100, 3.125 GB/s a GPU one way, 20 us" in show(str(own))
