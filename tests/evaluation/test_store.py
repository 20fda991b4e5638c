"""No sample is drawn twice, lost or taken for one of other conditions."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from lightning_rlvr.evaluation import store as module
from lightning_rlvr.evaluation.samples import from_table, to_table, votes
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.verify.base import Verdict

CONDITIONS = {"temperature": 1.0, "stop_ids": [2, 0], "verifier": {"class": "exact", "after": None}}


def problems(*names):
    return [(name, f"hash of {name}") for name in names]


def result_of(store):
    return [
        (row["problem_id"], row["sample"]) for row in pq.read_table(store.path / "per_problem.parquet").to_pylist()
    ]


def finish(store, problems, num_samples):
    keys = [(shown, number) for _, shown in problems for number in range(num_samples)]
    store.finish(problems, num_samples, dict.fromkeys(keys, Verdict(status="correct", reward=1.0, answer="1")))


def finished(store, *evaluation):
    """The samples of the result."""
    finish(store, *evaluation)
    return from_table(pq.read_table(store.path / "per_problem.parquet"))


@pytest.fixture
def opened(tmp_path):
    stores = []

    def reopened(name="set", conditions=CONDITIONS, **options):
        for store in stores:
            store.close()
        stores.append(SampleStore.open(tmp_path, name, conditions, **options))
        return stores[-1]

    return reopened


# --- rows ---


def test_samples_come_back_from_a_table_as_they_went(make_sample):
    samples = [
        make_sample(answer="\\frac{1}{2}\n\u222b\0", seed=2**63 - 1, reason="a; b", parts={"math": 1.0, "x": -0.5}),
        make_sample(status="timeout", answer=None, text=None, truncated=True),
    ]
    first, second = from_table(to_table(samples))
    assert first == samples[0]
    assert math.isnan(second.reward)
    assert replace(second, reward=0.0) == replace(samples[1], reward=0.0)
    assert from_table(to_table([])) == []


def test_votes_of_the_same_answer_are_equal_and_nobody_else_is_correct(make_sample):
    answers = ["12", "$12$", " 1 2\n", "13", "1", ""]
    wrong = [make_sample(status="wrong", answer=answer) for answer in answers]
    silent = [make_sample(status=s, answer="12") for s in ("no_answer", "timeout", "error", "abstained")]
    silent.append(make_sample(status="wrong", answer=None))
    numbers = votes([make_sample(answer=None), *silent, *wrong])
    assert numbers.dtype == torch.int64
    assert numbers[:6].tolist() == [1, 0, 0, 0, 0, 0]
    assert numbers[6] == numbers[7] == numbers[8]
    assert len(set(numbers.tolist())) == 2 + 4
    assert ((numbers[6:] > 1) & (numbers[6:] < 2**53)).all()
    assert votes([]).shape == (0,)


# --- going on ---


def test_an_interrupted_evaluation_finds_what_it_had(opened, make_sample):
    first = [make_sample("a", 0), make_sample("a", 1)]
    store = opened()
    store.add(first)
    store.add([])
    assert opened().done == {("hash of a", 0): first[0], ("hash of a", 1): first[1]}
    again = opened()
    again.add([make_sample("b", 1)])
    again.add([make_sample("b", 0)], rank=1)
    samples = finished(again, problems("b", "a"), 2)
    assert result_of(again) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert [(sample.problem_id, sample.sample) for sample in samples] == result_of(again)
    assert sorted(path.name for path in again.path.iterdir() if path.name[0] != ".") == [
        "per_problem.parquet",
        "settings.json",
    ]
    assert json.loads((again.path / "settings.json").read_text()) == {
        "name": "set",
        "conditions": CONDITIONS,
        "num_problems": 2,
        "num_samples": 2,
    }
    assert len(opened().done) == 4


def test_more_samples_and_more_problems_go_on_in_the_same_folder(opened, make_sample):
    folders = set()
    for names, num_samples in (("a", 1), ("ab", 2), ("abc", 2)):
        store = opened()
        wanted = [make_sample(name, number) for name in names for number in range(num_samples)]
        new = [sample for sample in wanted if (sample.problem_hash, sample.sample) not in store.done]
        store.add(new)
        assert finished(store, problems(*names), num_samples) == wanted
        assert len(new) in (1, 3, 2)
        folders.add(store.path)
    assert len(folders) == 1


def test_a_smaller_evaluation_holds_its_own_samples_and_destroys_none(opened, make_sample):
    everything = [make_sample(name, number) for name in "abc" for number in range(4)]
    store = opened()
    store.add(everything)
    finish(store, problems(*"abc"), 4)
    for _ in range(2):
        store = opened()
        finish(store, problems("c"), 2)
        assert result_of(store) == [("c", 0), ("c", 1)]
    store = opened()
    assert len(store.done) == 12
    assert finished(store, problems(*"abc"), 4) == everything
    assert not (store.path / "parts").exists()


@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("writes", range(3))
def test_stopping_anywhere_in_finish_loses_nothing(opened, make_sample, monkeypatch, writes, num_samples):
    before = opened()
    before.add([make_sample("a", number) for number in range(1, 4)])
    before.add([make_sample("b", number) for number in range(2)])
    finish(before, problems("b"), 2)
    before.add([make_sample("a", 0)])
    write, count = module._write, iter(range(writes))

    def failing(file, data):
        if next(count, None) is None:
            raise KeyboardInterrupt
        write(file, data)

    monkeypatch.setattr(module, "_write", failing)
    with pytest.raises(KeyboardInterrupt):
        finish(opened(), problems("a"), num_samples)
    monkeypatch.undo()
    assert len(opened().done) == 6
    assert finished(opened(), problems("a"), 4)[3] == make_sample("a", 3)


def test_a_killed_process_loses_no_sample_that_it_added_and_leaves_the_folder_open(opened, tmp_path):
    script = f"""
