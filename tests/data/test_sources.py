import inspect
import json
import time
from functools import partial

import pytest

from lightning_rlvr.data.sources import DatasetSource, Problem, ReasoningGymSource, SumsSource, shuffled
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.verify.exact import ExactVerifier

ROWS = [{"question": f"{i} + 1", "gold": str(i + 1), "level": i} for i in range(10)]
COLUMNS = {"problem": "question", "answer": "gold"}


def write(folder, rows, name="toy.jsonl"):
    path = folder / name
    if name.endswith("parquet"):
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(path)
        return str(path)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n" if name.endswith("l") else json.dumps(rows))
    return str(path)


@pytest.fixture
def toy(tmp_path):
    return write(tmp_path, ROWS)


def texts(problems):
    return {problem.problem for problem in problems}


# --- generators ---


@pytest.mark.parametrize(
    "source",
    [
        ReasoningGymSource(size=40, val_size=20, settings={"min_digits": 4, "max_digits": 6}),
        SumsSource(size=40, val_size=20, max_term=99999),
    ],
    ids=["reasoning_gym", "sums"],
)
def test_splits_and_data_seeds_share_no_problem(source):
    drawn = [texts(source.load(split, seed)) for seed in (7, 8) for split in ("train", "val")]
    assert [len(problems) for problems in drawn] == [40, 20, 40, 20]
    assert len(set.union(*drawn)) == 120


@pytest.mark.parametrize("source", [ReasoningGymSource(size=3), SumsSource(size=3)], ids=["reasoning_gym", "sums"])
def test_generators_depend_on_the_seed_alone(source):
    assert source.load("train", 5) == source.load("train", 5) != source.load("train", 6)
    assert source.verifier.check_columns(source.load("train", 5)[0].columns) is None


