import pytest
import torch

from lightning_rlvr.functional.divergence import approx_kl, k3


def test_k3_golden():
    # d = ref - logp: exp(1) - 1 - 1 and exp(-1) + 1 - 1.
    values = k3(torch.tensor([[-2.0, -1.0, -1.0]]), torch.tensor([[-1.0, -2.0, -1.0]]))
    torch.testing.assert_close(values, torch.tensor([[0.718282, 0.367879, 0.0]]), atol=1e-6, rtol=0)


def test_k3_is_never_negative_even_for_differences_of_one_rounding_unit():
    d = torch.cat([torch.logspace(-45, 2, 2000), -torch.logspace(-45, 2, 2000)])
    assert k3(torch.zeros_like(d), d).min() >= 0


@pytest.mark.parametrize("difference", [200.0, -200.0, float("inf")])
def test_far_reference_leaves_value_gradient_and_weights_finite(difference):
    logprobs = torch.nn.Parameter(torch.tensor([[-1.0]]))
    value = k3(logprobs, torch.tensor([[-1.0 + difference]])).sum()
    value.backward()
    assert value.isfinite()
    assert logprobs.grad.isfinite().all()
    torch.optim.AdamW([logprobs], lr=0.1).step()
    assert logprobs.isfinite().all()


def test_k3_gradient_is_one_minus_the_reference_ratio():
    logprobs = torch.tensor([[-1.0]], requires_grad=True)
    k3(logprobs, torch.tensor([[-2.0]])).sum().backward()
    assert logprobs.grad.item() == pytest.approx(1 - 0.367879, abs=1e-5)


def test_k3_is_an_unbiased_estimate_of_the_divergence():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * k3(p.log(), q.log())).sum(), exact)
    torch.testing.assert_close((p * approx_kl(q.log(), p.log())).sum(), exact)  # tokens come from the old policy


def test_approx_kl_is_for_logs_only_and_zero_on_policy():
    logprobs = torch.tensor([[-1.0, -0.3]], requires_grad=True)
    values = approx_kl(logprobs, logprobs.detach())
    assert values.tolist() == [[0.0, 0.0]]
    assert not values.requires_grad
