"""Evidence contrast credit: worked numbers, bounds, needs and refusals."""

import warnings

import pytest
import torch

from lightning_rlvr.credit.ablation.prompt_mask import PromptMask
from lightning_rlvr.credit.ablation.ref_model import RefModel
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.types import TokenStatistics

LOGPROBS = torch.tensor([[-0.05, -1.2, -0.02, -2.3, -0.7, -0.001, -0.3, -1.0]])
ABLATED = torch.tensor([[-0.06, -3.2, -0.02, -2.1, -0.7, -0.001, -1.5, -1.0]])
DIVIDED = torch.tensor([[1.3022, 1.7900, 0.6970, 0.4475, 0.6970, 0.6970, 1.6721, 0.6970]])
PROJECTED = torch.tensor([[1.2429, 2.0, 0.6653, 0.5, 0.6653, 0.6653, 1.5959, 0.6653]])


@pytest.fixture
def assign(make_rollout):
    def assign(assigner, advantage=1.0, logprobs=LOGPROBS, ablated=ABLATED):
        rollout = make_rollout(
            num_groups=1,
            num_generations=1,
            completion_tokens=logprobs.shape[1],
            old_logprobs=logprobs,
            statistics=TokenStatistics({ablation.statistic: ablated for ablation in assigner.ablations}),
        )
        return assigner.assign(rollout, torch.tensor([advantage]))

    return assign


@pytest.mark.parametrize("advantage", [1.0, -0.5])
@pytest.mark.parametrize(("renorm", "weights"), [("divide", DIVIDED), ("project", PROJECTED)])
def test_credit_of_the_worked_example(assign, renorm, weights, advantage):
    # derivation: see the golden tests of renormalise
    credit = assign(EvidenceContrastCredit(renorm=renorm), advantage)
    torch.testing.assert_close(credit, advantage * weights, atol=1e-4, rtol=0)
    assert credit.sum().item() == pytest.approx(8 * advantage, abs=1e-5)
    assert (credit.sign() == torch.tensor(advantage).sign()).all()


def test_increasing_transforms_of_the_contrast_change_nothing(assign):
    contrasts = LOGPROBS - ABLATED
    credit = assign(EvidenceContrastCredit(), logprobs=contrasts.exp(), ablated=torch.zeros(1, 8))
    assert torch.equal(credit, assign(EvidenceContrastCredit()))


def test_evidence_without_effect_gives_uniform_credit(assign):
    assert torch.equal(assign(EvidenceContrastCredit(), 0.3, ablated=LOGPROBS), torch.full((1, 8), 0.3))


def test_flip_turns_the_ranks_upside_down_for_negative_advantages_only(assign):
    flip = EvidenceContrastCredit(negative="flip")
    assert torch.equal(assign(flip, 1.0), assign(EvidenceContrastCredit(), 1.0))
    mirrored = assign(EvidenceContrastCredit(), -1.0, logprobs=-LOGPROBS, ablated=-ABLATED)
    torch.testing.assert_close(assign(flip, -1.0), mirrored)


def test_token_advantages_are_bounded_by_clip_and_advantage(assign):
    # the largest OT-normal advantage of 8 completions is 1.5341, and 2 * 1.5341 = 3.0682
    for renorm in ("divide", "project"):
        for seed in range(20):
            contrasts = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)).round()
            credit = assign(EvidenceContrastCredit(renorm=renorm), 1.5341, contrasts, torch.zeros(1, 8))
            assert credit.max() <= 3.0682 + 1e-5


def test_abs_gives_most_credit_to_tokens_that_the_evidence_made_unlikely(assign):
    logprobs, ablated = torch.tensor([[-1.0, -4.0, -1.0]]), torch.tensor([[-2.0, -1.0, -1.0]])
    order = {
        statistic: assign(EvidenceContrastCredit(statistic=statistic), 1.0, logprobs, ablated)[0].argsort().tolist()
        for statistic in ("signed", "abs", "k3")
    }
    assert order == {"signed": [1, 2, 0], "abs": [2, 0, 1], "k3": [2, 0, 1]}


def test_ablations_come_by_name_or_as_objects():
    assert EvidenceContrastCredit().ablations == {PromptMask()}
    assert EvidenceContrastCredit("ref_model").ablations == {RefModel()}
    assert EvidenceContrastCredit(PromptMask("?")).ablations == {PromptMask("?")}
    assert not EvidenceContrastCredit().requires
    with pytest.raises(ValueError, match=r"unknown evidence ablation 'image'; choices: .*prompt_mask"):
        EvidenceContrastCredit("image")


def test_a_clip_that_lets_divide_exceed_it_warns():
    for settings in ({"tau": 1.5}, {"clip_high": 1.9}):
        with pytest.warns(UserWarning, match="`clip_high` = .* is below 1"):
            EvidenceContrastCredit(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EvidenceContrastCredit()
        EvidenceContrastCredit(tau=0.5, clip_high=1.5)
        EvidenceContrastCredit(tau=1.5, renorm="project")
        EvidenceContrastCredit(tau=1.5, weight_map="linear")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"statistic": "kl"}, "`statistic` must be one of signed, abs, k3, got 'kl'"),
        ({"weight_map": "sigmoid"}, "`weight_map` must be one of exp, linear, gauss, power"),
        ({"renorm": "softmax"}, "`renorm` must be one of divide, project"),
        ({"negative": "drop"}, "`negative` must be one of same, flip"),
        ({"tau": 0.0}, "`tau` must be positive, got 0.0"),
        ({"clip_low": 0.0}, r"`clip_low, clip_high` must be bounds with .*, got \(0\.0, 2\.0\)"),
        ({"clip_low": 1.1}, "clip_low <= 1"),
        ({"clip_high": 0.9}, "1 <= clip_high"),
        ({"clip_low": 1.0, "clip_high": 1.0}, "not both 1"),
        ({"tie_tol": -1.0}, "`tie_tol` must be at least 0 nats, got -1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EvidenceContrastCredit(**settings)