def test_sums_of_a_small_space_still_split():
    source = SumsSource(size=60, val_size=40, max_term=9)
    assert len(texts(source.load("train", 0)) | texts(source.load("val", 0))) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "unknown `dataset` 'chain_sums'; choices: .*chain_sum"),
        ({"settings": {"digits": 3}}, "`settings` of chain_sum do not fit .*digits.*; choices: min_terms, max_terms"),
        ({"settings": {"seed": 3}}, "`settings` of chain_sum do not fit"),
        ({"settings": {"min_terms": 9}}, "`settings` of chain_sum do not fit"),
    ],
)
def test_unknown_generator_settings_name_the_choices(options, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGymSource(size=1, **options).load("train", 0)


@pytest.mark.parametrize("source", [ReasoningGymSource(size=1), SumsSource(size=1)], ids=["reasoning_gym", "sums"])
def test_misspelt_split_names_the_choices(source):
    with pytest.raises(ValueError, match="`split` must be one of train, val, test, got 'valid'"):
        source.load("valid", 0)


def test_a_benchmark_file_is_its_held_out_rows(toy):
    source = DatasetSource(toy, columns=COLUMNS, held_out=2)
    assert source.load("test", 5) == source.load("val", 5)
    assert len(source.load("test", 5)) == 2


@pytest.mark.parametrize("kind", [ReasoningGymSource, SumsSource])
def test_a_generated_benchmark_is_a_draw_of_its_own(kind):
    source = kind(size=3, val_size=50)
    benchmark = texts(source.load("test", 0))
    assert len(benchmark) == 50
    assert len(benchmark & texts(source.load("val", 0))) < 5
    assert benchmark == texts(kind(size=0, val_size=50).load("test", 0)) != texts(source.load("test", 1))


# --- files ---


def test_columns_are_mapped_and_the_others_kept(toy):
    source = DatasetSource(toy, columns=COLUMNS)
    assert source.load("train", 0)[3] == Problem(
        id="toy/4",
        problem="3 + 1",
        columns={"question": "3 + 1", "gold": "4", "level": 3, "problem": "3 + 1", "answer": "4"},
        task="toy",
    )


def test_nested_columns_are_reached_by_dots(tmp_path):
    row = {"prompt": [{"content": "1+1?", "role": "user"}], "reward_model": {"ground_truth": "2"}, "index": 9}
    columns = {"problem": "prompt.0.content", "answer": "reward_model.ground_truth", "id": "index"}
    (problem,) = DatasetSource(write(tmp_path, [row]), columns=columns).load("train", 0)
    assert (problem.id, problem.problem, problem.columns["answer"]) == ("toy/9", "1+1?", "2")


def test_json_and_parquet_hold_the_same_problems(tmp_path, toy):
    expected = DatasetSource(toy, columns=COLUMNS).load("train", 0)
    for name in ("toy.json", "toy.parquet"):
        path = write(tmp_path, ROWS, name)
        assert DatasetSource(path, columns=COLUMNS).load("train", 0) == expected


def test_folder_is_read_by_split(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder, ROWS[:6], "train.jsonl")
    write(folder, ROWS[6:], "test.jsonl")
    assert len(DatasetSource(str(folder), columns=COLUMNS).load("train", 0)) == 6
    assert len(DatasetSource(str(folder), columns=COLUMNS, split="test").load("val", 0)) == 4
    with pytest.raises(ValueError, match=r"\(name None, split 'tset'\) cannot be loaded: Unknown split"):
        DatasetSource(str(folder), columns=COLUMNS, split="tset").load("train", 0)


@pytest.mark.parametrize(("held_out", "expected"), [(3, 3), (0.2, 2)])
def test_held_out_rows_are_disjoint_and_drawn_by_data_seed(toy, held_out, expected):
    source = DatasetSource(toy, columns=COLUMNS, held_out=held_out)
    train, val = source.load("train", 0), source.load("val", 0)
    assert len(val) == expected
    assert texts(train) | texts(val) == {row["question"] for row in ROWS}
    assert not texts(train) & texts(val)
    assert {tuple(texts(source.load("val", seed))) for seed in range(5)} != {tuple(texts(val))}


def test_nothing_held_out_leaves_all_rows_to_either_split(toy):
    source = DatasetSource(toy, columns=COLUMNS)
    assert source.load("train", 0) == source.load("val", 0) == source.load("test", 0)


@pytest.mark.parametrize("name", ["toy.jsonl", "toy.json", "toy.parquet"])
def test_repeated_problems_count_once_and_conflicts_not_at_all(tmp_path, name):
    again = [ROWS[0] | {"question": " 0  + 1"}, ROWS[1] | {"gold": "7"}, ROWS[2] | {"gold": " 3 "}, ROWS[2]]
    source = DatasetSource(write(tmp_path, [*ROWS[:3], *again], name), columns=COLUMNS)
    with pytest.warns(UserWarning, match="gives 1 problems with different answers: left out"):
        problems = source.load("train", 0)
    assert [(problem.id, problem.problem) for problem in problems] == [("toy/1", "0 + 1"), ("toy/3", "2 + 1")]
    assert source.cleaning == {"rows": 7, "repeated": 4, "dropped": 0, "conflicting": 1}


@pytest.mark.parametrize("name", ["toy.jsonl", "toy.parquet"])
@pytest.mark.parametrize(("column", "mapped"), [("choices", {}), ("options", {}), ("texts", {"choices": "texts"})])
def test_other_choices_make_another_problem(tmp_path, name, column, mapped):
    offered = [["1", "2"], ["2", "3"], ["1", "2"], None]
    rows = [{"question": "Which?", "gold": "A", column: choices} for choices in offered]
    source = DatasetSource(write(tmp_path, rows, name), columns=COLUMNS | mapped)
    assert [problem.id for problem in source.load("train", 0)] == ["toy/1", "toy/2", "toy/4"]
    rows[1]["gold"] = "B"
    source = DatasetSource(write(tmp_path, rows, name), columns=COLUMNS | mapped)
    assert [problem.columns["answer"] for problem in source.load("train", 0)] == ["A", "B", "A"]


def test_answers_that_are_written_otherwise_are_no_conflict(tmp_path):
    golds = [14.0, "14", ["14"], " 1 4", "014", ["A"], "A", "x y", "xy", "nan", "nan"]
    rows = [{"question": "14" if "4" in str(gold) else str(gold)[-4:], "gold": gold} for gold in golds]
    rows += [{"question": "many", "gold": ["1", "2"]}] * 2
    source = DatasetSource(write(tmp_path, rows), columns=COLUMNS)
    source.load("train", 0)
    assert source.cleaning["conflicting"] == 0
    big = [{"question": "big", "gold": "1" * 30 + end} for end in "12"]
    with pytest.warns(UserWarning, match="1 problems with different answers"):
        DatasetSource(write(tmp_path, [*rows, *big]), columns=COLUMNS).load("train", 0)


@pytest.mark.parametrize("name", ["toy.jsonl", "toy.parquet"])
def test_a_benchmark_keeps_every_row(tmp_path, name, recwarn):
    rows = [*ROWS[:3], ROWS[0], ROWS[1] | {"gold": "7"}]
    source = DatasetSource(write(tmp_path, rows, name), columns=COLUMNS, drop=r"^2 ")
    assert [problem.id for problem in source.load("test", 0)] == ["toy/1", "toy/2", "toy/4", "toy/5"]
    assert source.cleaning == {"rows": 5, "repeated": 0, "dropped": 1, "conflicting": 0}
    assert not [one for one in recwarn if "left out" in str(one.message)]
    numbered = COLUMNS | {"id": "level"}
    with pytest.raises(ValueError, match="`columns` maps `id` to 'level', whose values must differ from row to row"):
        DatasetSource(source.path, columns=numbered).load("test", 0)


def test_pattern_takes_the_problem_out_of_its_template(tmp_path):
    rows = [{"problem": f"Solve:\n\n{text}\n\nAnswer:", "answer": "1"} for text in ("a\nb", "c")]
    source = DatasetSource(write(tmp_path, rows), problem_pattern=r"(?s)Solve:\s+(.*?)\s+Answer:")
    assert [problem.problem for problem in source.load("train", 0)] == ["a\nb", "c"]
    assert source.load("train", 0)[0].columns["problem"] == "a\nb"
    path = write(tmp_path, [*rows, {"problem": "Solve: d", "answer": "1"}])
    with pytest.raises(ValueError, match=r"row 3 of .* does not match `problem_pattern`: 'Solve: d'\.\.\."):
        DatasetSource(path, problem_pattern=source.problem_pattern).load("train", 0)
    with pytest.raises(ValueError, match=r"row 1 of .* has no problem"):
        DatasetSource(path, problem_pattern="(?s)( ?).*").load("train", 0)


def test_unwanted_problems_are_dropped_and_counted(tmp_path):
    rows = [
        {"problem": text, "answer": gold}
        for text, gold in [("\u6c42\u548c", "1"), ("sum", "2"), ("\u6c42\u548c", "3")]
    ]
    source = DatasetSource(write(tmp_path, rows), drop=r"[\u4e00-\u9fff]")
    assert [problem.problem for problem in source.load("train", 0)] == ["sum"]
    assert source.cleaning == {"rows": 3, "repeated": 1, "dropped": 1, "conflicting": 0}


@pytest.mark.parametrize("name", ["toy.jsonl", "toy.parquet"])
def test_only_problem_answer_and_id_must_be_there(tmp_path, name):
    rows = [
        {"problem": "a", "answer": ["1"], "error": None, "meta": None, "key": 7},
        {"problem": "b", "answer": ["2"], "error": "1e-1", "meta": {"unit": "m"}, "key": 8},
    ]
    columns = {"problem": "problem", "answer": "answer", "tolerance": "error", "unit": "meta.unit", "id": "key"}
    path = write(tmp_path, rows, name)
    first, second = DatasetSource(path, columns=columns).load("train", 0)
    assert (first.id, first.columns["answer"], first.columns["tolerance"], first.columns["unit"]) == (
        "toy/7", ["1"], None, None,
    )  # fmt: skip
    assert (second.columns["tolerance"], second.columns["unit"]) == ("1e-1", "m")
    for ours in ("problem", "answer", "id"):
        with pytest.raises(ValueError, match=rf"row 1 of .* has no {ours} \(column 'error'\)"):
            DatasetSource(path, columns=columns | {ours: "error"}).load("train", 0)


@pytest.mark.parametrize("broken", [[], [{}], None, [{"content": None}]])
def test_a_table_row_without_its_nested_value_is_named(tmp_path, broken):
    rows = [{"prompt": [{"content": str(i)}], "answer": "1"} for i in range(5)]
    path = write(tmp_path, [*rows[:4], {"prompt": broken, "answer": "1"}], "toy.parquet")
    with pytest.raises(ValueError, match=r"row 5 of .* has no (column|problem)"):
        DatasetSource(path, columns={"problem": "prompt.0.content", "answer": "answer"}).load("train", 0)


def test_a_table_without_answers_is_read_too(tmp_path):
    path = write(tmp_path, [{"problem": text} for text in "aab"], "toy.parquet")
    source = DatasetSource(path, columns={"problem": "problem"}, verifier="exact")
    assert [problem.problem for problem in source.load("train", 0)] == ["a", "b"]
    with pytest.raises(ValueError, match=r"row 1 of .* has no column 'question', which `columns` names; got problem"):
        DatasetSource(path, columns={"problem": "question"}).load("train", 0)


def test_a_table_with_every_row_a_hundred_times_is_read_in_seconds(tmp_path):
    rows = [{"prompt": [{"content": f"{i} " * 50, "role": "user"}], "gold": {"truth": str(i)}} for i in range(1000)]
    path = write(tmp_path, rows * 100, "toy.parquet")
    columns = {"problem": "prompt.0.content", "answer": "gold.truth"}
    source = DatasetSource(path, columns=columns)
    started = time.perf_counter()
    assert len(source.load("train", 0)) == 1000
    assert time.perf_counter() - started < 5  # row by row it takes a quarter of a minute
    assert source.cleaning["repeated"] == 99_000
    assert len(DatasetSource(path, columns=columns, limit=70).load("train", 0)) == 70


def test_limit_reads_no_further(tmp_path):
    rows = [*ROWS[:2], {"question": "?", "gold": None}]
    assert len(DatasetSource(write(tmp_path, rows), columns=COLUMNS, limit=2).load("train", 0)) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "`path` must hold at least one problem, got none"),
        ([{"q": "1"}], "has no column 'question', which `columns` names; got q"),
        ([ROWS[0], {"question": "1"}], "row 2 of .* has no column 'gold', which `columns` names; got question"),
        ([*ROWS[:2], {"question": "1", "gold": None}], r"row 3 of .* has no answer \(column 'gold'\)"),
        ([{"question": " ", "gold": "1"}], r"row 1 of .* has no problem \(column 'question'\)"),
        (["text"], "(row|line) 1 of .* must be an object, got str"),
    ],
)
@pytest.mark.parametrize("name", ["toy.jsonl", "toy.json"])
def test_unusable_rows_are_named(tmp_path, rows, message, name):
    with pytest.raises(ValueError, match=message):
        DatasetSource(write(tmp_path, rows, name), columns=COLUMNS).load("train", 0)


