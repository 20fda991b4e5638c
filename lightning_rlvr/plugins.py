"""Finding the plug-ins of a trainer and uniting what they need."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from lightning_rlvr.calibration.base import CALIBRATORS, RewardCalibrator
from lightning_rlvr.credit.ablation.base import EVIDENCE_ABLATIONS, EvidenceAblation
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS, CreditAssigner
from lightning_rlvr.functional.losses import LOSS_TYPES
from lightning_rlvr.functional.statistics import TOKEN_STATISTICS
from lightning_rlvr.registry import Registry
from lightning_rlvr.rollout.base import ENGINES
from lightning_rlvr.verify.base import VERIFIERS

C = TypeVar("C", bound=Callback)

REGISTRIES: tuple[Registry[Any], ...] = (
    CALIBRATORS,
    CREDIT_ASSIGNERS,
    EVIDENCE_ABLATIONS,
    TOKEN_STATISTICS,
    VERIFIERS,
    ENGINES,
    LOSS_TYPES,
)


def load_plugins() -> None:
    """Import every installed plug-in, so that class names, short names and ``--help`` know them."""
    for registry in REGISTRIES:
        registry.names()


def find_all(trainer: Trainer, kind: type[C]) -> list[C]:
    """The callbacks of ``kind`` in the trainer."""
    callbacks: Iterable[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning leaves it untyped
    return [callback for callback in callbacks if isinstance(callback, kind)]


def find_one(trainer: Trainer, kind: type[C]) -> C:
    """The one callback of ``kind`` in the trainer.

    Raises:
        ValueError: There is none or more than one; the message names what was found.

    Example:
        >>> from lightning_rlvr.credit.uniform import UniformCredit
        >>> trainer = Trainer(callbacks=[UniformCredit()], logger=False, enable_checkpointing=False)
        >>> type(find_one(trainer, CreditAssigner)).__name__
        'UniformCredit'
    """
    found = find_all(trainer, kind)
    if len(found) == 1:
        return found[0]
    names = ", ".join(type(callback).__name__ for callback in found) or "none"
    hint = (
        "combine several with MixtureCredit or SequentialCalibrator"
        if found
        else "add one to `Trainer(callbacks=[...])`"
    )
    raise ValueError(f"the trainer needs exactly one {kind.__name__}, got {names}; {hint}")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What has to be computed for every token besides its log-prob."""

    statistics: frozenset[str]
    """Names in ``TOKEN_STATISTICS``: read in the forward that runs anyway."""
    ablations: frozenset[EvidenceAblation]
    """One extra forward without gradient for each."""
    reference: bool
    """Log-probs of the reference policy: one extra forward without gradient, shared with a ``RefModel`` ablation."""
    entropy_gradient: bool
    """The entropy enters the loss, so it needs a gradient."""

    @property
    def all_statistics(self) -> frozenset[str]:
        """Names of everything that a scored rollout holds, log-probs under ablations included."""
        return self.statistics | {ablation.statistic for ablation in self.ablations}

    @property
    def extra_forwards(self) -> int:
        """Forwards without gradient that each rollout costs on top of those that it needs anyway."""
        return sum(not ablation.reference for ablation in self.ablations) + self.reads_reference

    @property
    def reads_reference(self) -> bool:
        """Whether the reference policy runs, for the loss or for an ablation."""
        return self.reference or any(ablation.reference for ablation in self.ablations)

    @property
    def without_statistics(self) -> Needs:
        """What a forward needs once statistics and reference log-probs are known."""
        return replace(self, statistics=frozenset(), ablations=frozenset(), reference=False)


def unite_needs(
    calibrator: RewardCalibrator, assigner: CreditAssigner, *, reference: bool, entropy_gradient: bool
) -> Needs:
    """Everything that the plug-ins and the loss need, checked against the registry of statistics.

    The entropy is always among the statistics: it is logged for all methods alike.

    Raises:
        ValueError: A plug-in requires a statistic that nobody registered.
    """
    for plugin in (calibrator, assigner):
        if not isinstance(plugin.requires, AbstractSet):
            raise TypeError(
                f"`{type(plugin).__name__}.requires` must be a frozenset of names, got {plugin.requires!r}"
            )
        unknown = sorted(name for name in plugin.requires if name not in TOKEN_STATISTICS)
        if unknown:
            raise ValueError(
                f"`{type(plugin).__name__}.requires` names unknown token statistics {unknown}; "
                f"choices: {', '.join(TOKEN_STATISTICS.names())}"
            )
    return Needs(
        statistics=calibrator.requires | assigner.requires | {"entropy"},
        ablations=assigner.ablations,
        reference=reference,
        entropy_gradient=entropy_gradient,
    )
