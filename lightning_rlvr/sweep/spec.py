"""A sweep as data: what a specification says, and the cells that it expands into."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_rlvr.checks import require

Setting = Any
"""A plain value of YAML: text, number, truth value, null, list or mapping."""
_OWN = {"name": "`name`", "runs_dir": "`--runs_dir`", "data.data_seed": "`seeds`", "ckpt_path": "the sweep itself"}
"""Settings that the sweep gives to every run, and what decides them."""
_NAME = re.compile(r"\w[\w.=+-]{0,99}")
_FOLDERS = {"report", "slurm", "sweep.json"}
"""Beside the arms, in the folder of the sweep."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep: an arm with a data seed, as the commands that a user would type."""

    arm: str
    seed: int
    settings: Mapping[str, Setting]
    """What the arm sets, by dotted name."""
    fit: tuple[str, ...]
    """Arguments of ``rlvr``, the first is ``fit``."""
    test: tuple[str, ...] | None = None
    """The same with ``test``; ``--ckpt_path`` is added once the run has one."""

    @property
    def test_flags(self) -> tuple[str, ...] | None:
        """What the test adds to the arguments of the training."""
        return None if self.test is None else self.test[len(self.fit) :]

    @property
    def folder(self) -> str:
        """Where its run is, below the folder of the sweep."""
        return f"{self.arm}/seed_{self.seed}"


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """What a YAML file says: arms and grid are crossed, and each of these cells runs with each seed.

    Args:
        name: Folder of the sweep below `runs_dir`; by default the file's name.
        configs: Configuration files of every run (from the sweep's file), as after ``-c``.
        fixed: Settings of every run, by dotted name; `calibrator` and `credit` by short name or file.
        grid: Lists of values by setting; a cell for each combination.
        arms: Settings by arm; `configs` among them are more files.
        exclude: Cells to leave out: those that have all settings of an entry (`arm` is the arm's name).
        seeds: Data seeds: which problems, in which order, and the seeds of the sampling. Shared by all arms.
        baseline: What the report compares with; by default the first cell.
        test: Settings of `rlvr test` after each run, such as `num_samples`; null for no test.
    """

    name: str
    configs: tuple[str, ...]
    fixed: Mapping[str, Setting] = field(default_factory=dict)
    grid: Mapping[str, list[Setting]] = field(default_factory=dict)
    arms: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    exclude: Sequence[Mapping[str, Setting]] = ()
    seeds: tuple[int, ...] = (0,)
    baseline: str | None = None
    test: Mapping[str, Setting] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(bool(_NAME.fullmatch(self.name)), "name", "letters, digits and `.+-_=`, at most 100", self.name)
        fit = bool(self.configs) and all(isinstance(file, str) for file in self.configs)
        require(fit, "configs", "a list of at least one configuration file", list(self.configs))
        require(bool(self.seeds), "seeds", "at least one whole number", list(self.seeds))
        whole = all(type(seed) is int and seed >= 0 for seed in self.seeds)
        require(whole, "seeds", "whole numbers, not negative", list(self.seeds))
        require(len({*self.seeds}) == len(self.seeds), "seeds", "different", list(self.seeds))
        for key, values in self.grid.items():
            require(type(values) is list and values != [], f"grid.{key}", "a list of at least one value", values)
        require(bool(self.arms or self.grid), "arms", "given, or `grid`", dict(self.arms))
        for arm in _FOLDERS & {*self.arms}:
            raise ValueError(f"`arms` must not be named {', '.join(sorted(_FOLDERS))}, got {arm!r}")
        for part, settings in self._parts():
            for key in settings:
                require(isinstance(key, str), part, "keyed by text (in quotes where YAML reads something else)", key)
            for key in settings.keys() & _OWN.keys():
                raise ValueError(f"`{part}` must not set `{key}`, which {_OWN[key]} decides")
            if "configs" in settings:
                files = settings["configs"]
                of_arm = part.startswith("arms.") and isinstance(files, list)
                require(of_arm, f"{part}.configs", "a list of files, of an arm", files)
        for one, other in itertools.combinations([("fixed", self.fixed), ("grid", self.grid), *self._arms()], 2):
            both_arms = one[0].startswith("arms.") and other[0].startswith("arms.")
            if (twice := one[1].keys() & other[1].keys() - {"configs"}) and not both_arms:
                raise ValueError(f"`{one[0]}` and `{other[0]}` both set `{min(twice)}`; set it in one of them")

    def _parts(self) -> Iterator[tuple[str, Mapping[str, Setting]]]:
        yield from (("arms", self.arms), ("fixed", self.fixed), ("grid", self.grid), ("test", self.test or {}))
        yield from self._arms()

    def _arms(self) -> Iterator[tuple[str, Mapping[str, Setting]]]:
        for name, settings in self.arms.items():
            yield f"arms.{name}", settings


