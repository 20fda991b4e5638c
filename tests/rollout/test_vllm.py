"""The engine with the real vLLM, beside the trainer's model."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import SMALL, TINY, error, fit
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings
from lightning_rlvr.rollout.base import ENGINES, Sampling
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.rollout.vllm import VLLMEngine
from lightning_rlvr.types import PromptBatch
from runs import scalars

installed = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")
ENGINE = ["--model.rollout.engine=VLLMEngine", "--model.rollout.engine.kv_cache_gib=0.1"]


def move(policy, seed):
    """Other weights, and the adapter that leads back."""
    before = {name: weight.clone() for name, weight in policy.trainable_state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    for weight in policy.trainable_state_dict().values():
        weight += torch.randn(weight.shape, generator=generator) * 0.05
    return before


def make_policy(lora=True):
    with torch.random.fork_rng():
        policy = load_policy(
            PolicySettings(name_or_path="tiny_untrained", lora=LoraSettings(rank=4) if lora else None)
        )
    move(policy, 0)
    return policy


@pytest.fixture(scope="module")
def policy():
    return make_policy()


def surroundings():
    """What of the process an engine must leave alone."""
    return {
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "threads": (torch.get_num_threads(), torch.set_num_threads),
        "dtype": torch.get_default_dtype(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folders": [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(("tmp", "vllm"))],
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TORCHINDUCTOR_"))},
    }


@pytest.fixture(scope="module")
def built(policy, tmp_path_factory):
    """The engine, and its surroundings before and after it was built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        engine, before = VLLMEngine(kv_cache_gib=0.1), surroundings()
        engine.sync(policy)
        return engine, before, surroundings()


@pytest.fixture
def engine(built, policy):
    built[0].sync(policy)
    return built[0]


def make_prompts(lengths=(3, 200, 6)):
    """Of the longest, vLLM keeps the first 128 tokens from batch to batch."""
    n, p = len(lengths), max(lengths)
    mask = torch.arange(p).flip(0) < torch.tensor(lengths)[:, None]
    ids = torch.randint(6, 40, (n, p), generator=torch.Generator().manual_seed(1)) * mask
    return PromptBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        evidence_mask=mask,
        task_id=torch.zeros(n, dtype=torch.int64),
        task_names=("task",),
        problem_ids=("problem",) * n,
        prompts=("prompt",) * n,
        columns=({},) * n,
    )


PROMPTS = make_prompts()
INDEX = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1])


def generate(engine, policy, seeds=None, temperature=1.0, budget=40, **arguments):
    seeds = torch.arange(len(INDEX)) if seeds is None else torch.as_tensor(seeds)
    sampling = Sampling(temperature=temperature, max_completion_length=budget)
    return engine.generate(policy, PROMPTS, INDEX, seeds, sampling, **arguments)


@torch.no_grad()
def scored(policy, completions, temperature=1.0):
    return policy.score(
        prompt_ids=PROMPTS.prompt_ids[INDEX],
        prompt_mask=PROMPTS.prompt_mask[INDEX],
        completion_ids=completions.completion_ids,
        completion_mask=completions.completion_mask,
        temperature=temperature,
    ).logprobs


def same(a, b):
    return a.completion_ids.shape == b.completion_ids.shape and torch.equal(a.completion_ids, b.completion_ids)


@installed
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_those_of_the_trainer_at_the_sampling_temperature(engine, policy, temperature):  # LP-03, LP-11
    drawn = generate(engine, policy, temperature=temperature)
    torch.testing.assert_close(drawn.logprobs, scored(policy, drawn, temperature), atol=1e-4, rtol=0)
    assert not drawn.logprobs[~drawn.completion_mask].any()


@installed
def test_greedy_tokens_are_those_of_the_hf_engine(engine, policy):
    ours, theirs = generate(engine, policy, temperature=0), generate(HFEngine(), policy, temperature=0)
    assert same(ours, theirs)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-4, rtol=0)


@installed
def test_weights_move_with_the_trainers_and_back(engine, policy):
    """Neither old weights nor what they made of a prompt are left; the trainer's base weights stay, bit for bit."""
    base = {name: weight.clone() for name, weight in policy.model.named_parameters() if not weight.requires_grad}
    first = generate(engine, policy)
    before = move(policy, 1)
    engine.sync(policy)
    moved = generate(engine, policy)
    torch.testing.assert_close(moved.logprobs, scored(policy, moved), atol=1e-4, rtol=0)
    assert (scored(policy, first) - first.logprobs).abs().max() > 0.1
    policy.load_trainable_state_dict(before)
    engine.sync(policy)
    again = generate(engine, policy)
    assert same(again, first)
    assert torch.equal(again.logprobs, first.logprobs)
    assert all(torch.equal(weight, base[name]) for name, weight in policy.model.named_parameters() if name in base)


@installed
def test_unchanged_weights_are_not_brought_over_again(engine, policy, monkeypatch):
    pushes = []
    push = engine._push
    monkeypatch.setattr(engine, "_push", lambda policy, there: (pushes.append(1), push(policy, there)))
    engine.sync(policy)
    assert not pushes
    before = move(policy, 2)
    engine.sync(policy)
    engine.sync(policy)
    assert len(pushes) == 1
    policy.load_trainable_state_dict(before)


@installed
def test_same_seeds_same_tokens(engine, policy):
    seeds = torch.tensor([0, 1, -1, 2**63 - 2, -(2**62), 5, 6, 6])
    first, again, other = (generate(engine, policy, seeds=s) for s in (seeds, seeds, seeds + 1))
    assert same(first, again)
    rows = [ids[mask].tolist() for ids, mask in zip(first.completion_ids, first.completion_mask, strict=True)]
    assert rows[6] == rows[7]  # same prompt, same seed
    assert rows[1] != rows[3]
    assert not same(first, other)
    assert torch.equal(first.seeds, seeds)


