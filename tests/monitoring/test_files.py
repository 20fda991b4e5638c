"""What a run writes for others to read is there whole, or not at all."""

from pathlib import Path

import pytest

from command_line import SMALL
from lightning_rlvr.__main__ import main
from lightning_rlvr.monitoring.files import read_yaml


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "problems.json", "step_000001.jsonl"])
def test_a_run_killed_while_it_writes_leaves_no_part_of_a_file(tmp_path, monkeypatch, name):
    def killed(file, text, encoding):
        with file.open("w", encoding=encoding) as stream:
            stream.write(text[:20] if name in file.name else text)
        if name in file.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        main(["fit", *SMALL, f"--runs_dir={tmp_path}"])
    assert any(tmp_path.rglob(f".{name}.*"))
    assert not any(tmp_path.rglob(name))


@pytest.mark.parametrize("text", ["a: [", "[1, 2]", "3"])
def test_what_is_no_configuration_is_named(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"config.yaml' (cannot be read as YAML|must hold a configuration)"):
        read_yaml(file)
