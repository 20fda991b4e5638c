"""Uniform, margin and entropy credit: worked numbers, refusals and the gradient they lead to."""

import pytest
import torch

from lightning_rlvr.credit.entropy import EntropyCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.credit.uniform import UniformCredit
from lightning_rlvr.types import TokenStatistics

MARGINS = torch.tensor([[0.98, 0.95, 0.10, 0.99, 0.50, 0.85, 0.20, 0.999]])


@pytest.fixture
def one_row(make_rollout):
    def make(mask=None, **statistics):
        mask = torch.ones(1, 8, dtype=torch.bool) if mask is None else mask
        rollout = make_rollout(num_groups=1, num_generations=1, completion_tokens=mask.shape[1])
        return make_rollout(
            num_groups=1,
            num_generations=1,
            completion_tokens=mask.shape[1],
            completion_mask=mask,
            old_logprobs=rollout.old_logprobs * mask,
            statistics=TokenStatistics(statistics),
        )

    return make


def test_uniform_credit_gives_masked_tokens_exactly_nothing(one_row):
    rollout = one_row(mask=torch.tensor([[True, False, False, True]]))
    assert UniformCredit().assign(rollout, torch.tensor([2.0])).tolist() == [[2, 0, 0, 2]]


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("assigner", [MarginCredit(), EntropyCredit()])
def test_masked_tokens_leak_nothing_to_their_neighbours(one_row, assigner, garbage):
    mask = torch.tensor([[True, False, False, True]])
    values = torch.tensor([[0.5, garbage, garbage, 0.5]])
    credit = assigner.assign(one_row(mask, margin=values, entropy=values), torch.tensor([2.0]))
    assert credit.tolist() == [[2, 0, 0, 2]]


@pytest.mark.parametrize("valid", [0, 1, 2])
def test_margin_credit_with_no_one_and_two_valid_tokens(one_row, valid):
    mask = (torch.arange(3) < valid)[None]
    credit = MarginCredit().assign(one_row(mask, margin=torch.tensor([[0.9, 0.1, 0.5]])), torch.tensor([1.0]))
    # one token: 1; scores 0 and 1 with floor .2: .2 / .6 and 1 / .6
    expected = {0: [0.0, 0.0, 0.0], 1: [1.0, 0.0, 0.0], 2: [1 / 3, 5 / 3, 0.0]}[valid]
    torch.testing.assert_close(credit, torch.tensor([expected]))


