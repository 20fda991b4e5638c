"""What a run leaves for others to read, without torch or lightning: names of files, and flat settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

PROGRESS_FILE, ROLLOUTS_FILE = "progress.json", "rollouts.jsonl"


def replace_text(file: Path, text: str) -> None:
    """Write a file so that a reader finds the former content or the new one, never a part."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a file, or an empty one where there is no such file.

    Raises:
        ValueError: The file holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{str(file)!r} cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(file)!r} must hold an object, got {type(content).__name__}")
    return content


def read_yaml(file: Path) -> dict[str, Any]:
    """The configuration in a file.

    Raises:
        ValueError: The file holds something else.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except (yaml.YAMLError, OSError) as error:  # the latter also of a number alone
        raise ValueError(f"{str(file)!r} cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(file)!r} must hold a configuration, got {type(content).__name__}")
    return {str(name): value for name, value in content.items()}


def flat_settings(settings: Mapping[str, Any], *, whole_paths: bool = False) -> dict[str, str | float]:
    """Leaves of a nested configuration by dotted name; classes by their name, what is unset left out.

    Args:
        settings: The configuration.
        whole_paths: Classes by import path instead, for two of one name are not the same.

    Example:
        >>> margin = {"class_path": "lightning_rlvr.credit.margin.MarginCredit", "init_args": {"lo": 0.2, "lam": None}}
        >>> flat_settings({"credit": margin, "data": {"train": [{"class_path": "SumsSource"}]}})
        {'credit': 'MarginCredit', 'credit.lo': 0.2, 'data.train.0': 'SumsSource'}
    """
    return dict(_leaves(settings, "", whole_paths))


def _leaves(value: object, name: str, whole_paths: bool) -> Iterator[tuple[str, str | float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "class_path":
                yield name, str(item) if whole_paths else str(item).rpartition(".")[2]
            elif not key.startswith("__"):
                yield from _leaves(item, name if key == "init_args" else f"{name}.{key}".lstrip("."), whole_paths)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{name}.{number}", whole_paths)
    elif value is not None:
        yield name, value if isinstance(value, (bool, int, float)) else str(value)
