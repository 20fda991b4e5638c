import json

import datasets
import pytest

from command_line import CONFIGS, error, fit_error, parse
from lightning_rlvr.data.sources import DatasetSource

SUITES = {
    "competition6": ["aime24", "aime25", "amc23", "hmmt_feb25", "brumo25", "cmimc25"],
    "grpo6": ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"],
    "grade_school": ["gsm8k"],
}
PROBLEM_TYPE = {"problem_idx": 1, "problem": "p", "answer": "7", "problem_type": ["Algebra"]}
CARDS = {
    "HuggingFaceH4/aime_2024": ("train", {"id": 60, "problem": "p", "solution": "s", "answer": "025", "year": "2024"}),
    "math-ai/aime25": ("test", {"problem": "p", "answer": "7"}),
    "math-ai/amc23": ("test", {"id": 0, "question": "p", "answer": 27.0, "url": "u"}),
    "MathArena/hmmt_feb_2025": ("train", PROBLEM_TYPE | {"answer": r"\frac{1}{2}"}),
    "MathArena/brumo_2025": ("train", PROBLEM_TYPE),
    "MathArena/cmimc_2025": ("train", PROBLEM_TYPE),
    "HuggingFaceH4/MATH-500": ("test", {"problem": "p", "solution": "s", "answer": "7", "level": 2, "unique_id": "u"}),
    "math-ai/minervamath": ("test", {"question": "p", "answer": "4.5e33"}),
    "math-ai/olympiadbench": ("test", {"question": "p", "final_answer": ["$2$"], "error": None, "modality": "Text"}),
    "openai/gsm8k": ("test", {"question": "p", "answer": "1 + 1 = 2\n#### 2"}),
}
"""Split and columns of the hub data sets, by their cards."""
PRE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
POST = '\n\nRemember to put your answer on its own line after "Answer:".'


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def stand_in(folder, row, split, name):
    """A folder as the hub would have it; the configuration ``name`` is one of two."""
    configs = [
        {"config_name": config, "data_files": [{"split": split, "path": f"{config}.jsonl"}]}
        for config in (name or "default", "socratic")
    ]
    write(folder / f"{name or 'default'}.jsonl", [row, row | {next(k for k in row if row[k] == "p"): "q"}])
    write(folder / "socratic.jsonl", [])
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    return str(folder)


# --- suites ---


@pytest.mark.parametrize("suite", SUITES)
def test_every_benchmark_of_a_suite_loads_from_its_own_columns(tmp_path, suite):
    sources = parse("--data.test", CONFIGS / "suite" / f"{suite}.yaml").datamodule.test_sources
    assert [source.task for source in sources] == SUITES[suite]
    for source in sources:
        split, row = CARDS[source.path]
        source.path = stand_in(tmp_path / source.task, row, split, source.name)
        first, second = source.load("test", 0)
        assert (first.problem, second.problem) == ("p", "q")
        assert first.columns["answer"] == row.get("answer", row.get("final_answer"))
        assert first.columns.get("tolerance") is None


def test_every_suite_is_tested():
    assert {path.stem for path in (CONFIGS / "suite").iterdir()} == SUITES.keys() | {"sums", "tiny_sums"}


@pytest.mark.parametrize(
    ("suite", "experiment", "different"), [("tiny_sums", "tiny_grpo", 200), ("sums", "sums_grpo", 95)]
)
def test_a_generated_suite_is_the_same_for_all_data_seeds(suite, experiment, different):
    loaded, config = [], CONFIGS / "experiment" / f"{experiment}.yaml"
    for seed in (0, 1):
        flags = ["--data.test", CONFIGS / "suite" / f"{suite}.yaml", f"--data.data_seed={seed}"]
        cli = parse(*flags, config=config)
        loaded.append([problem.problem for problem in cli.datamodule.test_sources[0].load("test", 0)])
    assert loaded[0] == loaded[1]
    assert len({*loaded[0]}) == different


def test_tolerances_reach_the_verifier(tmp_path):
    [*_, olympiad] = parse("--data.test", CONFIGS / "suite" / "grpo6.yaml").datamodule.test_sources
    _, row = CARDS["math-ai/olympiadbench"]
    olympiad.path = stand_in(tmp_path / "set", row | {"error": "1e-1"}, "test", None)
    assert olympiad.load("test", 0)[0].columns["tolerance"] == "1e-1"


def test_one_entry_adds_a_benchmark(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "- class_path: lightning_rlvr.data.sources.DatasetSource\n"
        "  init_args: {path: my/gsm8k.jsonl, columns: {problem: question, answer: answer}}\n"
    )
    data = parse("--data.test", CONFIGS / "suite" / "grpo6.yaml", "--data.test+", mine).datamodule
    assert [source.task for source in data.test_sources] == [*SUITES["grpo6"], "gsm8k"]
    assert data.test_sources[-1].path == "my/gsm8k.jsonl"


@pytest.mark.filterwarnings("ignore")
def test_a_suite_that_cannot_be_reached_is_one_sentence(capsys, tmp_path):
    sentence = fit_error(capsys, tmp_path, "--data.test", CONFIGS / "suite" / "competition6.yaml")
    assert sentence.startswith("rlvr: benchmark aime24: `path` 'HuggingFaceH4/aime_2024' (name None, split 'train')")
    assert sentence.endswith("`decontamination_ngram_size` null trains without reading the benchmarks")
    assert "choices: ReasoningGymSource, SumsSource, DatasetSource" in error(capsys, "test", "--data.test=Sums")