def test_id_column_must_be_unique(tmp_path):
    path = write(tmp_path, [row | {"level": 0} for row in ROWS])
    with pytest.raises(ValueError, match="`columns` maps `id` to 'level', whose values must differ"):
        DatasetSource(path, columns=COLUMNS | {"id": "level"}).load("train", 0)


@pytest.mark.parametrize("name", ["toy.csv", "toy.jsonl.gz", "toy", "toy.data"])
def test_a_file_of_another_kind_names_the_kinds_that_are_read(tmp_path, name):
    (tmp_path / name).write_text("problem,answer\n1 + 1,2\n")
    message = r"`path` must be a \.jsonl, \.json or \.parquet file, a folder or a hub id, got "
    with pytest.raises(ValueError, match=message):
        DatasetSource(str(tmp_path / name)).load("train", 0)
    with pytest.raises(ValueError, match=message):
        DatasetSource("nowhere.csv").load("train", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere.jsonl"}, "`path` must be an existing file, got 'nowhere.jsonl'"),
        ({"split": "tarin"}, "`split` must be train for a single file, got 'tarin'"),
        ({"name": "main"}, "`name` is for data sets on the hub, got 'main'"),
        ({"held_out": 10}, "`held_out` must leave a problem to train on, got 10 of 10"),
    ],
)
def test_bad_settings_are_named_on_loading(toy, options, message):
    with pytest.raises(ValueError, match=message):
        DatasetSource(**{"path": toy, "columns": COLUMNS} | options).load("train", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"answer": "gold"}}, "`columns` must say which column is `problem`, got answer"),
        ({"held_out": 1.5}, "`held_out` must be a fraction below 1 or a whole number of rows, got 1.5"),
        ({"held_out": -1}, "`held_out` must be"),
        ({"limit": 0}, "`limit` must be at least 1, got 0"),
        ({"drop": "["}, r"`drop` must be a regular expression, got '\['"),
        ({"problem_pattern": "("}, r"`problem_pattern` must be a regular expression, got '\('"),
        ({"problem_pattern": ".*"}, "`problem_pattern` must be a regular expression with a group for the problem"),
        ({"verifier": "maths"}, "unknown verifier 'maths'; choices: .*math"),
    ],
)
def test_bad_settings_are_refused_when_made(options, message):
    with pytest.raises(ValueError, match=message):
        DatasetSource("toy.jsonl", **options)


