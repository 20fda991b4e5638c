"""Files by which a run tells other processes how far it is; needs neither torch nor lightning."""

from __future__ import annotations

import os
from pathlib import Path

PROGRESS_FILE, ROLLOUTS_FILE = "progress.json", "rollouts.jsonl"


def replace_text(file: Path, text: str) -> None:
    """Write a file so that a reader finds the former content or the new one, never a part."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
