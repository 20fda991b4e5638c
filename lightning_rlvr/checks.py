"""The one way in which a setting is refused."""

from __future__ import annotations

from importlib.util import find_spec


def require(claim: bool, name: str, expected: str, got: object) -> None:
    """Raise a ``ValueError`` that names argument, expectation and value, unless ``claim`` holds.

    Example:
        >>> require(False, "tau", "positive", -1.0)
        Traceback (most recent call last):
            ...
        ValueError: `tau` must be positive, got -1.0
    """
    if not claim:
        raise ValueError(f"`{name}` must be {expected}, got {got!r}")


def require_choice(name: str, choices: tuple[str, ...], got: object) -> None:
    """Raise a ``ValueError`` that lists ``choices``, unless ``got`` is one of them.

    Example:
        >>> require_choice("spread", ("ratio", "pure"), "ratoi")
        Traceback (most recent call last):
            ...
        ValueError: `spread` must be one of ratio, pure, got 'ratoi'
    """
    require(got in choices, name, f"one of {', '.join(choices)}", got)


def require_package(module: str, package: str, extra: str, user: str) -> None:
    """Raise an ``ImportError`` that says how to install ``package``, unless ``module`` can be imported.

    Example:
        >>> require_package("no_such_module", "no-such-package", "math", "MathVerifier")
        Traceback (most recent call last):
            ...
        ImportError: MathVerifier needs no-such-package: pip install "lightning-rlvr[math]"
    """
    if find_spec(module) is None:
        raise ImportError(f'{user} needs {package}: pip install "lightning-rlvr[{extra}]"')
