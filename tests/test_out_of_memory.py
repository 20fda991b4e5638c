"""Running out of memory costs a repetition, and changes nothing else."""

import weakref
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from command_line import fit_error
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.margin import MarginCredit
from lightning_rlvr.memory import fits, is_out_of_memory
from runs import fit, make_module, same_weights


class Scarce(Callback):
    """A machine on which a forward of more than ``most`` padded tokens runs out of memory, or its backward does."""

    def __init__(self, most, where="forward", error=torch.OutOfMemoryError):
        self.most, self.where, self.error, self.refused = most, where, error, 0

    def on_train_start(self, trainer, pl_module):
        policy = pl_module.policy
        score, weights, size = policy.score, policy.trainable_weights, 0

        def scarce_score(**inputs):
            nonlocal size
            size = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
            if self.where == "forward":
                self.check(size)
            return score(**inputs)

        if self.where == "backward":
            weights[len(weights) // 2].register_hook(lambda gradient: self.check(size))
        policy.score = scarce_score

    def check(self, size):
        if size > self.most:
            self.refused += 1
            raise self.error("out of memory (as injected)")


def run(folder, budget=10_000, callbacks=(), credit=None, **loss):
    module = make_module(loss={"max_tokens_per_micro_batch": budget, **loss})
    _, recorder, _ = fit(folder, module=module, credit=credit or MarginCredit(), callbacks=callbacks, max_steps=4)
    return recorder


def untimed(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/") or "flops" in name}


@pytest.mark.parametrize(
    ("where", "loss"),
    [("forward", {}), ("backward", {}), ("forward", {"num_iterations": 2, "beta": 0.1})],
    ids=["forward", "backward", "scoring"],
)
def test_a_retreat_gives_what_smaller_micro_batches_give_from_the_start(tmp_path, where, loss):
    scarce = Scarce(80, where)
    with pytest.warns(UserWarning, match=r"out of memory: .* at most \d+ padded tokens instead of 10000") as warned:
        retreated = run(tmp_path, callbacks=[scarce], **loss)
    budgets = [int(metrics["policy/micro_batch_tokens"]) for metrics in retreated.metrics]
    assert 30 <= budgets[-1] <= 80
    assert len(set(budgets)) == 1, "the smaller budget stays"
    assert sum("out of memory" in str(warning.message) for warning in warned) == scarce.refused < 4
    expected = run(tmp_path, budgets[-1], **loss)
    for ours, theirs in zip(retreated.metrics, expected.metrics, strict=True):
        assert untimed(ours) == untimed(theirs)
    for ours, theirs in zip(retreated.weights, expected.weights, strict=True):
        same_weights(ours, theirs)
    for ours, theirs in zip(retreated.records, expected.records, strict=True):
        assert torch.equal(ours.token_advantages, theirs.token_advantages)
        assert torch.equal(ours.rollout.old_logprobs, theirs.rollout.old_logprobs)


def test_half_of_what_did_not_fit_counts_a_shared_prompt_once(tmp_path):
    class Once(Scarce):
        def check(self, size):
            if not self.refused:
                super().check(size)

    with pytest.warns(UserWarning, match="out of memory"):
        retreated = run(tmp_path, callbacks=[Once(0)], beta=0.1)
    rollout = retreated.records[0].rollout
    (rows, prompt), completion = rollout.prompt_ids.shape, rollout.completion_ids.shape[1]
    assert (rows, len(rollout.group_index.unique())) == (8, 2)
    assert retreated.metrics[0]["policy/micro_batch_tokens"] == (2 * prompt + rows * completion) // 2


def test_a_resumed_run_remembers_the_retreat(tmp_path):
    with pytest.warns(UserWarning, match="out of memory"):
        module, _, folder = fit(tmp_path, module=make_module(), callbacks=[Scarce(80)], max_steps=2)
    checkpoint = Path(folder) / "checkpoints" / "last.ckpt"
    resumed, _, _ = fit(tmp_path, module=make_module(), callbacks=[Scarce(80)], max_steps=4, ckpt_path=checkpoint)
    assert resumed.micro_batch_tokens == module.micro_batch_tokens <= 40
    smaller = make_module(loss={"max_tokens_per_micro_batch": 20})
    fit(tmp_path, module=smaller, max_steps=4, ckpt_path=checkpoint)
    assert smaller.micro_batch_tokens == 20


def test_the_extra_forward_of_a_credit_may_run_out_of_memory_too(tmp_path):
    class Late(Scarce):
        def check(self, size):
            self.forwards = getattr(self, "forwards", 0) + 1
            if self.forwards == 2:
                super().check(size)

    late = Late(0)
    with pytest.warns(UserWarning, match="out of memory"):
        retreated = run(tmp_path, callbacks=[late], credit=EvidenceContrastCredit())
    assert late.refused == 1
    budget = int(retreated.metrics[-1]["policy/micro_batch_tokens"])
    same_weights(retreated.weights[-1], run(tmp_path, budget, credit=EvidenceContrastCredit()).weights[-1])


def test_a_single_row_that_does_not_fit_ends_the_run_in_one_sentence(tmp_path, capsys):
    with pytest.warns(UserWarning, match="out of memory"):
        sentence = fit_error(
            capsys, tmp_path, "--trainer.callbacks+=test_out_of_memory.Scarce", "--trainer.callbacks.most=1"
        )
    assert "out of memory with a single row of" in sentence
    for setting in (
        "loss.max_tokens_per_micro_batch",
        "policy.gradient_checkpointing",
        "rollout.max_completion_length",
    ):
        assert f"`{setting}`" in sentence


def test_other_errors_are_no_reason_to_retreat(tmp_path):
    scarce = Scarce(80, error=RuntimeError)
    with pytest.raises(RuntimeError, match="as injected"):
        run(tmp_path, callbacks=[scarce])
    assert scarce.refused == 1


def test_errors_of_the_allocators_are_told_from_others():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(MemoryError("std::bad_alloc"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_what_did_not_fit_is_freed():
    held = []

    def work():
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError

    assert not fits(work)
    assert held[0]() is None


class FewRows(Callback):
    """A machine on which decoding more than ``most`` rows runs out of memory, once there are ``tokens`` of them."""

    def __init__(self, most, tokens=0):
        self.most, self.tokens = most, tokens

    def on_train_start(self, trainer, pl_module):
        self.seen = []

        def check(module, args, inputs):
            if inputs.get("use_cache"):
                rows, past = len(inputs["input_ids"]), inputs["past_key_values"].get_seq_length()
                self.seen.append(rows)
                if rows > self.most and past >= self.tokens:
                    raise torch.OutOfMemoryError("out of memory (as injected)")

        pl_module.policy.model.register_forward_pre_hook(check, with_kwargs=True)


def test_decoding_goes_on_with_half_the_rows(tmp_path):
    _, plain, _ = fit(tmp_path, max_steps=2)
    few = FewRows(3, tokens=12)
    with pytest.warns(UserWarning, match="the engine decodes 4 instead of 8 rows at a time"):
        _, recorder, _ = fit(tmp_path, max_steps=2, callbacks=[few])
    assert [rows for rows in few.seen if rows > 4].count(8) >= 1
    for ours, theirs in zip(recorder.records, plain.records, strict=True):
        assert torch.equal(ours.rollout.completion_ids, theirs.rollout.completion_ids)
    same_weights(recorder.weights[-1], plain.weights[-1], atol=2e-5, rtol=0)


def test_a_single_row_that_cannot_be_decoded_is_one_sentence(tmp_path):
    with (
        pytest.warns(UserWarning, match="the engine decodes 1 instead of 2 rows"),
        pytest.raises(MemoryError, match=r"a single row was decoded: lower `rollout.max_completion_length`"),
    ):
        fit(tmp_path, callbacks=[FewRows(0)])