from pathlib import Path
from conftest import make_sample
from lightning_rlvr.evaluation.store import SampleStore
from lightning_rlvr.verify.base import Verdict
store = SampleStore.open(Path({str(tmp_path)!r}), "set", {CONDITIONS!r})
for number in range(10**9):
    store.add([make_sample("a", number, text="x" * 10_000)])
    print(number, flush=True)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    lines = [process.stdout.readline() for _ in range(5)]
    with pytest.raises(BlockingIOError, match=r"another evaluation writes into '.*set'; wait until it ends"):
        opened()
    process.send_signal(signal.SIGKILL)
    added = [int(line) for line in (*lines, *process.communicate()[0].splitlines())]
    numbers = sorted(number for _, number in opened().done)
    assert len(added) >= 5
    assert numbers[: len(added)] == added
    assert len(numbers) <= len(added) + 1


def test_unfinished_files_are_no_samples_and_go_away(opened, make_sample):
    store = opened()
    store.add([make_sample("a")])
    (store.path / "parts" / "0000-x-000000.unfinished").write_bytes(b"PAR1")
    store = opened()
    assert len(store.done) == 1
    finish(store, problems("a"), 1)
    assert not (store.path / "parts").exists()


def test_parts_of_ranks_and_of_restarts_have_names_of_their_own(opened, make_sample):
    for run in range(2):
        store = opened()
        others = opened(lock=False)
        for number in range(2):
            store.add([make_sample("a", 10 * run + number)], rank=0)
            others.add([make_sample("a", 10 * run + number + 5)], rank=1)
    assert len(list((store.path / "parts").iterdir())) == len(opened().done) == 8


# --- which folder ---


def test_other_conditions_have_another_folder(opened):
    first = opened()
    others = [opened(conditions=CONDITIONS | {"temperature": t}) for t in (0.6, 0.7)]
    assert [store.path.name for store in (first, *others)] == ["set", "set.2", "set.3"]
    assert opened(conditions=CONDITIONS | {"temperature": 0.6}).path == others[0].path
    assert opened(conditions=dict(reversed(CONDITIONS.items())) | {"stop_ids": (2, 0)}).path == first.path


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("math-ai/aime24", "math-ai_aime24"),
        ("../up", "_up"),
        ("..", "_"),
        ("a b:c", "a_b_c"),
        ("\u00fc.1", "\u00fc.1"),
    ],
)
def test_names_of_sets_become_plain_folder_names(opened, tmp_path, name, folder):
    store = opened(name)
    assert store.path == tmp_path / folder
    assert opened(name).path == store.path


@pytest.mark.parametrize(("first", "second"), [("a/b", "a_b"), ("a.2", "a")])
def test_two_sets_never_share_a_folder(opened, first, second):
    opened(first)
    if second == "a":
        opened(second)
    with pytest.raises(ValueError, match=f"the sets '{first}' and '{second}' need the same folder '.*'; rename one"):
        opened(second, conditions={})


def test_a_folder_without_samples_and_settings_is_free(opened, tmp_path):
    (tmp_path / "set").mkdir()
    assert opened().path == tmp_path / "set"


