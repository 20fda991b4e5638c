"""Rows that are judged while others still decode get the verdicts that they would get at the end."""

import threading
import time
import traceback
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.pipeline import collect
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.rollout.base import RolloutEngine, Sampling
from lightning_rlvr.rollout.hf import HFEngine
from lightning_rlvr.types import Completions, PromptBatch
from lightning_rlvr.verification import SampledRow, Verification
from lightning_rlvr.verify.base import Verdict
from lightning_rlvr.verify.math import MathVerifier
from lightning_rlvr.verify.overlong import OverlongVerifier
from lightning_rlvr.verify.weighted import WeightedVerifier
from runs import fit, make_data, make_module

TASKS = ("local", "whole")
END, PAD = 1, 0


def make_prompts(task_ids=(0, 1, 0)):
    n = len(task_ids)
    return PromptBatch(
        prompt_ids=torch.arange(5, 5 + n)[:, None],
        prompt_mask=torch.ones(n, 1, dtype=torch.bool),
        evidence_mask=torch.zeros(n, 1, dtype=torch.bool),
        task_id=torch.tensor(task_ids),
        task_names=TASKS,
        problem_ids=tuple(map(str, range(n))),
        prompts=tuple(f"prompt {i}" for i in range(n)),
        columns=tuple({"answer": str(i)} for i in range(n)),
    )


class Log:
    """A judge that keeps which attempts it saw in which call and thread, each verdict telling all of its attempt."""

    def __init__(self):
        self.calls = []

    def __call__(self, tasks, attempts):
        main = threading.current_thread() is threading.main_thread()
        self.calls.append(
            (main, [(task, a.prompt, a.completion_ids) for task, a in zip(tasks, attempts, strict=True)])
        )
        return [
            Verdict(status="correct", reward=1.0, reason=repr((t, a))) for t, a in zip(tasks, attempts, strict=True)
        ]


class Scripted(RolloutEngine):
    """Returns rows of given lengths in a given order, and tells of some of them in another."""

    def __init__(self, lengths, told=(), order=None, mistold=(), error=None):
        self.lengths, self.told, self.mistold, self.error = lengths, told, mistold, error
        self.order = list(range(len(lengths))) if order is None else order

    def ids(self, row):
        return [10 + row] * (self.lengths[row] - 1) + [END]

    def generate(self, policy, prompts, prompt_index, seeds, sampling, finished=None):
        for rows in self.told if finished else ():
            finished(rows, [[99] if row in self.mistold else self.ids(row) for row in rows])
        if self.error is not None:
            raise self.error
        width = max(self.lengths)
        ids = torch.tensor([self.ids(row) + [PAD] * (width - self.lengths[row]) for row in self.order])
        mask = torch.arange(width) < torch.tensor([self.lengths[row] for row in self.order])[:, None]
        return Completions(
            completion_ids=ids,
            completion_mask=mask,
            truncated=torch.zeros(len(ids), dtype=torch.bool),
            logprobs=torch.zeros(ids.shape),
            prompt_index=prompt_index[self.order],
            seeds=seeds[self.order],
        )


@pytest.fixture(scope="module")
def policy():
    return load_policy(PolicySettings(name_or_path="tiny_untrained", lora=None))


def collected(policy, engine, judge, *, row_local=frozenset({"local"}), prompts=None, num_generations=2, budget=8):
    prompts = make_prompts() if prompts is None else prompts
    sampling = Sampling(max_completion_length=budget)
    return collect(
        policy, engine, judge, prompts, sampling,
        row_local=row_local, num_generations=num_generations, seed_parts=("test",),
    )  # fmt: skip


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("verification")]


ROWS = 6


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=ROWS, max_size=ROWS),
    order=st.permutations(range(ROWS)),
    told=st.permutations(range(ROWS)),
    cuts=st.sets(st.integers(0, ROWS)),
    mistold=st.sets(st.integers(0, ROWS - 1)),
)
def test_whatever_an_engine_tells_and_when_the_verdicts_are_those_of_the_end(
    policy, lengths, order, told, cuts, mistold
):
    ends = [0, *sorted(cuts)]
    batches = [told[a:b] for a, b in pairwise(ends)]
    silent, log = Log(), Log()
    expected = collected(policy, Scripted(lengths, order=order), silent)
    result = collected(policy, Scripted(lengths, batches, order, mistold), log)
    assert result.verdicts == expected.verdicts
    assert result.texts == expected.texts
    assert [main for main, _ in silent.calls] == [True]
    seen = sorted(attempt for _, attempts in log.calls for attempt in attempts if attempt[2] != (99,))
    assert seen == sorted(attempt for _, attempts in silent.calls for attempt in attempts)  # each exactly once
    assert threads() == []


