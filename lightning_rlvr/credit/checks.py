"""The one way in which assigners refuse a setting."""

from __future__ import annotations


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
