"""Samples of an engine that rounds otherwise are weighted, in the policy's loss alone."""

import pytest
import torch

from lightning_rlvr.functional.losses import LOSS_TYPES
from lightning_rlvr.objective import Denominators, objective
from lightning_rlvr.pipeline import Scores
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.settings import LossSettings
from lightning_rlvr.types import TokenStatistics
from runs import fit, make_module

MASK = torch.tensor([[True, True, True], [True, False, False]])


def terms(**loss):
    """The loss of two rows, its gradient, and the distance between the log-probs of trainer and engine."""
    g = torch.Generator().manual_seed(0)
    old, engine, reference, entropy = (-torch.rand(2, 3, generator=g) * MASK for _ in range(4))
    new = (old + 0.1 * MASK).requires_grad_()
    scores = Scores(logprobs=new, entropy=-entropy, reference_logprobs=reference, statistics=TokenStatistics())
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    counts = Denominators(num_sequences=2, num_tokens=4)
    result = objective(scores, old, engine, advantages, MASK, LossSettings(**loss), counts, 3)
    return result, torch.autograd.grad(result.total, new)[0], old - engine


@pytest.mark.parametrize("loss_type", LOSS_TYPES.names())
def test_the_weight_multiplies_the_policy_gradient_and_neither_kl_nor_entropy(loss_type):
    weighted, plain = {"loss_type": loss_type, "importance_sampling": "token_truncate"}, {"loss_type": loss_type}
    _, gradient, gap = terms(**plain)
    _, weighted_gradient, _ = terms(**weighted)
    assert gap[0, 0] != 0
    torch.testing.assert_close(weighted_gradient, gap.exp().clamp(max=2.0) * gradient)
    both = {"beta": 0.5, "entropy_coef": 0.5}
    one, with_terms, _ = terms(**plain, **both)
    other, weighted_with_terms, _ = terms(**weighted, **both)
    assert (one.kl, one.entropy) == (other.kl, other.entropy)
    torch.testing.assert_close(weighted_with_terms - weighted_gradient, with_terms - gradient)


class Skewed(HFEngine):
    """Reports log-probs that are 0.5 nats too low or 0.3 too high, by turns."""

    def generate(self, *args):
        drawn = super().generate(*args)
        skew = torch.tensor([-0.5, 0.3]).repeat(drawn.logprobs.shape[1])[: drawn.logprobs.shape[1]]
        return type(drawn)(**(vars(drawn) | {"logprobs": (drawn.logprobs + skew) * drawn.completion_mask}))


@pytest.mark.parametrize("num_iterations", [1, 2], ids=["training_forward", "scoring_pass"])
@pytest.mark.parametrize(
    ("correction", "cap"), [("token_truncate", 1.5), ("sequence_truncate", 2.0), ("sequence_truncate", 1e6)]
)
def test_a_run_is_weighted_by_the_distance_to_its_engine(tmp_path, num_iterations, correction, cap):
    loss = {"importance_sampling": correction, "importance_sampling_cap": cap, "num_iterations": num_iterations}
    module = make_module(loss=loss, rollout={"engine": Skewed()}, optimizer={"learning_rate": 1e-12})
    _, recorder, _ = fit(tmp_path, module=module, max_steps=num_iterations)
    [record], [logged] = recorder.records, recorder.metrics
    losses, weights = [], []
    for mask, advantage in zip(record.rollout.completion_mask, record.advantages.tolist(), strict=True):
        length = int(mask.sum())
        gaps = torch.tensor([0.5, -0.3]).repeat(length)[:length]
        row = (gaps.sum().expand(length) if correction == "sequence_truncate" else gaps).exp().clamp(max=cap)
        losses.append(-advantage * float(row.mean()))
        weights.append(row)
    weights = torch.cat([row for row, forwarded in zip(weights, record.forwarded, strict=True) if forwarded])
    assert logged["loss/policy"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert logged["policy/sampling_weight_mean"] == pytest.approx(float(weights.mean()), rel=1e-4)
    assert logged["policy/sampling_weight_max"] == pytest.approx(float(weights.max()), rel=1e-4)
    assert logged["policy/sampling_weight_capped"] == pytest.approx(float((weights == cap).float().mean()), abs=1e-6)


def test_without_a_correction_nothing_of_it_is_logged_and_the_engines_logprobs_do_not_count(tmp_path):
    runs = [fit(tmp_path, module=make_module(rollout={"engine": engine})) for engine in (Skewed(), HFEngine())]
    skewed, plain = (recorder.metrics[-1] for _, recorder, _ in runs)
    assert skewed["policy/grad_norm"] == plain["policy/grad_norm"]
    assert not any("sampling_weight" in name for name in skewed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"importance_sampling": "truncate"}, "one of token_truncate, sequence_truncate, got 'truncate'"),
        ({"importance_sampling": "token_truncate", "importance_sampling_cap": 0.5}, ">= 1, got 0.5"),
        ({"importance_sampling_cap": 3.0}, "unset without `loss.importance_sampling`, got 3.0"),
    ],
)
def test_corrections_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LossSettings(**settings)
