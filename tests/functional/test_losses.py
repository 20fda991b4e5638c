import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.divergence import k3
from lightning_rlvr.functional.losses import (
    LOSS_TYPES,
    importance_ratio,
    policy_losses,
    sampling_weights,
    token_weights,
)

SURROGATES = {name: LOSS_TYPES[name].surrogate for name in LOSS_TYPES}
CLIPPED = [name for name, surrogate in SURROGATES.items() if surrogate == "clip"]
MASK = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def token_losses(*arguments, **clip):
    return policy_losses(*arguments, **clip).losses


def batch(seed=0, spread=0.5):
    """Log-probs with gradient, old log-probs and token advantages of one sign in each row."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(MASK.shape, generator=g)
    new = (old + spread * torch.randn(MASK.shape, generator=g)).requires_grad_()
    advantages = torch.tensor([[1.5], [-0.7], [0.4]]).expand(MASK.shape)
    return new, old, advantages


def mean_one(seed=0):
    weights = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(seed)) * MASK
    return weights * MASK.sum(1, keepdim=True) / weights.sum(1, keepdim=True)


def weights_of(loss_type, mask=MASK, *, max_completion_length=5, whole=None):
    whole = mask if whole is None else whole
    return token_weights(
        mask,
        aggregation=LOSS_TYPES[loss_type].aggregation,
        num_sequences=whole.any(1).sum().item(),
        num_tokens=whole.sum().item(),
        max_completion_length=max_completion_length,
    )


def loss_and_gradient(new, old, advantages, loss_type, mask=MASK, **clip):
    loss = (weights_of(loss_type, mask) * token_losses(new, old, advantages, mask, loss_type=loss_type, **clip)).sum()
    return loss.detach(), torch.autograd.grad(loss, new)[0]


# -min(rho A, clip(rho) A) at epsilon .2 / .28, rho = 2, 1/2, 1: A = 1 gives min(2, 1.28), min(.5, .8), 1;
# A = -1 gives min(-2, -1.28), min(-.5, -.8), -1.
def test_clipped_surrogate_golden():
    old = torch.zeros(2, 3)
    new = torch.tensor([[2.0, 0.5, 1.0]] * 2).log()
    advantages, mask = torch.tensor([[1.0], [-1.0]]).expand(2, 3), torch.ones(2, 3, dtype=torch.bool)
    losses = token_losses(new, old, advantages, mask, loss_type="dapo", epsilon=0.2, epsilon_high=0.28)
    torch.testing.assert_close(losses, torch.tensor([[-1.28, -0.5, -1.0], [2.0, 0.8, 1.0]]))


def test_dual_clip_bounds_losses_of_negative_advantages_only():
    old, new = torch.zeros(1, 2), torch.tensor([[8.0, 8.0]]).log()
    advantages, mask = torch.tensor([[-2.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    losses = token_losses(new, old, advantages, mask, loss_type="grpo", delta=3.0)
    torch.testing.assert_close(losses, torch.tensor([[6.0, -2.4]]))


def test_cispo_is_the_policy_gradient_with_a_ratio_bounded_above():
    # -sg[min(rho, 1.2)] A logp with rho = 2 and 1/4: the gradient is -1.2 A and -A / 4, for either sign of A.
    new = torch.tensor([[2.0, 0.25]]).log().requires_grad_()
    losses = token_losses(
        new, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool), loss_type="cispo"
    )
    torch.testing.assert_close(losses.detach(), torch.tensor([[1.2 * math.log(2), 0.25 * math.log(4)]]))
    assert torch.autograd.grad(losses.sum(), new)[0][0].tolist() == pytest.approx([1.2, -0.25])


def test_gspo_token_has_the_sequence_value_and_the_token_gradient():
    new, old, _ = batch()
    ratio = importance_ratio(new, old, MASK, ratio="gspo_token")
    for row in range(3):
        valid = MASK[row]
        sequence = (new[row] - old[row])[valid].mean().exp().item()
        assert ratio[row][valid].tolist() == pytest.approx([sequence] * int(valid.sum()), rel=1e-5)
    gradient = torch.autograd.grad(ratio[1, 2], new)[0]
    assert gradient[1, 2].item() == pytest.approx(ratio[1, 2].item(), rel=1e-5)
    assert gradient.count_nonzero() == 1


@pytest.mark.parametrize("loss_type", CLIPPED)
def test_loss_value_on_policy_is_the_same_under_any_mean_one_weights(loss_type):
    new, _, advantages = batch()
    old = new.detach()
    plain, plain_gradient = loss_and_gradient(new, old, advantages, loss_type)
    weighted, weighted_gradient = loss_and_gradient(new, old, advantages * mean_one(), loss_type)
    torch.testing.assert_close(weighted, plain)
    assert not torch.allclose(weighted_gradient, plain_gradient)


@pytest.mark.parametrize("loss_type", list(SURROGATES))
@given(seed=st.integers(0, 1000), delta=st.sampled_from([None, 1.5]))
@settings(max_examples=15, deadline=None)
def test_weighting_the_advantage_is_weighting_the_loss(loss_type, seed, delta):
    new, old, advantages = batch(seed)
    delta = delta if SURROGATES[loss_type] == "clip" else None
    weights = mean_one(seed)
    losses = token_losses(new, old, advantages, MASK, loss_type=loss_type, delta=delta)
    weighted = token_losses(new, old, weights * advantages, MASK, loss_type=loss_type, delta=delta)
    torch.testing.assert_close(weighted, weights * losses)
    _, *plain = policy_losses(new, old, advantages, MASK, loss_type=loss_type)
    _, *clipped = policy_losses(new, old, (weights + 0.1) * advantages, MASK, loss_type=loss_type)
    assert all(one.equal(other) for one, other in zip(plain, clipped, strict=True))


def test_token_credit_cancels_under_a_sequence_ratio_and_not_under_gspo_token():
    new, old, advantages = batch(spread=0.05)  # inside the clip range

    def sequence_level(token_advantages):
        log_ratio = (torch.where(MASK, new - old, 0.0).sum(1, keepdim=True)) / MASK.sum(1, keepdim=True)
        loss = (weights_of("gspo_token") * -log_ratio.exp() * token_advantages).sum()
        return loss.detach(), torch.autograd.grad(loss, new)[0]

    credit = advantages * mean_one()
    for weighted, plain in zip(sequence_level(credit), sequence_level(advantages), strict=True):
        torch.testing.assert_close(weighted, plain)
    value, gradient = loss_and_gradient(new, old, advantages, "gspo_token")
    torch.testing.assert_close(value, sequence_level(advantages)[0])
    torch.testing.assert_close(gradient, sequence_level(advantages)[1])
    weighted_value, weighted_gradient = loss_and_gradient(new, old, credit, "gspo_token")
    torch.testing.assert_close(weighted_value, value)
    assert not torch.allclose(weighted_gradient, gradient, rtol=1e-2)


@pytest.mark.parametrize("loss_type", list(SURROGATES))
@pytest.mark.parametrize("difference", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_log_ratio_of_two_hundred_leaves_loss_and_gradient_finite(loss_type, difference, advantage):
    old = torch.full(MASK.shape, -201.0)
    new = (old + difference * (torch.arange(5) == 0)).requires_grad_()
    for value in loss_and_gradient(new, old, torch.full(MASK.shape, advantage), loss_type):
        assert value.isfinite().all()


@pytest.mark.parametrize("loss_type", list(SURROGATES))
def test_positions_outside_the_mask_have_no_loss_and_no_gradient(loss_type):
    new, old, advantages = batch()
    poisoned = torch.where(MASK, new.detach(), torch.nan).requires_grad_()
    losses = token_losses(poisoned, old, advantages, MASK, loss_type=loss_type)
    assert losses[~MASK].tolist() == [0.0] * int((~MASK).sum())
    gradient = torch.autograd.grad(losses.sum(), poisoned)[0]
    assert gradient[~MASK].tolist() == [0.0] * int((~MASK).sum())
    assert gradient[MASK].isfinite().all()
    assert losses.dtype == torch.float32


def test_zero_loss_value_still_trains():
    # On policy with centered advantages and equal lengths the surrogate is 0 and its gradient is not.
    mask, old = torch.ones(4, 3, dtype=torch.bool), torch.full((4, 3), -1.0)
    new, advantages = old.clone().requires_grad_(), torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]]).expand(4, 3)
    loss, gradient = loss_and_gradient(new, old, advantages, "grpo", mask)
    assert abs(loss) < 1e-6
    assert gradient.norm() > 0


def test_clips_golden():
    old, mask = torch.zeros(1, 5), torch.tensor([[True, True, True, True, False]])
    new = torch.tensor([[2.0, 2.0, 0.5, 0.5, 2.0]]).log()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    _, low, high, ratio = policy_losses(new, old, advantages, mask, loss_type="grpo")
    assert high.tolist() == [[True, False, False, False, False]]
    assert low.tolist() == [[False, False, False, True, False]]
    torch.testing.assert_close(ratio, torch.tensor([[2.0, 2.0, 0.5, 0.5, 1.0]]))
    sequence = policy_losses(new + 1, old, advantages, mask, loss_type="gspo_token")
    assert sequence.ratio[0, 3:].tolist() == pytest.approx([math.e, 1])  # the valid log-ratios have mean 1
    _, low, high, _ = policy_losses(new, old, advantages, mask, loss_type="cispo")
    assert high.tolist() == [[True, True, False, False, False]]
    assert not low.any()


@pytest.mark.parametrize("loss_type", CLIPPED)
def test_clips_mark_the_tokens_whose_gradient_the_clip_removed(loss_type):
    new, old, advantages = batch(3)
    _, low, high, _ = policy_losses(new, old, advantages, MASK, loss_type=loss_type)
    gradient = torch.autograd.grad(token_losses(new, old, advantages, MASK, loss_type=loss_type).sum(), new)[0]
    assert (low | high).any()
    assert (low | high).equal(MASK & (gradient == 0))


# Token losses (1, 1) and (3, 3, 3, 3): mean of means (1 + 3) / 2, token mean 14 / 6, constant length C: 14 / (2 C).
@pytest.mark.parametrize(
    ("loss_type", "max_completion_length", "expected"),
    [
        ("grpo", 4, 2.0),
        ("gspo_token", 4, 2.0),
        ("dapo", 4, 14 / 6),
        ("bnpo", 4, 14 / 6),
        ("cispo", 4, 14 / 6),
        ("dr_grpo", 4, 1.75),
        ("dr_grpo", 1, 7.0),
    ],
)
def test_aggregation_golden(loss_type, max_completion_length, expected):
    losses = torch.tensor([[1.0, 1, 0, 0], [3, 3, 3, 3]])
    weights = weights_of(loss_type, losses > 0, max_completion_length=max_completion_length)
    assert (weights * losses).sum().item() == pytest.approx(expected)


def test_constant_length_mean_does_not_grow_with_the_batch():
    losses = torch.tensor([[2.0, 2, 2], [1, 1, 0]])  # sums 6 and 2 over horizon 8
    for repeats in (1, 2):
        rows = losses.repeat(repeats, 1)
        assert (weights_of("dr_grpo", rows > 0, max_completion_length=8) * rows).sum().item() == pytest.approx(0.5)


def test_token_mean_of_every_optimizer_step_is_one_for_token_losses_of_one():
    # A rollout of 4 micro-batches of 10 tokens in 2 optimizer steps: tokens of the rollout over the number of steps.
    mask = torch.ones(2, 5, dtype=torch.bool)
    counts = {"num_sequences": 4, "num_tokens": 40 / 2, "max_completion_length": 5}
    step = sum(token_weights(mask, aggregation="token_mean", **counts).sum() for _ in range(2))
    assert step.item() == pytest.approx(1.0)


def test_ranks_share_one_denominator():
    losses = [torch.ones(1, 4), torch.zeros(1, 12)]
    counts = {"num_sequences": 2, "num_tokens": 16, "max_completion_length": 12}
    weights = [token_weights(torch.ones_like(x).bool(), aggregation="token_mean", **counts) for x in losses]
    assert sum((w * x).sum().item() for w, x in zip(weights, losses, strict=True)) == pytest.approx(0.25)


@pytest.mark.parametrize("loss_type", list(SURROGATES))
@pytest.mark.parametrize("cut", [1, 2])
def test_micro_batches_add_up_to_the_whole(loss_type, cut):
    new, old, advantages = batch()
    whole, whole_gradient = loss_and_gradient(new, old, advantages, loss_type)
    total = 0
    for rows in (slice(None, cut), slice(cut, None)):
        tokens = int(MASK[rows].sum(1).max())  # a micro-batch is padded to its own longest row
        part = (rows, slice(tokens))
        losses = token_losses(new[part], old[part], advantages[part], MASK[part], loss_type=loss_type)
        total = total + (weights_of(loss_type, MASK[part], whole=MASK) * losses).sum()
    torch.testing.assert_close(total.detach(), whole)
    torch.testing.assert_close(torch.autograd.grad(total, new)[0], whole_gradient)


@pytest.mark.parametrize("loss_type", list(SURROGATES))
def test_row_without_valid_tokens_weighs_nothing_in_loss_and_divergence(loss_type):
    new, old, advantages = batch()
    masked = MASK & torch.tensor([[True], [False], [True]])  # row 1 was truncated and is masked out
    kept = [0, 2]
    weights = weights_of(loss_type, masked)
    assert weights[1].tolist() == [0.0] * 5
    for values in (token_losses(new, old, advantages, masked, loss_type=loss_type), k3(new, old)):
        without = (weights_of(loss_type, masked[kept]) * values[kept]).sum()
        torch.testing.assert_close((weights * values).sum(), without)


@pytest.mark.parametrize("loss_type", list(SURROGATES))
def test_batch_without_valid_tokens_has_loss_zero(loss_type):
    new, old, advantages = batch()
    loss, gradient = loss_and_gradient(new, old, advantages, loss_type, torch.zeros_like(MASK))
    assert loss == 0
    assert gradient.tolist() == torch.zeros(MASK.shape).tolist()


def test_unknown_loss_type_names_the_choices():
    with pytest.raises(ValueError, match=r"unknown loss type 'ppo'; choices: bnpo, cispo, dapo, dr_grpo, grpo"):
        policy_losses(*batch(), MASK, loss_type="ppo")


CORRECTIONS = ("token_truncate", "sequence_truncate")


def sampled(seed=0, spread=0.5):
    own, engine, _ = batch(seed, spread)
    return own.detach(), engine


# Ratios 2, 4, 1/2, 1 of which the last is masked: each token alone, capped at 3; or their product 4 for all, capped.
@pytest.mark.parametrize(
    ("correction", "cap", "expected"),
    [
        ("token_truncate", 3.0, [2, 3, 0.5, 1]),
        ("token_truncate", 1.0, [1, 1, 0.5, 1]),
        ("sequence_truncate", 3.0, [3, 3, 3, 1]),
        ("sequence_truncate", 5.0, [4, 4, 4, 1]),
    ],
)
def test_sampling_weights_golden(correction, cap, expected):
    own, engine = torch.tensor([[0.5, 0.8, 0.2, 0.9]]).log(), torch.tensor([[0.25, 0.2, 0.4, 0.1]]).log()
    weights = sampling_weights(own, engine, torch.tensor([[True, True, True, False]]), correction=correction, cap=cap)
    assert weights[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_sampling_weights_are_those_of_a_loop(seed):
    own, engine = sampled(seed)
    for correction in CORRECTIONS:
        weights = sampling_weights(own, engine, MASK, correction=correction, cap=1.2)
        for i, row in enumerate(MASK):
            ratios = [math.exp(own[i, t] - engine[i, t]) for t in range(5) if row[t]]
            whole = [math.prod(ratios)] * len(ratios) if correction == "sequence_truncate" else ratios
            assert weights[i][row].tolist() == pytest.approx([min(w, 1.2) for w in whole], rel=1e-5)
        assert (weights[~MASK] == 1).all()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_equal_logprobs_weigh_exactly_one_and_masked_ones_do_not_count(correction):
    own, _ = sampled()
    engine = torch.where(MASK, own, torch.nan)
    assert (sampling_weights(own, engine, MASK, correction=correction, cap=1.0) == 1).all()


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("difference", [200.0, -200.0])
def test_sampling_weights_stay_in_their_range_and_carry_no_gradient(correction, difference):
    own, engine, _ = batch()
    weights = sampling_weights(own + difference, engine, MASK, correction=correction, cap=2.0)
    assert not weights.requires_grad
    assert weights[MASK].tolist() == pytest.approx([2.0 if difference > 0 else 0.0] * int(MASK.sum()))