def test_margin_credit_of_the_worked_example(one_row):
    # weights .4444 2.2222 1.3333 (floor .2) times 1.2; the sum is 8 * 1.2 = 9.6
    credit = MarginCredit().assign(one_row(margin=MARGINS), torch.tensor([1.2]))
    expected = torch.tensor([[0.5333, 0.5333, 2.6667, 0.5333, 1.6, 0.5333, 2.6667, 0.5333]])
    torch.testing.assert_close(credit, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(credit.sum(), torch.tensor(9.6))


def test_margin_credit_differs_from_uniform_unless_the_margins_are_equal(one_row):
    advantages = torch.tensor([-0.7])
    for margins, same in ((MARGINS, False), (torch.full_like(MARGINS, 0.3), True), (torch.ones_like(MARGINS), True)):
        rollout = one_row(margin=margins)
        credit = MarginCredit().assign(rollout, advantages)
        assert torch.equal(credit, UniformCredit().assign(rollout, advantages)) is same


def test_floor_one_is_uniform_credit_bit_for_bit(one_row):
    rollout, advantages = one_row(margin=MARGINS), torch.tensor([0.3])
    assert torch.equal(
        MarginCredit(floor=1.0).assign(rollout, advantages), UniformCredit().assign(rollout, advantages)
    )


def test_entropy_credit_is_margin_credit_with_the_direction_of_the_entropy(one_row):
    entropies = torch.tensor([[0.1, 0.5, 1.0, 1.5, 2.0, 0.0, 3.0, 0.75]])
    rollout = one_row(entropy=entropies, margin=(2 - entropies) / 2)
    advantages = torch.tensor([1.0])
    torch.testing.assert_close(
        EntropyCredit(lo=0.5, hi=1.5).assign(rollout, advantages),
        MarginCredit(lo=0.25, hi=0.75).assign(rollout, advantages),
    )
    # score 0 up to .5, 1 from 1.5 on, .5 at 1 and .25 at .75: u = .2 .2 .6 1 1 .2 1 .4 has mean 4.6 / 8 = .575
    assert EntropyCredit(lo=0.5, hi=1.5).assign(rollout, advantages)[0, 3].item() == pytest.approx(1 / 0.575)


def test_entropy_thresholds_are_those_of_the_margin_thresholds():
    for threshold, margin in ((EntropyCredit().lo, 0.8), (EntropyCredit().hi, 0.2)):
        likely = (1 + margin) / 2
        entropy = torch.special.entr(torch.tensor([likely, 1 - likely])).sum().item()
        assert threshold == pytest.approx(entropy, abs=5e-4)


def test_the_gradient_is_that_of_grpo_times_the_weights(one_row):
    logits = torch.randn(1, 8, 11, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.arange(8)[None, :, None]
    logprobs = logits.log_softmax(-1).gather(2, tokens)[..., 0]
    rollout, advantages = one_row(margin=MARGINS), torch.tensor([1.2])
    plain, weighted = (
        torch.autograd.grad(-(assigner.assign(rollout, advantages) * logprobs).sum(), logits, retain_graph=True)[0]
        for assigner in (UniformCredit(), MarginCredit())
    )
    weights = MarginCredit().assign(rollout, torch.tensor([1.0]))
    torch.testing.assert_close(weighted, weights[..., None] * plain)


def test_diagnostics_count_hesitant_and_certain_tokens(one_row):
    values = MarginCredit().diagnostics(one_row(margin=MARGINS))
    shares = {name: tokens.float().mean().item() for name, tokens in values.items()}
    # scores 0 0 1 0 .5 0 1 0
    assert shares == pytest.approx(
        {"margin": 5.569 / 8, "margin_score": 0.3125, "margin_score_zero": 5 / 8, "margin_score_one": 2 / 8}
    )


def test_settings_are_resolved_to_those_that_have_an_effect():
    resolved = {
        kind: (MarginCredit(spread=kind).floor, MarginCredit(spread=kind).lam)
        for kind in ("ratio", "additive", "pure")
    }
    assert resolved == {"ratio": (0.2, None), "additive": (None, 0.5), "pure": (None, None)}
    assert MarginCredit().formula == (
        "M = p1 - p2; s = ramp from 0 at 0.8 to 1 at 0.2; u = floor + (1 - floor) s; A_t = A u / mean(u)"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lo": 0.8, "hi": 0.2}, r"`lo, hi` must be thresholds with 0 <= lo < hi <= 1, got \(0\.8, 0\.2\)"),
        ({"lo": 0.5, "hi": 0.5}, "0 <= lo < hi"),
        ({"hi": 1.5}, "hi <= 1"),
        ({"lo": float("nan")}, "0 <= lo < hi"),
        ({"floor": 0.0}, r"`floor` must be in \(0, 1\], got 0\.0"),
        ({"spread": "additive", "lam": 1.5}, r"`lam` must be in \(0, 1\], got 1\.5"),
        ({"lam": 0.5}, "`lam` must be left out with spread ratio: it has no effect, got 0.5"),
        ({"spread": "additive", "floor": 0.2}, "`floor` must be left out with spread additive"),
        ({"spread": "pure", "floor": 0.2}, "`floor` must be left out with spread pure"),
        ({"spread": "pure", "lam": 0.2}, "`lam` must be left out with spread pure"),
        ({"score_map": "ramps"}, "`score_map` must be one of ramp, step, got 'ramps'"),
        ({"spread": "sum"}, "`spread` must be one of ratio, additive, pure, got 'sum'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MarginCredit(**settings)


def test_entropy_thresholds_have_no_upper_limit_but_an_order():
    assert EntropyCredit(lo=1.0, hi=8.0).hi == 8.0
    with pytest.raises(ValueError, match="0 <= lo < hi"):
        EntropyCredit(lo=1.0, hi=0.5)
