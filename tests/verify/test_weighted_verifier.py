import math
import re
from itertools import product

import pytest
import torch

from command_line import CONFIGS, parse
from lightning_rlvr.__main__ import main
from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import SumsSource
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.verify.base import STATUSES, UNSCORED, VERIFIERS, Attempt, Verdict, Verifier
from lightning_rlvr.verify.exact import ExactVerifier
from lightning_rlvr.verify.function import FunctionVerifier
from lightning_rlvr.verify.overlong import OverlongVerifier
from lightning_rlvr.verify.weighted import WeightedVerifier
from runs import digit_share, fit, scalars
from test_distributed import CONFIG, SHORT, train


class Fixed(Verifier):
    """Gives every completion the same verdict."""

    def __init__(self, status, reward=math.nan, answer=None, reason="", complaint=None):
        self.verdict = Verdict(status=status, reward=reward, answer=answer, reason=reason)
        self.complaint = complaint

    def verify(self, attempts):
        return [self.verdict] * len(attempts)

    def check_columns(self, columns):
        return self.complaint


NAMES = "`names` must be 2 different names of letters, digits, _, - and ."
RIGHT = Fixed("correct", 1.0, "7", "equal")
LONG = Fixed("wrong", -0.5, None, "too long")
SILENT = Fixed("abstained", reason="no opinion")


def attempt(completion="", ids=(1,), **columns):
    return Attempt(prompt="", completion=completion, completion_ids=ids, truncated=False, columns=columns)


def verdict(*verifiers, weights=None, names=None):
    return WeightedVerifier(list(verifiers), weights, names).verify([attempt()])[0]


def test_registered():
    assert VERIFIERS["weighted"] is WeightedVerifier


def test_reward_is_the_weighted_sum_and_the_first_part_says_the_rest():
    result = verdict(RIGHT, LONG, weights=[2.0, 0.5], names=["math", "length"])
    assert (result.status, result.answer, result.reward) == ("correct", "7", 1.75)
    assert result.parts == {"math": 1.0, "length": -0.5}
    assert result.reason == "math: equal | length: too long"
    assert verdict(LONG, RIGHT).status == "wrong"
    assert verdict(RIGHT, LONG).reward == 0.5, "weights are 1 unless given"


def test_a_part_that_abstains_is_left_out():  # RF-01
    result = verdict(SILENT, RIGHT, LONG, weights=[5.0, 1.0, 1.0], names=["a", "b", "c"])
    assert (result.status, result.answer, result.reward) == ("correct", "7", 0.5)
    assert math.isnan(result.parts.pop("a"))
    assert result.parts == {"b": 1.0, "c": -0.5}


def test_where_all_abstain_there_is_no_score():  # RF-03
    result = verdict(SILENT, SILENT)
    assert result.status == "abstained"
    assert [math.isnan(value) for value in (result.reward, *result.parts.values())] == [True] * 3


@pytest.mark.parametrize("status", ["timeout", "error"])
def test_a_part_that_fails_leaves_the_whole_unscored(status):
    result = verdict(RIGHT, SILENT, Fixed(status, reason="slow"), LONG, names=["a", "b", "c", "d"])
    assert (result.status, result.answer) == (status, "7")
    assert result.reason == "a: equal | b: no opinion | c: slow | d: too long"
    assert math.isnan(result.reward)
    assert (result.parts["a"], result.parts["d"]) == (1.0, -0.5)


def test_one_verifier_of_weight_1_is_that_verifier():
    for status in STATUSES:
        fixed = Fixed(status, math.nan if status in UNSCORED else 0.25, "x")
        alone, whole = fixed.verdict, verdict(fixed)
        assert (whole.status, whole.answer, repr(whole.reward)) == (alone.status, alone.answer, repr(alone.reward))


def test_whole_is_unscored_exactly_where_it_has_to_be():
    for statuses in product(STATUSES, repeat=2):
        result = verdict(*(Fixed(status, math.nan if status in UNSCORED else 1.0) for status in statuses))
        unscored = {"timeout", "error"} & set(statuses) or set(statuses) == {"abstained"}
        assert math.isnan(result.reward) == bool(unscored), statuses
        assert result.parts.keys() == {"Fixed", "Fixed_2"}, "every part is always there"


def test_verdicts_keep_the_order_of_the_attempts():
    verifier = WeightedVerifier(["exact", FunctionVerifier(lambda completions: [float(len(c)) for c in completions])])
    texts = [r"\boxed{7}", "Answer: 8", "", "Answer: 7"]
    verdicts = verifier.verify([attempt(text, answer=7) for text in texts])
    assert [v.parts["exact"] for v in verdicts] == [1.0, 0.0, 0.0, 1.0]
    assert [v.parts["function"] for v in verdicts] == [9.0, 9.0, 0.0, 9.0]
    assert verifier.verify([]) == []


