"""The laws of every registered credit assigner, those of other packages included."""

import io

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from lightning_rlvr.credit.ablation.prompt_mask import PromptMask
from lightning_rlvr.credit.ablation.ref_model import RefModel
from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
from lightning_rlvr.credit.entropy import EntropyCredit
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.inverted import InvertedCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.credit.mixture import MixtureCredit
from lightning_rlvr.credit.permuted import PermutedCredit
from lightning_rlvr.functional.masking import masked_mean
from lightning_rlvr.functional.statistics import TOKEN_STATISTICS
from lightning_rlvr.types import Rollout, TokenStatistics, UndeclaredStatisticError

EXAMPLES = {
    "margin": [
        MarginCredit,
        lambda: MarginCredit(score_map="step", floor=1.0),
        lambda: MarginCredit(spread="additive", lam=0.9),
        lambda: MarginCredit(spread="pure"),
    ],
    "entropy": [EntropyCredit, lambda: EntropyCredit(lo=1.0, hi=2.0, spread="pure")],
    "evidence_contrast": [
        EvidenceContrastCredit,
        lambda: EvidenceContrastCredit(RefModel(), weight_map="gauss", renorm="project", negative="flip"),
        lambda: EvidenceContrastCredit(
            PromptMask("?"), statistic="k3", weight_map="power", clip_low=0.01, clip_high=4
        ),
        lambda: EvidenceContrastCredit(statistic="abs", weight_map="linear", tau=2.0, tie_tol=0.5),
    ],
    "mixture": [
        lambda: MixtureCredit(["uniform", "margin"]),
        lambda: MixtureCredit([PermutedCredit("evidence_contrast"), "entropy", "margin"], [0.5, 0.3, 0.2]),
    ],
    "permuted": [lambda: PermutedCredit("margin"), lambda: PermutedCredit(InvertedCredit("entropy"))],
    "inverted": [lambda: InvertedCredit("margin"), lambda: InvertedCredit(MarginCredit(spread="pure"))],
}
FACTORIES = [
    pytest.param(factory, id=f"{name}-{i}")
    for name in CREDIT_ASSIGNERS.names()
    for i, factory in enumerate(EXAMPLES.get(name, [CREDIT_ASSIGNERS[name]]))
]
every_assigner = pytest.mark.parametrize("factory", FACTORIES)
every_conserving, every_row_local = (
    pytest.mark.parametrize("factory", [factory for factory in FACTORIES if getattr(factory.values[0](), claim)])
    for claim in ("conserves", "row_local")
)
LAW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEDS = st.integers(0, 10_000)


def needs(assigner):
    return sorted(assigner.requires | {ablation.statistic for ablation in assigner.ablations})


def make_case(make_rollout, assigner, seed):
    """A rollout with an empty row, tied statistics (odd seeds) and garbage outside the mask; advantages with a 0."""
    rollout = make_rollout(seed, requires=needs(assigner), completion_tokens=1 + seed % 9)
    mask = rollout.completion_mask.clone()
    mask[-1] = False
    garbage = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.arange(mask.numel()).reshape(mask.shape) % 3]
    statistics = {}
    for name, values in rollout.statistics.items():
        values = (4 * values).round() / 4 if seed % 2 else values
        statistics[name] = values.where(mask, garbage)
    rollout = changed(
        rollout,
        completion_mask=mask,
        old_logprobs=rollout.old_logprobs * mask,
        statistics=TokenStatistics(statistics),
    )
    advantages = torch.randn(len(rollout), generator=torch.Generator().manual_seed(seed))
    advantages[1] = 0.0
    return rollout, advantages


def changed(rollout, **fields):
    return Rollout(**({name: getattr(rollout, name) for name in rollout.__dataclass_fields__} | fields))


def assert_same(credit, expected):
    torch.testing.assert_close(credit, expected, atol=2e-6, rtol=1e-5)


def test_there_are_assigners_and_every_example_is_registered():
    assert {"uniform", "margin", "entropy", "evidence_contrast", "mixture", "permuted", "inverted"} <= set(
        CREDIT_ASSIGNERS.names()
    )
    assert set(EXAMPLES) <= set(CREDIT_ASSIGNERS.names())


@every_assigner
def test_needs_are_known(factory):
    assert factory().requires <= set(TOKEN_STATISTICS.names())


