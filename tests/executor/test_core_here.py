"""Which Megatron-Core a dry run traces with, and what follows from its version."""

from __future__ import annotations

import pytest

from executor.core_here import core_here, core_in, core_of


def wheel(folder, version):
    """As much of an unpacked wheel as says which it is."""
    (folder / "megatron" / "core").mkdir(parents=True)
    facts = folder / f"megatron_core-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n")
    return folder


def test_the_version_decides_the_stack():
    old, new = core_of("0.16.1"), core_of("0.19.2")
    assert old.stack.keeps_hybrids
    assert not old.stages_hybrids
    assert not new.stack.keeps_hybrids
    assert new.stages_hybrids
    assert new.stack.strided_delta > old.stack.strided_delta
    assert "core 0.19" in new.features - old.features
    assert "core 0.16" in old.features


def test_an_unknown_version_is_taken_as_the_newest():
    assert core_of("0.99.0").release == core_of("0.19.2").release
    assert core_of("").release == core_of("0.16.1").release


def test_a_wheel_in_a_folder_is_taken_at_its_word(tmp_path):
    found = core_in(wheel(tmp_path, "0.18.2"))
    assert (found.version, found.folder) == ("0.18.2", tmp_path)
    assert core_here().folder is None


def test_a_folder_without_one_is_told_in_a_line(tmp_path):
    with pytest.raises(
        ValueError, match=r"--megatron-core .* holds no megatron-core\. Try `pip install"
    ) as told:
        core_in(tmp_path)
    assert "\n" not in str(told.value)
