import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_rlvr.functional.statistics import TOKEN_STATISTICS
from lightning_rlvr.policy.scoring import token_scores

HEADS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "scale": 0.25},
    {"temperature": 1.3, "softcap": 2.0, "scale": 1.5},
]


def head_inputs(seed=0, n=11, d=6, v=37, dtype=torch.float32, bias=True):
    g = torch.Generator().manual_seed(seed)
    hidden, weight = torch.randn(n, d, generator=g).to(dtype), torch.randn(v, d, generator=g).to(dtype)
    return hidden, weight, torch.randn(v, generator=g).to(dtype) if bias else None, torch.randint(v, (n,), generator=g)


def plain_scores(hidden, weight, bias, targets, temperature, scale=1.0, softcap=None):
    logits = F.linear(hidden, weight, bias) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1), logprobs


def gradients(outputs, inputs):
    loss = sum((torch.linspace(-1, 1, len(out), dtype=out.dtype) * out).sum() for out in outputs)
    return torch.autograd.grad(loss, inputs)


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation allocates."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("entropy", [False, True])
def test_values_and_gradients_are_those_of_the_plain_computation(head, chunk, entropy):
    *inputs, targets = head_inputs()
    inputs = [tensor.requires_grad_() for tensor in inputs]
    scores = token_scores(*inputs, targets, **head, entropy=entropy, chunk=chunk)
    logprobs, entropies, _ = plain_scores(*inputs, targets, **head)
    outputs, expected = [scores.logprobs], [logprobs]
    if entropy:
        outputs, expected = [*outputs, scores.entropy], [*expected, entropies]
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(gradients(outputs, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_gradients_agree_with_finite_differences(head, outputs):
    *inputs, targets = head_inputs(n=5, d=3, v=7, dtype=torch.float64)

    def chosen_scores(*tensors):
        scores = token_scores(*tensors, targets, **head, entropy=True, chunk=2)
        return tuple(scores[i] for i in outputs)

    assert torch.autograd.gradcheck(chosen_scores, [tensor.requires_grad_() for tensor in inputs])


def test_bfloat16_gradients_differ_from_float32_by_rounding_only():
    hidden, weight, _, targets = head_inputs(n=32, d=64, v=512, dtype=torch.bfloat16, bias=False)
    hidden.requires_grad_()
    exact = hidden.detach().float().requires_grad_()
    scores = token_scores(hidden, weight, None, targets, temperature=2.0, entropy=True, chunk=8)
    expected = token_scores(exact, weight.float(), None, targets, temperature=2.0, entropy=True)
    assert scores.logprobs.dtype == scores.entropy.dtype == torch.float32
    torch.testing.assert_close(scores.logprobs, expected.logprobs, atol=0.05, rtol=0.01)
    (grad,), (exact_grad,) = gradients(scores[:2], [hidden]), gradients(expected[:2], [exact])
    assert grad.dtype == torch.bfloat16
    assert (grad - exact_grad).norm() < 0.02 * exact_grad.norm()


def test_statistics_come_from_the_temperature_scaled_distribution_and_carry_no_gradient():
    hidden, *rest = head_inputs()
    hidden.requires_grad_()
    names = TOKEN_STATISTICS.names()
    scores = token_scores(hidden, *rest, temperature=0.6, statistics=names, chunk=4)
    _, _, logprobs = plain_scores(hidden, *rest, temperature=0.6)
    assert tuple(scores.statistics) == names
    for name, values in scores.statistics.items():
        assert not values.requires_grad
        torch.testing.assert_close(values, TOKEN_STATISTICS[name](logprobs.detach()))


def test_undeclared_statistics_are_never_computed(monkeypatch):
    def refuse(logprobs):
        raise AssertionError("computed")

    monkeypatch.setitem(TOKEN_STATISTICS._plugins, "refused", refuse)
    token_scores(*head_inputs(), temperature=1.0, statistics=["margin"])
    with pytest.raises(AssertionError, match="computed"):
        token_scores(*head_inputs(), temperature=1.0, statistics=["refused"])


def test_unknown_statistics_are_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"'sharpness'; choices: .*margin"):
        token_scores(*head_inputs(n=0), temperature=1.0, statistics=["sharpness"])


def test_no_tensor_is_larger_than_a_chunk_of_logits():  # ME-01
    n, chunk, v = 64, 4, 101
    hidden, weight, bias, targets = head_inputs(n=n, d=6, v=v)
    hidden.requires_grad_()
    with LargestTensor() as largest:
        scores = token_scores(
            hidden,
            weight,
            bias,
            targets,
            temperature=0.9,
            entropy=True,
            statistics=TOKEN_STATISTICS.names(),
            chunk=chunk,
        )
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert largest.numel == chunk * v
    with LargestTensor() as largest:
        plain_scores(hidden, weight, bias, targets, temperature=0.9)
    assert largest.numel == n * v


def test_frozen_weights_get_no_gradient():
    hidden, weight, bias, targets = head_inputs()
    hidden.requires_grad_()
    with LargestTensor() as largest:
        token_scores(hidden, weight, bias, targets, temperature=1.0, chunk=1).logprobs.sum().backward()
    assert hidden.grad is not None
    assert largest.numel < weight.numel()


def test_nothing_is_kept_for_a_backward_that_cannot_come():
    hidden, *rest = head_inputs()
    hidden.requires_grad_()
    with torch.no_grad():
        scores = token_scores(hidden, *rest, temperature=1.0, entropy=True)
    assert scores.logprobs.grad_fn is None
    assert scores.entropy.grad_fn is None


def test_no_rows_give_no_scores_and_zero_gradient():
    hidden, weight, bias, targets = head_inputs(n=0)
    weight.requires_grad_(), hidden.requires_grad_()
    scores = token_scores(hidden, weight, bias, targets, temperature=1.0, statistics=["margin"])
    scores.logprobs.sum().backward()
    assert scores.logprobs.shape == scores.statistics["margin"].shape == (0,)
    assert not weight.grad.any()


def test_second_derivatives_are_refused():
    hidden, *rest = head_inputs()
    logprobs = token_scores(hidden.requires_grad_(), *rest, temperature=1.0).logprobs
    (grad,) = torch.autograd.grad(logprobs.square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.1429), (1.0, -0.4076), (2.0, -0.6803)])
def test_logprobs_are_those_of_the_logits_divided_by_the_temperature(temperature, expected):  # LP-01
    # -log(1 + exp(-1/T) + exp(-2/T)) for the logits 2, 1, 0
    scores = token_scores(
        torch.tensor([[2.0, 1.0, 0.0]]), torch.eye(3), None, torch.tensor([0]), temperature=temperature
    )
    assert scores.logprobs.item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_temperatures_near_zero_give_finite_scores(dtype):  # LP-13
    hidden = torch.tensor([[30.0, 29.0, -5.0]], dtype=dtype).expand(3, -1).requires_grad_()
    scores = token_scores(
        hidden, torch.eye(3, dtype=dtype), None, torch.arange(3), temperature=1e-6, entropy=True, statistics=["margin"]
    )
    # differences of the logits, times a million
    torch.testing.assert_close(scores.logprobs, torch.tensor([0.0, -1e6, -35e6]))
    assert scores.statistics["margin"].tolist() == [1, 1, 1]
    assert scores.entropy.tolist() == [0, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperatures_that_are_not_positive_are_refused(temperature):  # LP-13
    with pytest.raises(ValueError, match=r"`temperature` must be positive, got (0.0|-1.0|nan)"):
        token_scores(*head_inputs(), temperature=temperature)
