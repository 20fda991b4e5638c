import asyncio
import math

import numpy as np
import pytest
import torch

from lightning_rlvr.verify.base import VERIFIERS, Attempt
from lightning_rlvr.verify.function import FunctionVerifier


def attempts(*columns):
    return [
        Attempt(prompt=f"p{i}", completion=f"c{i}", completion_ids=(i, i + 1), truncated=False, columns=row)
        for i, row in enumerate(columns)
    ]


def rewards_of(*values):
    return FunctionVerifier(lambda **columns: list(values)).verify(attempts(*[{}] * len(values)))


def by_path(prompts, completions, completion_ids, **columns):
    return [0.5 for _ in completions]


def test_registered():
    assert VERIFIERS["function"] is FunctionVerifier


def test_trl_signature_works_unchanged():
    seen = {}

    def reward(prompts, completions, completion_ids, answer, **columns):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        return [float(gold == "1") for gold in answer]

    verdicts = FunctionVerifier(reward).verify(attempts({"answer": "1", "level": 3}, {"answer": "2"}))
    assert [(verdict.status, verdict.reward) for verdict in verdicts] == [("correct", 1.0), ("wrong", 0.0)]
    assert seen == {
        "prompts": ["p0", "p1"],
        "completions": ["c0", "c1"],
        "completion_ids": [[0, 1], [1, 2]],
        "level": [3, None],
    }


def test_abstention_is_unscored_never_zero():  # RF-01
    verdicts = rewards_of(1, None, 0, 1)
    assert [verdict.status for verdict in verdicts] == ["correct", "abstained", "wrong", "correct"]
    assert math.isnan(verdicts[1].reward)
    assert verdicts[1].reason.endswith("gave no score")
    assert [v.status for v in rewards_of(float("nan"), torch.tensor(torch.nan))] == ["abstained"] * 2


def test_abstaining_from_everything_is_no_crash():  # RF-03
    assert all(math.isnan(verdict.reward) for verdict in rewards_of(None, None))


def test_function_without_keyword_arguments_gets_what_it_names():
    def reward(completions, answer, scale=2.0):
        return [scale * (text == gold) for text, gold in zip(completions, answer, strict=True)]

    verdicts = FunctionVerifier(reward).verify(attempts({"answer": "c0", "level": 3}, {"answer": "c0"}))
    assert [verdict.reward for verdict in verdicts] == [2.0, 0.0]


def test_what_only_a_trainer_has_is_not_passed():
    def optional(completions, trainer_state=None, log_metric=None, **columns):
        return [float(trainer_state is log_metric is None)] * len(completions)

    def required(completions, trainer_state, **columns):
        return [0.0] * len(completions)

    assert FunctionVerifier(optional).verify(attempts({}))[0].reward == 1.0
    with pytest.raises(ValueError, match=r"required raised TypeError: .*missing 1 required .*'trainer_state'"):
        FunctionVerifier(required).verify(attempts({}))


def test_coroutines_are_awaited_on_one_loop_inside_and_outside_of_another():
    loops = set()

    async def reward(completions, **columns):
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return [1.0, None]

    async def notebook():
        return FunctionVerifier(reward).verify(attempts({}, {}))

    for verdicts in (asyncio.run(notebook()), FunctionVerifier(reward).verify(attempts({}, {}))):
        assert [verdict.status for verdict in verdicts] == ["correct", "abstained"]
    assert len(loops) == 1


def test_exception_of_a_coroutine_is_named():
    async def broken(**columns):
        raise KeyError("gold")

    with pytest.raises(ValueError, match=r"broken raised KeyError: 'gold'"):
        FunctionVerifier(broken).verify(attempts({}))


@pytest.mark.parametrize(
    "returned", [torch.tensor([1.0, 0.5]), np.array([1, 0.5]), [torch.tensor(1), np.float32(0.5)], (1, 0.5)]
)
def test_arrays_tensors_and_their_scalars_are_numbers(returned):
    verdicts = FunctionVerifier(lambda **columns: returned).verify(attempts({}, {}))
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.5]
    assert all(type(verdict.reward) is float for verdict in verdicts)


def test_negative_and_graded_rewards_keep_their_value():
    assert [(v.status, v.reward) for v in rewards_of(-1, 0.25, True)] == [
        ("wrong", -1.0),
        ("correct", 0.25),
        ("correct", 1.0),
    ]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "must return 2 rewards, one for each completion, got 1"),
        (None, "must return a list of 2 numbers, got NoneType"),
        (torch.tensor(1.0), "must return a list of 2 numbers, got Tensor"),
        ({1.0, 2.0}, "must return a list of 2 numbers, got set"),
        (1.0, "must return a list of 2 numbers, got float"),
        ([1.0, b"1"], "must return finite numbers or None, got b'1' at position 1"),
        ([1.0, "1"], "must return finite numbers or None, got '1' at position 1"),
        ([1.0, [2]], r"must return finite numbers or None, got \[2\] at position 1"),
        ([10**400, 1.0], "must return finite numbers or None, got 10+ at position 0"),
        ([float("inf"), 1.0], "must return finite numbers or None, got inf at position 0"),
    ],
)
def test_bad_returns_are_one_clear_error(returned, message):
    def broken(**columns):
        return returned

    with pytest.raises(ValueError, match=f"broken {message}"):
        FunctionVerifier(broken).verify(attempts({}, {}))


def test_exception_names_function_type_and_message():
    def broken(**columns):
        raise KeyError("gold")

    with pytest.raises(ValueError, match=r"reward function .*broken raised KeyError: 'gold'") as caught:
        FunctionVerifier(broken).verify(attempts({}))
    assert isinstance(caught.value.__cause__, KeyError)


def test_function_may_be_an_import_path():
    assert FunctionVerifier("math.isnan").function is math.isnan
    assert FunctionVerifier(f"{__name__}.by_path").verify(attempts({}))[0].reward == 0.5


@pytest.mark.parametrize("path", ["no_such_package.reward", "math.no_such_name", "math.pi", "not a path"])
def test_path_to_nothing_callable_is_refused(path):
    with pytest.raises(ValueError, match=r"`function` must be .*import path of a callable, got"):
        FunctionVerifier(path)


def test_module_that_raises_when_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = r"`function` must be an import path of a callable, got 'broken_rewards.f' \(ZeroDivisionError: "
    with pytest.raises(ValueError, match=message):
        FunctionVerifier("broken_rewards.f")


def test_callable_without_a_signature_is_refused():
    with pytest.raises(ValueError, match=r"`function` must have named arguments, got 'builtins.dict' \(no signature"):
        FunctionVerifier("builtins.dict")