# --- every option has an effect ---


@pytest.fixture
def folder(tmp_path):
    """A data set with two configurations, one of them with two splits, as it would lie on the hub."""
    folder = tmp_path / "set"
    folder.mkdir()
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    configs = [
        {"config_name": "en", "data_files": files, "default": True},
        {"config_name": "de", "data_files": "de.jsonl"},
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    write(folder, ROWS[:6], "train.jsonl")
    write(folder, ROWS[6:], "test.jsonl")
    write(folder, [row | {"question": f"{row['gold']} weniger 1"} for row in ROWS], "de.jsonl")
    return folder


COMMON = [{"task": "mine"}, {"template": PromptTemplate(user="{problem}=")}]
GENERATED = [*COMMON, {"size": 3}, {"val_size": 1}]
OPTIONS = {
    SumsSource: [*GENERATED, {"verifier": "math"}, {"max_term": 9}],
    ReasoningGymSource: [
        *GENERATED, {"verifier": "exact"}, {"dataset": "basic_arithmetic"}, {"settings": {"min_terms": 5}},
    ],
    DatasetSource: [
        *COMMON, {"verifier": "exact"}, {"path": "{folder}/de.jsonl"}, {"name": "de"}, {"split": "test"},
        {"columns": {"problem": "gold", "answer": "question"}}, {"held_out": 2}, {"limit": 3},
        {"problem_pattern": "(.*) . 1"}, {"drop": "3"},
    ],
}  # fmt: skip
BASES = {
    SumsSource: {"size": 5, "val_size": 4},
    ReasoningGymSource: {"size": 5, "val_size": 4},
    DatasetSource: {"path": "{folder}", "columns": COLUMNS},
}


def loaded(source):
    """All that a data module takes from a source."""
    problems = [source.load(split, 0) for split in ("train", "val")]
    return problems, source.task, type(source.verifier), source.template


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(kind, options, id=f"{kind.__name__}-{next(iter(options))}")
        for kind, table in OPTIONS.items()
        for options in table
    ],
)
def test_every_option_of_a_source_has_an_effect(folder, kind, options):
    def make(**settings):
        if "path" in settings:
            settings["path"] = settings["path"].format(folder=folder)
        return loaded(kind(**settings))

    assert make(**BASES[kind]) == make(**BASES[kind]) != make(**BASES[kind] | options)


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_option_of_a_source_is_in_the_table(kind):
    assert {name for options in OPTIONS[kind] for name in options} == inspect.signature(kind).parameters.keys()