def read_spec(path: str | Path) -> SweepSpec:
    """The specification in a YAML file; paths in it are made relative to the working directory.

    Raises:
        ValueError: The file has another form, a key is unknown, or a file that it names does not exist.
        OSError: There is no such file.
    """
    file = Path(path)
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no such sweep: {str(path)!r}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} must be text in UTF-8 ({error})") from error
    except Exception as error:  # whatever the parser of YAML raises, OmegaConf's own included
        if isinstance(error, (OmegaConfBaseException, OSError)) or "yaml" in type(error).__module__:
            raise ValueError(f"{str(path)!r} cannot be read as YAML: {error}") from error
        raise
    known = [item.name for item in fields(SweepSpec)]
    if not isinstance(content, dict) or (unknown := [str(key) for key in content if key not in known]):
        got = f"`{', '.join(unknown)}`" if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{str(path)!r} must have keys among {', '.join(known)}, got {got}")
    values: dict[str, Any] = {key: _located(value, file.parent) for key, value in content.items()}
    kinds: dict[str, tuple[type, str]] = dict.fromkeys(known, (dict, "a mapping"))
    kinds |= dict.fromkeys(("name", "baseline"), (str, "a text"))
    kinds |= dict.fromkeys(("configs", "exclude", "seeds"), (list, "a list"))
    for key, value in values.items():
        kind, expected = kinds[key]
        if not isinstance(value, kind) and (key, value) != ("test", None):
            raise ValueError(f"`{key}` of {str(path)!r} must be {expected}, got {value!r}")
    for part, entries in (("arms", values.get("arms", {}).items()), ("exclude", enumerate(values.get("exclude", [])))):
        for name, entry in entries:
            require(isinstance(entry, dict), f"{part}.{name}", "a mapping of settings", entry)
    values |= {key: tuple(values[key]) for key in ("configs", "seeds") if key in values}
    return SweepSpec(**{"name": file.stem, "configs": ()} | values)


def _located(value: Setting, parent: Path) -> Setting:
    """The same with the paths of YAML files seen from here."""
    if isinstance(value, dict):
        return {key: _located(item, parent) for key, item in value.items()}
    if isinstance(value, list):
        return [_located(item, parent) for item in value]
    if not (isinstance(value, str) and value.endswith((".yaml", ".yml"))):
        return value
    path = Path(os.path.normpath(parent / value))
    if not path.is_file():
        raise ValueError(f"no such configuration file: {str(path)!r} ({value!r}, as seen from the sweep's file)")
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)


def expand(spec: SweepSpec, runs_dir: str = "runs") -> list[Cell]:
    """The cells of a sweep: seeds outside, arms inside, so that an interrupted sweep leaves whole comparisons.

    Args:
        spec: What to expand.
        runs_dir: Folder of all runs; the sweep is a folder in it.

    Raises:
        ValueError: Two cells have the same name, an entry of `exclude` or the baseline matches no cell, or no cell
            is left.

    Example:
        >>> spec = SweepSpec(name="s", configs=("a.yaml",), grid={"credit": ["uniform", "margin"]}, seeds=(3,))
        >>> [cell.folder for cell in expand(spec)]
        ['uniform/seed_3', 'margin/seed_3']
        >>> " ".join(expand(spec)[1].fit)
        'fit -c a.yaml --credit margin --data.data_seed 3 --runs_dir runs/s --name margin/seed_3'
    """
    arms = list(_arms(spec))
    for entry in spec.exclude:
        matching = [name for name, arm, settings in arms if _matches(entry, arm, settings)]
        require(bool(matching), "exclude", f"settings of a cell among {', '.join(n for n, *_ in arms)}", dict(entry))
    kept = [
        (name, settings)
        for name, arm, settings in arms
        if not any(_matches(entry, arm, settings) for entry in spec.exclude)
    ]
    names = [name for name, _ in kept]
    require(bool(kept), "exclude", "such that a cell is left", list(spec.exclude))
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"cells must have different names, got {repeated[0]!r} twice; give them as `arms`, by name")
    if spec.baseline is not None and spec.baseline not in names:
        raise ValueError(f"`baseline` must be a cell, got {spec.baseline!r}; choices: {', '.join(names)}")
    folder = f"{runs_dir}/{spec.name}"
    return [_cell(spec, name, settings, seed, folder) for seed in spec.seeds for name, settings in kept]


def _arms(spec: SweepSpec) -> Iterator[tuple[str, str, dict[str, Setting]]]:
    """Name of each cell, the arm in it, and the settings of both."""
    for arm, settings in (spec.arms or {"": {}}).items():
        for values in itertools.product(*spec.grid.values()):
            chosen = dict(zip(spec.grid, values, strict=True))
            name = "-".join([*([arm] if arm else []), *(_label(key, value) for key, value in chosen.items())])
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"the name of a cell must be made of at most 100 letters, digits and `.+-_=`, the first no sign, "
                    f"got {name!r}; give its settings as one of `arms`, by name"
                )
            yield name, arm, {**settings, **chosen}


def _label(key: str, value: Setting) -> str:
    text = value.rpartition("/")[2] if isinstance(value, str) else json.dumps(value)
    text = text.removesuffix(".yaml").removesuffix(".yml")
    return text if key in ("calibrator", "credit") else f"{key.rpartition('.')[2]}={text}"


def _matches(entry: Mapping[str, Setting], arm: str, settings: Mapping[str, Setting]) -> bool:
    known = {**settings, "arm": arm}
    return all(key in known and known[key] == value for key, value in entry.items())


def _cell(spec: SweepSpec, name: str, settings: dict[str, Setting], seed: int, folder: str) -> Cell:
    files = [*spec.configs, *settings.get("configs", ())]
    flags = {**spec.fixed, **{key: value for key, value in settings.items() if key != "configs"}}
    ordered = sorted(flags.items(), key=lambda item: "." in item[0])  # a class before what is set of it
    arguments = [
        *(part for file in files for part in ("-c", file)),
        *_flags(dict(ordered)),
        *("--data.data_seed", str(seed), "--runs_dir", folder, "--name", f"{name}/seed_{seed}"),
    ]
    test = None if spec.test is None else ("test", *arguments, *_flags(spec.test))
    return Cell(arm=name, seed=seed, settings=settings, fit=("fit", *arguments), test=test)


def _flags(settings: Mapping[str, Setting]) -> Iterator[str]:
    for key, value in settings.items():
        yield from (f"--{key}", value if isinstance(value, str) else json.dumps(value))