@pytest.mark.parametrize(
    ("columns", "row", "answer"),
    [
        ({"problem": "question", "answer": "answer"}, {"question": "p", "answer": "So 2.\n#### 2"}, "So 2.\n#### 2"),
        ({"problem": "input", "answer": "target"}, {"input": "p", "target": 14.0}, 14.0),
        (
            {"problem": "question", "answer": "final_answer", "tolerance": "error"},
            {"question": "p", "final_answer": ["$1$,$2$"], "error": None},
            ["$1$,$2$"],
        ),
        (None, {"id": 60, "problem": "p", "answer": "025"}, "025"),
        (None, {"id": 0, "question": "p", "problem": "p", "answer": 27.0}, 27.0),
        (
            {"problem": "problem", "answer": "solution"},
            {"problem": "p", "solution": r"is \boxed{1.6}"},
            r"is \boxed{1.6}",
        ),
    ],
    ids=["gsm8k", "mawps", "olympiadbench", "aime", "amc", "minerva"],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_local_files_load_by_their_own_columns(tmp_path, columns, row, answer, kind):
    [problem] = DatasetSource(write(tmp_path / f"mine.{kind}", [row]), columns=columns).load("test", 0)
    assert (problem.problem, problem.columns["answer"]) == ("p", answer)


# --- DAPO-Math ---


def dapo_rows():
    """150 problems, the first with another answer in a second row, and two in Chinese."""
    texts = [f"What is ${i} +\n{i}$?" for i in range(150)] + ["What is $0 +\n0$?", "\u6c42 $1$", "\u6c42 $2$"]
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": PRE + text + POST, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(number), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"uuid-{number}"},
        }
        for number, text in enumerate(texts)
    ]


def processed_rows():
    """The same in the columns of the processed form, every other problem without the template."""
    rows = dapo_rows()
    for number, row in enumerate(rows):
        text = row["prompt"][0]["content"]
        row["prompt"] = text if number % 2 else text.removeprefix(PRE).removesuffix(POST)
        row["solution"] = row["reward_model"]["ground_truth"]
    return rows[:-2]


def dapo(*args):
    return parse(*args, config=CONFIGS / "experiment" / "dapo_mcpo_qwen3_4b.yaml").datamodule


def configured(file, path, **changes):
    [source] = dapo("--data.train", CONFIGS / "source" / file).train_sources
    for key, value in {"path": path, **changes}.items():
        setattr(source, key, value)
    return source


@pytest.mark.filterwarnings("ignore:.*gives 1 problems with different answers")
@pytest.mark.parametrize("form", ["file", "folder"])
def test_dapo_math_as_published_is_cleaned(tmp_path, form):
    path = write(tmp_path / "data" / "dapo-math-17k.parquet", dapo_rows() * 100)
    source = configured("dapo_math_raw.yaml", path if form == "file" else str(tmp_path / "data"))
    train, val = source.load("train", 0), source.load("val", 0)
    assert source.cleaning == {"rows": 15_300, "repeated": 15_300 - 152, "dropped": 2, "conflicting": 1}
    assert (len(train), len(val)) == (21, 128)
    expected = {(f"dapo_math/uuid-{i}", f"What is ${i} +\n{i}$?", str(i)) for i in range(1, 150)}
    assert {(p.id, p.problem, p.columns["answer"]) for p in train + val} == expected
    assert source.load("train", 0) == train != source.load("train", 1)


@pytest.mark.filterwarnings("ignore:.*gives 1 problems with different answers")
@pytest.mark.parametrize("form", ["file", "folder"])
def test_dapo_math_processed_loses_what_is_left_of_its_template(tmp_path, form):
    path = write(tmp_path / "data" / "en.parquet", processed_rows())
    if form == "folder":
        configs = [{"config_name": name, "data_files": f"{name}.parquet"} for name in ("en", "cn")]
        (tmp_path / "data" / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    changes = {"name": None} if form == "file" else {}
    source = configured("dapo_math.yaml", path if form == "file" else str(tmp_path / "data"), **changes)
    problems = source.load("train", 0) + source.load("val", 0)
    assert {(p.id, p.problem) for p in problems} == {
        (f"dapo_math/uuid-{i}", f"What is ${i} +\n{i}$?") for i in range(1, 150)
    }
    assert source.cleaning == {"rows": 151, "repeated": 1, "dropped": 0, "conflicting": 1}


def test_both_forms_are_trained_on_alike():
    processed, raw = dapo(), dapo("--data.train", CONFIGS / "source" / "dapo_math_raw.yaml")
    [source] = raw.train_sources
    assert (source.path, source.name) == ("BytedTsinghua-SIA/DAPO-Math-17k", None)
    assert [one.task for one in processed.test_sources] == SUITES["competition6"]
    assert processed.num_problems == 2048
    for name in ("prompts_per_step", "max_prompt_length", "template", "num_problems", "data_seed"):
        assert getattr(processed, name) == getattr(raw, name)


@pytest.mark.parametrize("flags", [[], ["--data.train", CONFIGS / "source" / "dapo_math_raw.yaml"]], ids=["", "raw"])
def test_the_length_penalty_goes_with_either_form(flags):
    [plain] = dapo(*flags).train_sources
    [punished] = dapo(*flags, "--data.train.verifier", CONFIGS / "verifier" / "math_overlong.yaml").train_sources
    assert (punished.path, punished.columns) == (plain.path, plain.columns)
    assert punished.verifier.part_names == ("math", "overlong")
