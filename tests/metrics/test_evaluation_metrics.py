"""Metrics of samples do not depend on who saw which sample, how often, and in which batches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from lightning_rlvr.functional.evaluation import pass_at_k
from lightning_rlvr.metrics.evaluation import MajorityAtK, PassAtK, SampleMean, SampleQuantile, SampleTable

METRICS = {
    "pass@1": lambda: PassAtK(1), "pass@3": lambda: PassAtK(3), "maj@2": lambda: MajorityAtK(2),
    "mean": SampleMean, "p90": lambda: SampleQuantile(0.9),
}  # fmt: skip
PROBLEM = torch.tensor([2**62 + 1, 2**62, 7]).repeat_interleave(4)  # the first two are one number in float64
SAMPLE = torch.arange(4).repeat(3)
VALUE = torch.tensor([1, 0, 1, 1, 0, 0, 0, 5, 1, 5, 5, 0])


def computed(metric, *batches):
    for rows in batches:
        metric.update(PROBLEM[rows], SAMPLE[rows], VALUE[rows])
    return metric.compute()


def test_the_metrics_of_twelve_samples_are_those_by_hand():
    # correct 3, 0, 1 of 4; pass@3 1 - C(1, 3)/C(4, 3) = 1, 0, and 1 - C(3, 3)/C(4, 3) = 3/4
    # blocks of two: 10 11 | 00 05 | 15 50 -> 1 1 | 0 0 | 1/2 0; sorted values 000000 1111 555, p90 at 0.9 * 11 = 9.9
    expected = {"pass@1": 4 / 12, "pass@3": 1.75 / 3, "maj@2": 1.25 / 3, "mean": 19 / 12, "p90": 5}
    results = {name: computed(make(), slice(None)) for name, make in METRICS.items()}
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in results.values())
    assert {name: value.item() for name, value in results.items()} == pytest.approx(expected)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 11), max_size=8), max_size=4), st.permutations(range(12)), st.integers(0, 12))
def test_order_batches_and_repetition_change_nothing(repeated, order, cut):
    for make in METRICS.values():
        batches = [torch.tensor(rows, dtype=torch.int64) for rows in [*repeated, order[:cut], order[cut:]]]
        torch.testing.assert_close(computed(make(), *batches), computed(make(), slice(None)), rtol=1e-14, atol=0)


def test_the_mean_of_uneven_batches_is_that_of_all_samples():
    metric = SampleMean()
    metric.update(torch.tensor([1, 2, 3]), torch.zeros(3).long(), torch.ones(3))
    metric.update(torch.tensor([4]), torch.tensor([0]), torch.tensor([0.0]))
    assert metric.compute() == 0.75


def test_a_million_times_a_tenth_keeps_its_mean():
    metric = SampleMean()
    n = 1_000_000
    for half in torch.arange(n).chunk(2):
        metric.update(half, torch.zeros_like(half), torch.full((len(half),), 0.1, dtype=torch.float64))
    assert metric.compute().item() == pytest.approx(0.1, rel=1e-12)


def test_states_merged_by_hand_are_the_states_of_all_samples():
    for make in METRICS.values():
        ours, theirs, empty = make(), make(), make()
        ours.update(PROBLEM[:7], SAMPLE[:7], VALUE[:7])
        theirs.update(PROBLEM[5:], SAMPLE[5:], VALUE[5:])
        for other in (theirs, empty):
            ours.merge_state(other)
        assert ours.compute() == computed(make(), slice(None))


def test_metrics_of_one_collection_share_their_rows():
    collection = MetricCollection({name: make() for name, make in METRICS.items()})
    for _ in range(2):
        for rows in (slice(5), slice(5, None), slice(3)):
            collection.update(PROBLEM[rows], SAMPLE[rows], VALUE[rows])
        assert len(collection.compute_groups) == 1
        assert collection.compute() == {name: computed(make(), slice(None)) for name, make in METRICS.items()}
        collection.reset()


def test_problems_may_differ_in_their_number_of_samples():
    pass_2, majority = PassAtK(2), MajorityAtK(2)
    for metric in (pass_2, majority):
        computed(metric, slice(3), slice(4, 9), slice(9, 12))
    expected = pass_at_k(torch.tensor([3, 4, 4]), torch.tensor([2, 0, 1]), 2).mean()
    assert pass_2.compute() == expected
    assert majority.compute().item() == pytest.approx((1 + 0 + 0.25) / 3)
    with pytest.raises(ValueError, match="`k` must be at most the 3 samples of every problem, got 4"):
        computed(PassAtK(4), slice(3), slice(4, 12))


def test_nothing_scored_is_nan_and_nan_is_left_out():
    zero, nan = torch.zeros(1).long(), torch.tensor([torch.nan])
    for metric in (SampleMean(), SampleQuantile(0.5)):
        metric.update(zero, zero, nan)
        assert metric.compute().isnan()
        metric.update(zero, zero + 1, torch.tensor([3.0]))
        assert metric.compute() == 3


def test_a_majority_of_unknown_answers_is_unknown():
    metric = MajorityAtK(1)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([1.0, torch.nan]))
    assert metric.compute().isnan()


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("make", METRICS.values(), ids=METRICS.keys())
def test_no_samples_at_all_are_nan(make):
    assert make().compute().isnan()


def test_half_precision_of_a_module_does_not_reach_the_rows():
    module = torch.nn.ModuleDict({"mean": SampleMean()}).half()
    zero = torch.zeros(1).long()
    module["mean"].update(zero, zero, torch.tensor([70_001.0]))
    assert module.half()["mean"].compute() == 70_001


@pytest.mark.parametrize("make", [lambda: PassAtK(0), lambda: MajorityAtK(0), lambda: SampleQuantile(1.5)])
def test_settings_without_meaning_are_refused(make):
    with pytest.raises(ValueError, match=r"`[kq]` must be .*, got"):
        make()


def test_numbers_of_problems_must_be_whole():
    with pytest.raises(TypeError, match=r"`problem` and `sample` must be torch\.int64, got torch\.float32"):
        SampleMean().update(torch.zeros(1), torch.zeros(1).long(), torch.zeros(1))


def test_a_table_of_one_sample_is_a_table():
    table = SampleTable(num_values=3)
    table.update(torch.tensor([5]), torch.tensor([0]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert table.compute().tolist() == [[0, 1, 2, 3]]


RANK = """
import json, sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
sys.path.insert(0, {tests!r})
from test_evaluation_metrics import METRICS, PROBLEM, SAMPLE, VALUE, SampleMean, SampleTable, computed
warnings.simplefilter("ignore")
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
results = {{}}
for case, split in {splits!r}.items():
    rows = [slice(*bounds) for bounds in split[rank]]
    results[case] = {{name: computed(make(), *rows).item() for name, make in METRICS.items()}}
