"""One registry type for every kind of plug-in: names, look-up, entry points of other packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Registry(Generic[T]):
    """Short names to plug-ins of one kind; other packages add to it by decorator or entry point.

    Args:
        kind: What it holds, in the singular, for messages ("credit assigner").
        entry_point_group: Entry point group in which installed packages announce plug-ins; read on first look-up.
        package: Package of ours whose modules register plug-ins; all are imported on first look-up.

    Example:
        >>> shapes: Registry[type] = Registry("shape", "lightning_rlvr.doctest_shapes")
        >>> @shapes.register("square")
        ... class Square: ...
        >>> shapes["square"] is Square, "circle" in shapes, shapes.names()
        (True, False, ('square',))
    """

    def __init__(self, kind: str, entry_point_group: str, package: str | None = None) -> None:
        self.kind = kind
        self.entry_point_group = entry_point_group
        self.package = package
        self._plugins: dict[str, T] = {}
        self._loaded = self._loading = False

    def register(self, name: str) -> Callable[[S], S]:
        """Decorator that files a plug-in under ``name``.

        Raises:
            ValueError: The name is not lower-case snake case or belongs to another plug-in already.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"{self.kind} name must be lower-case snake case, got {name!r}")

        def add(plugin: S) -> S:
            self._add(name, plugin)
            return plugin

        return add

    def names(self) -> tuple[str, ...]:
        """All short names, sorted."""
        self._load()
        return tuple(sorted(self._plugins))

    def __getitem__(self, name: str) -> T:
        """The plug-in called ``name``.

        Raises:
            ValueError: No such name; the message lists the choices.
        """
        self._load()
        if name not in self._plugins:
            raise ValueError(f"unknown {self.kind} {name!r}; choices: {', '.join(self.names())}")
        return self._plugins[name]

    def build(self: Registry[type[S]], plugin: S | str) -> S:
        """A plug-in as it is, or the one of that name with its default settings.

        Raises:
            ValueError: There is no such name, or that plug-in cannot be made from its name alone.

        Example:
            >>> from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
            >>> type(CREDIT_ASSIGNERS.build("uniform")).__name__
            'UniformCredit'
        """
        if not isinstance(plugin, str):
            return plugin
        arguments = signature(self[plugin]).parameters.values()
        collecting = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if needed := [a.name for a in arguments if a.default is a.empty and a.kind not in collecting]:
            raise ValueError(
                f"{self.kind} {plugin!r} needs settings: {', '.join(needed)}; give `class_path` and `init_args`"
            )
        return self[plugin]()

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _add(self, name: str, plugin: object) -> None:
        known = self._plugins.get(name)
        if known is not None and known is not plugin:
            raise ValueError(f"{self.kind} name {name!r} is taken by {known!r}; choose another name for {plugin!r}")
        self._plugins[name] = plugin  # type: ignore[assignment]  # decorators keep the type of what they file

    def _load(self) -> None:
        if self._loaded or self._loading:
            return
        self._loading = True
        try:
            self._import_all()
            self._loaded = True
        finally:
            self._loading = False

    def _import_all(self) -> None:
        if self.package is not None:
            for module in iter_modules(import_module(self.package).__path__, f"{self.package}."):
                import_module(module.name)
        for entry in entry_points(group=self.entry_point_group):
            try:
                plugin = entry.load()
            except (ImportError, AttributeError) as error:
                package = entry.dist.name if entry.dist else "?"
                raise ImportError(
                    f"{self.kind} {entry.name!r} of the installed package {package} cannot be imported: {error}"
                ) from error
            self.register(entry.name)(plugin)


def class_path(plugin: type) -> str:
    """Import path of a class.

    Example:
        >>> class_path(Registry)
        'lightning_rlvr.registry.Registry'
    """
    return f"{plugin.__module__}.{plugin.__qualname__}"


def with_class_paths(args: Sequence[str], registries: Mapping[str, Registry[Any]]) -> list[str]:
    """A command line with class paths in the place of short names.

    A file, a dotted path, a class name and a JSON object pass as they are.

    Args:
        args: The command line.
        registries: The flags that take a short name, as do those with ``.help`` behind, and where it is filed.

    Raises:
        ValueError: No plug-in has that name; the message lists the choices.

    Example:
        >>> from lightning_rlvr.verify.base import VERIFIERS
        >>> with_class_paths(["--verifier", "exact", "7"], {"--verifier": VERIFIERS})
        ['--verifier', 'lightning_rlvr.verify.exact.ExactVerifier', '7']
    """
    expanded: list[str] = []
    pending: Registry[Any] | None = None
    for arg in args:
        flag, equals, value = arg.partition("=")
        if pending is not None:
            expanded.append(_expanded(arg, pending))
            pending = None
        elif (registry := registries.get(flag.removesuffix(".help"))) and equals:
            expanded.append(f"{flag}={_expanded(value, registry)}")
        else:
            pending = registry
            expanded.append(arg)
    return expanded


def _expanded(value: str, registry: Registry[Any]) -> str:
    is_name = value.isidentifier() and value == value.lower()
    return class_path(registry[value]) if is_name else value