def test_verifiers_of_whole_batches_see_them_in_one_call_on_the_main_thread(policy):
    log = Log()
    collected(policy, Scripted([2] * ROWS, told=[[5], [2, 0], [3]]), log)
    whole = [(main, attempts) for main, attempts in log.calls if any(task == "whole" for task, *_ in attempts)]
    assert len(whole) == 1
    assert whole[0][0]
    assert [prompt for task, prompt, _ in whole[0][1] if task == "whole"] == ["prompt 1"] * 2


def test_without_row_local_verifiers_engines_are_not_asked_to_tell(policy):
    class Asked(Scripted):
        def generate(self, *arguments):
            asked.append(arguments[5])
            return super().generate(*arguments)

    asked = []
    for row_local in (frozenset(), frozenset({"local"}), frozenset({"elsewhere"})):
        collected(policy, Asked([1] * ROWS), Log(), row_local=row_local)
    assert [one is not None for one in asked] == [False, True, False]


@pytest.mark.parametrize("max_rows", [None, 12])
def test_rows_are_judged_while_others_decode_and_truncated_rows_at_the_end(policy, max_rows):
    log, prompts = Log(), make_prompts((0, 0, 0))
    options = {"prompts": prompts, "num_generations": 8, "budget": 100}
    result = collected(policy, HFEngine(max_rows), log, **options)
    expected = collected(policy, HFEngine(max_rows), Log(), **options, row_local=frozenset())
    assert result.verdicts == expected.verdicts
    assert result.texts == expected.texts
    early = [attempt for main, attempts in log.calls if not main for attempt in attempts]
    assert early
    assert sum(len(attempts) for _, attempts in log.calls) == 24
    truncated = {tuple(ids) for ids in result.rollout.completion_ids[result.rollout.truncated].tolist()}
    assert truncated
    assert not truncated & {ids for _, _, ids in early}


def test_what_waits_is_judged_in_one_call():
    begun, go_on, sizes = threading.Event(), threading.Event(), []

    def judge(tasks, attempts):
        sizes.append(len(attempts))
        begun.set()
        go_on.wait(5)
        return [Verdict.of(True)] * len(attempts)

    rows = [SampledRow(row, (row,), False) for row in range(ROWS)]
    with Verification(
        judge, str, make_prompts((0,)), [0] * ROWS, row_local={"local"}, max_completion_length=8
    ) as verification:
        verification.finished([0], [[0]])
        begun.wait(5)
        for row in range(1, 5):
            verification.finished([row], [[row]])
        threading.Timer(0.05, go_on.set).start()
        verification.complete(rows)
    assert sizes == [1, 5]


def test_an_error_in_the_thread_is_raised_in_the_step_with_its_traceback(tmp_path):
    data = make_data()
    data.train_sources[0].verifier = OverlongVerifier(buffer=100)
    with pytest.raises(ValueError, match="`buffer` must be at most the 8 tokens") as caught:
        fit(tmp_path, module=make_module(rollout={"engine": Scripted([2] * 8, told=[[0]])}), data=data)
    assert "_judge_waiting" in "".join(traceback.format_exception(caught.value))
    assert threads() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("engine")])
def test_when_the_engine_raises_nothing_is_left_behind(policy, error):
    def slow(tasks, attempts):
        calls.append(len(attempts))
        time.sleep(0.1)
        return [Verdict.of(True)] * len(attempts)

    calls = []
    with pytest.raises(type(error)):
        collected(policy, Scripted([1] * ROWS, told=[[0], [1], [4], [5]], error=error), slow)
    assert threads() == []
    time.sleep(0.2)
    assert len(calls) <= 2  # what had begun, and at most what waited


def test_the_pool_answers_the_thread_and_the_main_thread(policy):
    verifier = WeightedVerifier([MathVerifier(), OverlongVerifier()])
    assert verifier.row_local

    def judge(tasks, attempts):
        return verifier.verify(attempts)

    verdicts = {}
    texts = {row: rf"\boxed{{{row % 3}}}" for row in range(24)}
    rows = [SampledRow(row, (row,), truncated=row == 23) for row in texts]
    for told in ([], [[0, 5, 2], [9], list(range(10, 23))]):
        with Verification(
            judge, lambda ids: texts[ids[0]], make_prompts((0,) * 3), [row // 8 for row in texts],
            row_local={"local"}, max_completion_length=8,
        ) as verification:  # fmt: skip
            for numbers in told:
                verification.finished(numbers, [[number] for number in numbers])
            verdicts[len(told)] = list(map(repr, verification.complete(rows)[1]))
    assert verdicts[0] == verdicts[3]
    assert sum("'correct'" in verdict for verdict in verdicts[0]) == 8