ones = SampleMean()
for batch in range(3 - rank):
    ones.update(torch.tensor([10 * rank + batch]), torch.tensor([0]), torch.tensor([1]))
results["ones"] = ones.compute().item()
table = SampleTable(num_values=2)
if rank == 0:
    table.update(PROBLEM, SAMPLE, torch.stack([VALUE, SAMPLE], 1))
results["table"] = table.compute().sum(0).tolist()
Path({folder!r}, f"{{rank}}.json").write_text(json.dumps(results))
dist.destroy_process_group()
"""
SPLITS = {  # case -> for each rank the bounds of its batches
    "uneven": [[(0, 3), (3, 4)], [(4, 12)]],
    "repeated": [[(0, 8)], [(4, 12), (0, 2)]],
    "one rank is empty": [[], [(0, 5), (5, 12)]],
    "the other is": [[(0, 12)], []],
    "all are": [[], []],
}


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path):
    script = RANK.format(tests=str(Path(__file__).parent), folder=str(tmp_path), splits=SPLITS)
    ranks = [subprocess.Popen([sys.executable, "-c", script, str(rank)], stderr=subprocess.PIPE) for rank in (0, 1)]
    errors = [rank.communicate(timeout=60)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    one = {name: computed(make(), slice(None)).item() for name, make in METRICS.items()}
    for results in both:
        assert all(value != value for value in results.pop("all are").values())
        assert results.pop("ones") == 1
        assert results.pop("table") == [12, 19, 18]  # numbers 0 1 2 of the problems four times each, values, samples
        assert all(result == pytest.approx(one, rel=1e-14) for result in results.values())
        assert len(results) == 4
