import sys

import pytest

import lightning_rlvr
from lightning_rlvr.__main__ import main


def interrupt(**columns):
    raise KeyboardInterrupt


class Interrupting:
    """Finds no module, but is interrupted while it looks for the command line's."""

    def find_spec(self, name, path, target=None):
        if name == "lightning_rlvr.cli":
            raise KeyboardInterrupt


def test_interrupted_verification_ends_with_status_130(capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", "--verifier=function", f"--verifier.function={__name__}.interrupt", "7", "7"])
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_interrupted_imports_end_with_status_130(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "lightning_rlvr.cli", raising=False)
    monkeypatch.delattr(lightning_rlvr, "cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main(["fit", "--help"])
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")