@every_assigner
@LAW
@given(seed=SEEDS)
def test_credit_is_finite_float32_and_exactly_zero_outside_the_mask(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    credit = assigner.assign(rollout, advantages)
    assert credit.shape == rollout.completion_mask.shape
    assert credit.dtype == torch.float32
    assert credit.isfinite().all()
    assert (credit[~rollout.completion_mask] == 0).all()


@every_conserving
@LAW
@given(seed=SEEDS)
def test_conserving_assigners_keep_the_mean_of_every_row(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    means = masked_mean(assigner.assign(rollout, advantages), rollout.completion_mask)
    assert_same(means, advantages * rollout.completion_mask.any(1))


@every_assigner
@LAW
@given(seed=SEEDS)
def test_a_row_without_advantage_gets_exactly_no_credit(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    assert (assigner.assign(rollout, advantages)[1] == 0).all()
    assert (assigner.assign(rollout, torch.zeros_like(advantages)) == 0).all()


@every_assigner
@LAW
@given(seed=SEEDS)
def test_credit_follows_its_row(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(seed))
    credit = assigner.assign(rollout.rows(order), advantages[order])
    assert_same(credit, assigner.assign(rollout, advantages)[order][:, : credit.shape[1]])


@every_row_local
@LAW
@given(seed=SEEDS)
def test_row_local_assigners_give_a_row_alone_the_same_credit(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    together = assigner.assign(rollout, advantages)
    for i in range(len(rollout)):
        alone = assigner.assign(rollout.rows(torch.tensor([i])), advantages[i : i + 1])
        assert_same(alone, together[i : i + 1, : alone.shape[1]])


@every_assigner
@LAW
@given(seed=SEEDS)
def test_padding_changes_no_credit(make_rollout, factory, seed):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, seed)
    tokens = rollout.completion_ids.shape[1]
    padded = changed(
        rollout,
        completion_ids=pad(rollout.completion_ids, (0, 5)),
        completion_mask=pad(rollout.completion_mask, (0, 5)),
        old_logprobs=pad(rollout.old_logprobs, (0, 5)),
        statistics=TokenStatistics({k: pad(v, (0, 5), value=torch.nan) for k, v in rollout.statistics.items()}),
    )
    credit = assigner.assign(padded, advantages)
    assert_same(credit[:, :tokens], assigner.assign(rollout, advantages))
    assert (credit[:, tokens:] == 0).all()


@every_assigner
def test_no_gradient_passes_through_credit(make_rollout, factory):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, 1)
    rollout.old_logprobs.requires_grad_()
    for values in rollout.statistics.values():
        values.requires_grad_()
    assert not assigner.assign(rollout, advantages).requires_grad


@every_assigner
def test_assign_changes_nothing_and_repeats_itself(make_rollout, factory):
    assigner = factory()
    (rollout, advantages), (same_rollout, same_advantages) = (make_case(make_rollout, assigner, 2) for _ in range(2))
    first = assigner.assign(rollout, advantages)
    assert torch.equal(assigner.assign(rollout, advantages), first)
    assert torch.equal(advantages, same_advantages)
    for name in ("completion_ids", "completion_mask", "old_logprobs", "seeds", "prompt_ids"):
        assert torch.equal(getattr(rollout, name), getattr(same_rollout, name))
    for name, values in rollout.statistics.items():
        torch.testing.assert_close(values, same_rollout.statistics[name], atol=0, rtol=0, equal_nan=True)


@every_assigner
def test_state_survives_a_checkpoint(make_rollout, factory):
    assigner, restored = factory(), factory()
    buffer = io.BytesIO()
    torch.save(assigner.state_dict(), buffer)
    buffer.seek(0)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    rollout, advantages = make_case(make_rollout, assigner, 3)
    assert torch.equal(restored.assign(rollout, advantages), assigner.assign(rollout, advantages))


@every_assigner
def test_every_declared_statistic_is_read_and_a_missing_one_raises(make_rollout, factory):
    assigner = factory()
    rollout, advantages = make_case(make_rollout, assigner, 4)
    for missing in needs(assigner):
        others = {name: values for name, values in rollout.statistics.items() if name != missing}
        with pytest.raises(UndeclaredStatisticError, match="was not declared"):
            assigner.assign(changed(rollout, statistics=TokenStatistics(others)), advantages)


@every_assigner
def test_diagnostics_are_token_values_that_padding_does_not_reach(make_rollout, factory):
    assigner = factory()
    rollout, _ = make_case(make_rollout, assigner, 5)
    for name, values in assigner.diagnostics(rollout).items():
        assert name.isidentifier()
        assert values.shape == rollout.completion_mask.shape
        assert values[rollout.completion_mask].isfinite().all()


@every_assigner
def test_the_formula_is_one_line_of_ascii(factory):
    formula = factory().formula
    assert formula.isascii()
    assert "\n" not in formula


@every_assigner
def test_assigners_with_other_settings_have_other_state_keys(factory):
    assert factory().state_key == factory().state_key
    assert [f.values[0]().state_key for f in FACTORIES].count(factory().state_key) == 1
