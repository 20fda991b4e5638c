"""Completion masks and masked means."""

import torch

from lightning_rlvr.functional.masking import completion_mask, masked_mean


def test_the_first_end_token_belongs_to_the_completion_even_if_it_is_the_padding():
    completion_ids = torch.tensor([[5, 7, 2, 2, 2], [2, 2, 2, 2, 2], [5, 6, 7, 8, 9]])
    mask, truncated = completion_mask(completion_ids, eos_token_ids=[2])
    assert mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert truncated.tolist() == [False, False, True]


def test_an_end_token_in_the_last_column_is_no_truncation():
    mask, truncated = completion_mask(torch.tensor([[5, 6, 2]]), eos_token_ids=[2])
    assert mask.all()
    assert not truncated.any()


def test_every_end_token_ends_a_completion():
    completion_ids = torch.tensor([[5, 9, 2, 0], [5, 2, 9, 0], [5, 6, 7, 0]])
    mask, truncated = completion_mask(completion_ids, eos_token_ids=(2, 9))
    assert mask.sum(1).tolist() == [2, 2, 4]
    assert truncated.tolist() == [False, False, True]
    assert completion_mask(completion_ids, eos_token_ids=())[1].all()


def test_masked_mean_sees_valid_positions_only():
    # (1.0986 + .6931) / 2 = .8959, whatever the padding holds
    values = torch.tensor([[1.0986, 0.6931, torch.nan, torch.inf], [1.0, 1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, False, False], [False, False, False, False]])
    torch.testing.assert_close(masked_mean(values, mask), torch.tensor([0.89585, 0.0]))
    torch.testing.assert_close(masked_mean(values, mask, dim=(0, 1)), torch.tensor(0.89585))


def test_masked_mean_does_not_depend_on_padding():
    values, mask = torch.rand(3, 8), torch.ones(3, 8, dtype=torch.bool)
    padded = torch.nn.functional.pad(values, (0, 56), value=1.0)
    padded_mask = torch.nn.functional.pad(mask, (0, 56))
    torch.testing.assert_close(masked_mean(padded, padded_mask), masked_mean(values, mask))


def test_masked_mean_passes_no_gradient_to_padding():
    values = torch.tensor([[1.0, 2.0, torch.nan]], requires_grad=True)
    masked_mean(values, torch.tensor([[True, True, False]])).sum().backward()
    assert values.grad.tolist() == [[0.5, 0.5, 0.0]]