def test_names_are_short_names_made_different():
    verifier = WeightedVerifier(["exact", ExactVerifier(extract="all"), OverlongVerifier(), RIGHT, LONG])
    assert verifier.part_names == ("exact", "exact_2", "overlong", "Fixed", "Fixed_2")


def test_all_parts_are_asked_about_the_columns():
    bad = [Fixed("wrong", 0.0, complaint=text) for text in ("no gold", None, "no choices", "no gold")]
    assert WeightedVerifier(bad).check_columns({}) == "no gold; no choices"
    assert WeightedVerifier([RIGHT]).check_columns({}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verifiers": []}, "`verifiers` must be a list of at least one verifier, got []"),
        ({"verifiers": ["exact", "xact"]}, "unknown verifier 'xact'; choices: "),
        ({"weights": [1.0]}, "`weights` must be 2 finite numbers, one for each verifier, got [1.0]"),
        ({"weights": [1.0, math.nan]}, "`weights` must be 2 finite numbers, one for each verifier, got [1.0, nan]"),
        ({"weights": ["1", 1.0]}, "`weights` must be 2 finite numbers, one for each verifier, got ['1', 1.0]"),
        ({"weights": [True, 1.0]}, "`weights` must be 2 finite numbers, one for each verifier, got [True, 1.0]"),
        ({"weights": [10**400, 1]}, "`weights` must be 2 finite numbers, one for each verifier, got [1000"),
        *(
            ({"names": names}, f"{NAMES}, one for each verifier, got {names}")
            for names in (["a"], ["a", "a"], ["a", ""], ["a", 1], ["a", "b c"], ["a", "b/c"], ["a", "b\n"])
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        WeightedVerifier(**({"verifiers": [RIGHT, LONG]} | settings))


# --- from a configuration to TensorBoard ---

SOURCE = """
data:
  train:
    - class_path: lightning_rlvr.data.sources.SumsSource
      init_args:
        task: {task}
        size: 12
        val_size: 4
        verifier:
          class_path: lightning_rlvr.verify.weighted.WeightedVerifier
          init_args:
            verifiers: [exact, {{class_path: OverlongVerifier, init_args: {{buffer: 2}}}}]
            weights: [1, 0.5]
"""


def test_verifiers_with_and_without_settings_parse_inside_a_list(tmp_path):
    file = tmp_path / "weighted.yaml"
    file.write_text(SOURCE.format(task="sums"))
    verifier = parse("-c", file).datamodule.train_sources[0].verifier
    assert (verifier.part_names, verifier.weights) == (("exact", "overlong"), [1.0, 0.5])
    assert verifier.verifiers[1].buffer == 2


def test_dapo_reward_may_replace_the_verifier_of_any_source():
    flags = ["--data.train=SumsSource", f"--data.train.verifier={CONFIGS / 'verifier' / 'math_overlong.yaml'}"]
    verifier = parse(*flags).datamodule.train_sources[0].verifier
    assert (verifier.part_names, verifier.weights) == (("math", "overlong"), [1.0, 0.5])
    assert verifier.verifiers[1].buffer == 0.2, "DAPO: 4,096 of 20,480 tokens"


def test_every_part_is_logged(tmp_path):
    class Half(Verifier):
        def verify(self, attempts):
            verdicts = FunctionVerifier(digit_share).verify(attempts)
            silent = Verdict(status="abstained", reward=math.nan)
            return [silent if i % 2 else verdict for i, verdict in enumerate(verdicts)]

    source = SumsSource(size=12, verifier=WeightedVerifier([Half(), FunctionVerifier(digit_share)], names=["a", "b"]))
    data = PromptDataModule(source, prompts_per_step=2, val_problems=0, template=PromptTemplate(chat="plain"))
    _, recorder, _ = fit(tmp_path, data=data, max_steps=1)
    [record], [metrics] = recorder.records, recorder.metrics
    b = torch.tensor([verdict.parts["b"] for verdict in record.collection.verdicts])
    assert metrics["reward/part_b"] == pytest.approx(b.mean().item())
    assert metrics["reward/part_a"] == pytest.approx(b[::2].mean().item())


@pytest.mark.slow
def test_ranks_agree_on_the_parts_where_one_has_no_row_of_their_task(tmp_path):
    file = tmp_path / "data.yaml"
    plain = "    - {class_path: lightning_rlvr.data.sources.SumsSource, init_args: {task: b, size: 12, val_size: 4}}\n"
    file.write_text(SOURCE.format(task="a") + plain + "  prompts_per_step: 2\n")
    main(["fit", "-c", str(CONFIG), "-c", str(file), *SHORT, "--runs_dir", str(tmp_path), "--name", "one"])
    one = scalars(tmp_path / "one" / "version_0")
    two = train(tmp_path, "two", file, "--trainer.devices=2", "--trainer.strategy=ddp")
    tags = ("reward/part_exact", "reward/part_overlong", "reward/mean", "reward/max")
    assert {tag: one[tag] for tag in tags} == {tag: two[tag] for tag in tags}