@installed
def test_an_interrupted_rollout_leaves_nothing_to_the_next(engine, policy):
    def interrupt(rows, ids):
        raise KeyboardInterrupt

    before = generate(engine, policy, budget=60)
    with pytest.raises(KeyboardInterrupt):
        generate(engine, policy, budget=60, seeds=torch.arange(8) + 100, finished=interrupt)
    assert same(generate(engine, policy, budget=60), before)


@installed
def test_a_push_that_failed_is_made_up_for(engine, policy, monkeypatch):
    """Also where the weights are by then those of before it: half of the new ones may be there."""
    first, before = generate(engine, policy), move(policy, 4)
    with monkeypatch.context() as patch:
        patch.setattr(engine._llm, "reset_prefix_cache", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.sync(policy)
    policy.load_trainable_state_dict(before)
    engine.sync(policy)
    assert same(generate(engine, policy), first)


@installed
def test_a_first_push_that_failed_is_made_up_for(policy, monkeypatch, engine):
    late = VLLMEngine(kv_cache_gib=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(late, "_push", lambda policy, there: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            late.sync(policy)
    monkeypatch.setattr(late._llm, "wake_up", lambda: pytest.fail("it never slept"))
    late.sync(policy)
    assert same(generate(late, policy), generate(engine, policy))


@installed
def test_a_completion_ends_with_its_first_end_token_or_is_truncated(engine, policy, monkeypatch):
    scheduler = engine._llm.llm_engine.engine_core.engine_core.scheduler
    monkeypatch.setattr(scheduler, "max_num_active_reqs", 3)  # so some rows are truncated before others begin
    told = {}

    def finished(rows, ids):
        assert not told.keys() & set(rows), "each once at most"
        told.update(zip(rows, map(list, ids), strict=True))

    drawn = generate(engine, policy, budget=100, finished=finished)
    for row, (ids, mask) in enumerate(zip(drawn.completion_ids, drawn.completion_mask, strict=True)):
        tokens = ids[mask].tolist()
        ends = [token in policy.eos_token_ids for token in tokens]
        assert not any(ends[:-1])
        assert ends[-1] != drawn.truncated[row]
        assert not drawn.truncated[row] or len(tokens) == 100
        assert told.get(row, tokens) == tokens
        assert not (drawn.truncated[row] and row in told)
    assert 0 < drawn.truncated.sum() < len(INDEX), "both kinds occur"
    assert told


@installed
def test_the_process_is_left_as_it_was(built):
    _, before, after = built
    for name, value in before.items():
        assert after[name] == value, name


@installed
def test_an_adapter_beside_the_weights_samples_as_one_folded_in(engine, policy):
    beside = VLLMEngine(lora="adapter", kv_cache_gib=0.1)
    beside.sync(policy)
    assert same(generate(beside, policy, temperature=0), generate(engine, policy, temperature=0))
    before = move(policy, 3)
    beside.sync(policy)
    drawn = generate(beside, policy)
    policy_logprobs = scored(policy, drawn)
    policy.load_trainable_state_dict(before)
    torch.testing.assert_close(drawn.logprobs, policy_logprobs, atol=1e-4, rtol=0)


@installed
def test_what_cannot_work_is_refused(engine, policy):
    with pytest.raises(ValueError, match=r"must fit into `max_model_len` .* 512 tokens, got 200 \+ 313"):
        generate(engine, policy, budget=313)
    with pytest.raises(ValueError, match="serves one policy"):
        engine.sync(make_policy())
    with pytest.raises(RuntimeError, match="`sync` must come before"):
        generate(VLLMEngine(), policy)
    with pytest.raises(ValueError, match="`lora` must be merged for a policy without adapter"):
        VLLMEngine(lora="adapter").sync(make_policy(lora=False))
    for wrong in ({"lora": "both"}, {"kv_cache_gib": 0}, {"max_model_len": 1}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be"):
            VLLMEngine(**wrong)


def test_a_missing_vllm_is_told_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert ENGINES["vllm"] is VLLMEngine, "the list of engines needs no vLLM"
    sentence = error(capsys, "fit", "-c", TINY, *SMALL, "--model.rollout.engine=vllm")
    assert sentence == 'rlvr: VLLMEngine needs vLLM: pip install "lightning-rlvr[vllm]"'


@installed
def test_a_run_trains_and_validates_and_says_no_more_than_another(tmp_path, capsys):
    logged = scalars(fit(tmp_path, *ENGINE, "--trainer.val_check_interval=1"))
    assert len(logged["policy/probe_gap"]) == 2
    assert all(gap < 1e-4 for gap in logged["policy/probe_gap"].values())
    assert logged["eval/length"].keys() == {1, 2}
    assert all(seconds > 0 for seconds in logged["time/sync"].values())
    assert not capsys.readouterr().err


@installed
@pytest.mark.slow
def test_two_processes_have_an_engine_each_and_leave_nothing(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
    }
    command = [sys.executable, "-m", "lightning_rlvr", "fit", "-c", str(TINY), *SMALL, "--runs_dir", str(tmp_path),
               "--name=two", *ENGINE, "--trainer.devices=2", "--trainer.strategy=ddp",
               "--trainer.max_steps=1", "--trainer.limit_val_batches=0"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(gap < 1e-4 for gap in scalars(tmp_path / "two" / "version_0")["policy/probe_gap"].values())
    assert not list(temporary.iterdir())