def test_a_configuration_of_a_data_set_is_read_by_name(folder):
    source = DatasetSource(str(folder), columns=COLUMNS, name="de")
    assert source.load("train", 0)[0].problem == "1 weniger 1"


def test_problems_carry_the_name_of_their_task(folder):
    sources = {
        "basic_arithmetic": partial(ReasoningGymSource, "basic_arithmetic", size=1),
        "train": partial(DatasetSource, str(folder / "train.jsonl"), columns=COLUMNS),
        "sums": partial(SumsSource, size=1),
    }
    for default, make in sources.items():
        for source, name in ((make(), default), (make(task="mine"), "mine")):
            problem = source.load("train", 0)[0]
            assert source.task == problem.task == problem.id.partition("/")[0] == name


def test_hub_without_network_is_one_sentence():
    with pytest.raises(ValueError, match=r"`path` 'no-one/nothing' \(name main, split 'train'\) cannot be loaded: "):
        DatasetSource("no-one/nothing", name="main").load("train", 0)


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("lightning_rlvr.checks.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r'ReasoningGymSource needs reasoning-gym: pip install "lightning-rlvr\[data\]"'
    ):
        ReasoningGymSource(verifier="exact")
    with pytest.raises(ImportError, match=r'needs datasets: pip install "lightning-rlvr\[data\]"'):
        DatasetSource("no-one/nothing", verifier="exact").load("train", 0)


def test_verifier_may_be_an_instance():
    verifier = ExactVerifier()
    assert SumsSource(verifier=verifier).verifier is verifier


def test_shuffled_is_a_permutation_of_the_seed():
    assert sorted(shuffled(50, 1)) == list(range(50))
    assert shuffled(50, 1) == shuffled(50, 1) != shuffled(50, 2)
