"""Is a pair of calibrator and credit more than the sum of its halves?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lightning_rlvr.report.results import SweepResults
from lightning_rlvr.report.section import Table
from lightning_rlvr.report.statistics import adjusted, finding, percent

Choice = frozenset[tuple[str, str | float]]
FACTORS = ("calibrator", "credit")
"""Settings whose choices are crossed; what else is set must be the baseline's."""


def crossed(results: SweepResults) -> dict[str, tuple[str, str]]:
    """Arms that differ from the baseline in both factors, and the arms that have one of the two choices alone.

    Returns:
        By arm: the arm with its calibrator and the baseline's credit, the arm with its credit and the baseline's
        calibrator. Arms that lack one of them are left out.

    Example:
        >>> settings = {
        ...     "grpo": {"calibrator": "Z", "credit": "U"}, "ot": {"calibrator": "OT", "credit": "U"},
        ...     "evidence": {"calibrator": "Z", "credit": "E"}, "tace": {"calibrator": "OT", "credit": "E"},
        ... }
        >>> samples = pd.DataFrame(columns=["arm", "seed", "set", "problem"])
        >>> crossed(
        ...     SweepResults(
        ...         name="x", baseline="grpo", arms=tuple(settings), seeds=(), samples=samples, steps=samples,
        ...         settings=settings,
        ...     )
        ... )
        {'tace': ('ot', 'evidence')}
    """
    keys = {arm: _key(results.settings[arm]) for arm in results.arms}
    arms = {key: arm for arm, key in reversed(keys.items())}
    (calibrator, credit, others), found = keys[results.baseline], {}
    for arm, (first, second, rest) in keys.items():
        halves = arms.get((first, credit, rest)), arms.get((calibrator, second, rest))
        if first != calibrator and second != credit and rest == others and halves[0] and halves[1]:
            found[arm] = halves[0], halves[1]
    return found


def _key(settings: Mapping[str, str | float]) -> tuple[Choice, Choice, Choice]:
    """Calibrator, credit and all else, each with its own settings."""
    parts: dict[str, set[tuple[str, str | float]]] = {"calibrator": set(), "credit": set(), "": set()}
    for name, value in settings.items():
        area = name.partition(".")[0]
        parts[area if area in FACTORS else ""].add((name, value))
    calibrator, credit, rest = map(frozenset, parts.values())
    return calibrator, credit, rest


def contrasts(results: SweepResults, by_seed: pd.DataFrame, confidence: float = 0.95) -> tuple[str, Table] | None:
    """A sentence and a table of ``pair - calibrator alone - credit alone + baseline`` by seed; none if not crossed.

    Args:
        results: Of the sweep.
        by_seed: Accuracy in percent: a row for each seed, a column for each arm.
        confidence: Of the intervals; the tests, Holm-adjusted over the contrasts, have level ``1 - confidence``.
    """
    halves = crossed(results)
    if not halves:
        return None
    base = by_seed[results.baseline]
    found = adjusted(
        pd.DataFrame({arm: by_seed[arm] - by_seed[a] - by_seed[b] + base for arm, (a, b) in halves.items()}),
        confidence,
    )
    words = {"better": "more than the sum", "worse": "less than the sum"}
    rows = [
        (arm, *halves[arm], result.mean, result.low, result.high, result.num_pairs, result.p_t, p_holm,
         words.get(word := finding(result, p_holm, confidence), word))
        for arm, (result, p_holm) in found.items()
    ]  # fmt: skip
    columns = ["pair", "calibrator alone", "credit alone", "interaction", "low", "high", "seeds", "p t", "p Holm"]
    frame = pd.DataFrame(rows, columns=[*columns, "finding"])
    shown = frame[frame["finding"].isin(words.values())]
    claims = [
        f"`{arm}` is {word} ({gain:+.2f} points)"
        for arm, word, gain in zip(shown["pair"], shown["finding"], shown["interaction"], strict=True)
    ]
    text = (
        "**Is a pair of calibrator and credit more than the sum of its halves?** "
        + ("; ".join(claims) if claims else "For no pair could a difference from the sum be shown")
        + f" ({len(frame)} tested, table `interaction`). "
        "Four runs of each seed enter a test: it takes more seeds than one of a gain."
    )
    return text, Table(
        name="interaction",
        caption="Interaction in points of macro avg@n: gain of the pair over the baseline minus the gains of its "
        f"halves, by seed; mean, {percent(confidence)} t-interval (not adjusted) and p of the t test, alone and "
        "Holm-adjusted over these contrasts.",
        frame=frame,
        formats=dict.fromkeys(("interaction", "low", "high"), "{:+.2f}") | dict.fromkeys(("p t", "p Holm"), "{:.3g}"),
    )