# --- what can be wrong ---


def test_a_second_evaluation_into_the_same_folder_is_refused_until_the_first_ends(tmp_path, opened, make_sample):
    store = opened()
    with pytest.raises(BlockingIOError, match="another evaluation writes into"):
        SampleStore.open(tmp_path, "set", CONDITIONS)
    SampleStore.open(tmp_path, "set", {}).close()
    SampleStore.open(tmp_path, "set", CONDITIONS, lock=False).add([make_sample("a")], rank=1)
    finish(store, problems("a"), 1)
    SampleStore.open(tmp_path, "set", CONDITIONS).close()


def test_a_process_that_does_not_see_the_folder_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must be made by the first process .* file system that they share"):
        SampleStore.open(tmp_path, "set", CONDITIONS, lock=False)


def test_a_missing_sample_is_named(opened, make_sample):
    store = opened()
    store.add([make_sample("a", 0), make_sample("b", 0), make_sample("b", 1)])
    with pytest.raises(FileNotFoundError, match=r"1 of 4 samples are missing in .* sample 1 of problem 'a': .* share"):
        finish(store, problems("a", "b"), 2)
    assert len(opened().done) == 3


def test_a_changed_problem_is_another_problem_under_whatever_id(opened, make_sample):
    store = opened()
    store.add([make_sample("a", problem_hash="old"), make_sample("b")])
    with pytest.raises(FileNotFoundError, match="sample 0 of problem 'a'"):
        finish(store, [("a", "new")], 1)
    assert finished(store, [("now c", "hash of b")], 1)[0].problem_id == "now c"


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "set"}', "\xff"])
def test_damaged_settings_are_named_and_nothing_is_sampled_anew(opened, make_sample, text):
    store = opened()
    store.add([make_sample("a")])
    (store.path / "settings.json").write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=r"settings\.json' cannot be read \(.*\); restore it, or move its folder"):
        opened()
    (store.path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"settings\.json' cannot be read"):
        opened()


def test_a_damaged_part_is_noticed_unless_the_damage_does_no_harm(opened, make_sample):
    store, sample = opened(), make_sample("a", text="a long text " * 20)
    store.add([sample])
    (part,) = (store.path / "parts").iterdir()
    data, rng, noticed = part.read_bytes(), random.Random(0), 0
    for position in rng.sample(range(len(data)), 150):
        part.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            read = list(opened().done.values())
        except ValueError as error:
            noticed += f"{part.name}' cannot be read" in str(error)
        else:
            assert read == [sample]
            noticed += 1
    assert noticed == 150
    for size in (0, 4, len(data) // 2, len(data) - 1):
        part.write_bytes(data[:size])
        with pytest.raises(ValueError, match=rf"{part.name}' cannot be read"):
            opened()


def test_a_table_of_something_else_is_no_sample(opened, make_sample):
    store = opened()
    store.add([make_sample("a")])
    (part,) = (store.path / "parts").iterdir()
    pq.write_table(to_table([make_sample("a")]).drop_columns("seed"), part)
    with pytest.raises(ValueError, match=r"cannot be read \(columns are problem_id, .*parts\)"):
        opened()


def test_texts_are_kept_of_a_finished_evaluation_only_if_asked_for(opened, make_sample):
    opened(keep_text=False).add([make_sample("a"), make_sample("b")])
    store = opened(keep_text=False)
    assert [sample.text for sample in store.done.values()] == ["text", "text"], "to go on, they are needed"
    assert [(sample.text, sample.completion_ids) for sample in finished(store, problems("a"), 1)] == [(None, None)]
    assert list(opened().done) == [("hash of b", 0)], "what cannot be verified again is drawn again"


def test_verdicts_of_the_last_evaluation_are_what_the_file_says(opened, make_sample):
    store = opened()
    store.add([make_sample("a", status=None)])
    down = Verdict(status="timeout", reward=math.nan, answer="1", reason="no result")
    store.finish(problems("a"), 1, {("hash of a", 0): down})
    (found,) = from_table(pq.read_table(store.path / "per_problem.parquet"))
    assert (found.status, found.reason, math.isnan(found.reward)) == ("timeout", "no result", True)
    assert finished(opened(), problems("a"), 1)[0].status == "correct"


def test_pyarrow_is_asked_for_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_rlvr.checks.find_spec", lambda module: None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install \"lightning-rlvr\[data\]\""):
        SampleStore.open(tmp_path, "set", CONDITIONS)
