"""Prompt mask and reference model: what becomes of a prompt."""

import pytest
import torch

from lightning_rlvr.credit.ablation.base import EVIDENCE_ABLATIONS
from lightning_rlvr.credit.ablation.prompt_mask import PromptMask
from lightning_rlvr.credit.ablation.ref_model import RefModel

PAD = 0
# two template tokens (1, 2), the problem, one template token (3); the last row has no evidence
PROMPTS = [[1, 2, 51, 52, 53, 54, 3], [PAD, PAD, 1, 2, 51, 52, 3], [PAD, PAD, PAD, PAD, 1, 2, 3]]
EVIDENCE = [[0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]]


@pytest.fixture
def rollout(make_rollout):
    prompt_ids = torch.tensor(PROMPTS)
    return make_rollout(
        num_groups=3,
        num_generations=1,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_ids != PAD,
        evidence_mask=torch.tensor(EVIDENCE, dtype=torch.bool),
        model_inputs={"pixel_values": (torch.zeros(1),) * 3},
    )


def letters(text):
    return [ord(letter) for letter in text]


@pytest.mark.parametrize(
    ("placeholder", "expected"),
    [
        ("az", [[1, 2, 97, 122, 3], [1, 2, 97, 122, 3], [PAD, PAD, 1, 2, 3]]),
        ("", [[1, 2, 3], [1, 2, 3], [1, 2, 3]]),
        ("edcba", [[1, 2, 101, 100, 99, 98, 97, 3]] * 2 + [[PAD, PAD, PAD, PAD, PAD, 1, 2, 3]]),
    ],
)
def test_the_placeholder_stands_where_the_problem_stood(rollout, placeholder, expected):
    ablated = PromptMask(placeholder).ablate(rollout, letters, PAD)
    assert ablated.prompt_ids.tolist() == expected
    assert torch.equal(ablated.prompt_mask, torch.tensor(expected) != PAD)
    assert ablated.prompt_ids.dtype == torch.int64
    assert ablated.prompt_mask.dtype == torch.bool
    assert ablated.model_inputs is rollout.model_inputs


def test_ablating_leaves_the_rollout_alone(rollout):
    PromptMask().ablate(rollout, letters, PAD)
    assert rollout.prompt_ids.tolist() == PROMPTS


def test_padding_is_left_of_the_prompt_whatever_its_id(rollout):
    ablated = PromptMask("a").ablate(rollout, letters, pad_id=3)
    assert ablated.prompt_ids[2].tolist() == [3, 1, 2, 3]
    assert ablated.prompt_mask[2].tolist() == [False, True, True, True]


def test_evidence_at_either_end_of_the_prompt(make_rollout):
    prompt_ids = torch.tensor([[51, 52, 3], [1, 51, 52], [51, 52, 53]])
    rollout = make_rollout(
        num_groups=3,
        num_generations=1,
        prompt_ids=prompt_ids,
        prompt_mask=torch.ones(3, 3, dtype=torch.bool),
        evidence_mask=prompt_ids > 50,
    )
    ablated = PromptMask("a").ablate(rollout, letters, PAD)
    assert ablated.prompt_ids.tolist() == [[97, 3], [1, 97], [PAD, 97]]


@pytest.mark.parametrize("seed", range(10))
def test_prompt_mask_equals_the_loop_over_rows(make_rollout, seed):
    rollout = make_rollout(seed, prompt_tokens=9)
    ablated = PromptMask("ab").ablate(rollout, letters, PAD)
    for i in range(len(rollout)):
        expected, replaced = [], False
        for token, valid, evidence in zip(
            rollout.prompt_ids[i].tolist(), rollout.prompt_mask[i], rollout.evidence_mask[i], strict=True
        ):
            if evidence and not replaced:
                expected += letters("ab")
                replaced = True
            elif valid and not evidence:
                expected.append(token)
        assert ablated.prompt_ids[i][ablated.prompt_mask[i]].tolist() == expected
        assert ablated.prompt_mask[i].int().diff().min() >= 0


def test_ref_model_keeps_the_prompt_and_asks_for_the_reference(rollout):
    ablated = RefModel().ablate(rollout, letters, PAD)
    assert ablated.prompt_ids is rollout.prompt_ids
    assert ablated.prompt_mask is rollout.prompt_mask
    assert RefModel.reference
    assert not PromptMask.reference


def test_equal_ablations_share_one_forward():
    assert {PromptMask(), PromptMask(), RefModel(), RefModel()} == {PromptMask(), RefModel()}
    assert len({ablation.statistic for ablation in (PromptMask(), PromptMask("?"), RefModel())}) == 3
    assert EVIDENCE_ABLATIONS["prompt_mask"] is PromptMask
    assert EVIDENCE_ABLATIONS["ref_model"] is RefModel
