import inspect
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_rlvr.data.datamodule import PromptDataModule
from lightning_rlvr.data.sources import DatasetSource, Problem, ProblemSource, SumsSource
from lightning_rlvr.data.templates import PromptTemplate
from lightning_rlvr.verify.base import Attempt, Verdict, Verifier
from lightning_rlvr.verify.exact import ExactVerifier


class Listed(ProblemSource):
    """Problems from lists of texts; the answer is the text itself."""

    def __init__(self, train, val=(), task="listed", verifier=None, template=None, test=()):
        super().__init__(task, verifier or ExactVerifier(), template)
        self.texts = {"train": train, "val": val, "test": test}
        self.loaded = []

    def load(self, split, seed):
        self.loaded.append((split, seed))
        return [
            Problem(id=f"{self.task}/{split}/{i}", problem=text, columns={"answer": text}, task=self.task)
            for i, text in enumerate(self.texts[split])
        ]


class Module(LightningModule):
    """Writes down which problems it is shown."""

    def __init__(self, tokenizer, read_estimate=False):
        super().__init__()
        self.automatic_optimization = False
        self.tokenizer = tokenizer
        self.read_estimate = read_estimate
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.held_out, self.tested = [], [], []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.problem_ids)
        self.optimizers().step()

    def validation_step(self, batch, batch_idx):
        self.held_out += batch.problem_ids

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.tested.append((dataloader_idx, batch.problem_ids))

    def configure_optimizers(self):
        if self.read_estimate:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, **options):
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"enable_checkpointing": False, "num_sanity_val_steps": 0, "default_root_dir": folder}
    return Trainer(**settings | options)


def attach(data, tokenizer, rank=0, world_size=1, stage="fit"):
    module = SimpleNamespace(tokenizer=tokenizer)
    data.trainer = SimpleNamespace(lightning_module=module, global_rank=rank, world_size=world_size)
    data.setup(stage)
    return data


NUMBERS = [str(i) for i in range(10)]


def benchmark(*texts, task="bench", **options):
    return Listed([], task=task, test=texts, **options)


def numbers(**options):
    return PromptDataModule(Listed(NUMBERS, ["a", "b", "c"]), **{"prompts_per_step": 4} | options)


# --- with a real Trainer ---


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.mark.parametrize("read_estimate", [False, True])
def test_resuming_after_any_step_continues_the_unbroken_run(tmp_path, plain_tokenizer, read_estimate):  # RS-03
    checkpoints = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    unbroken = Module(plain_tokenizer, read_estimate)
    options = {"max_epochs": 3, "enable_checkpointing": True, "callbacks": [checkpoints]}
    trainer(tmp_path, **options).fit(unbroken, datamodule=numbers())
    assert [len(batch) for batch in unbroken.seen] == [4, 4, 2] * 3
    assert len(set(unbroken.seen)) == 9  # every epoch in an order of its own
    for step in range(1, 9):  # 3 and 6 are ends of epochs
        resumed = Module(plain_tokenizer, read_estimate)
        trainer(tmp_path, max_epochs=3).fit(resumed, datamodule=numbers(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert resumed.seen == unbroken.seen[step:]


@pytest.mark.parametrize("stop", [{"max_epochs": 1}, {"max_steps": 3}, {"max_steps": 4}])
def test_resuming_a_finished_run_continues_it(tmp_path, plain_tokenizer, stop):
    unbroken = Module(plain_tokenizer)
    trainer(tmp_path, max_steps=7).fit(unbroken, datamodule=numbers())
    first = trainer(tmp_path, **stop)
    begun = Module(plain_tokenizer)
    first.fit(begun, datamodule=numbers())
    first.save_checkpoint(tmp_path / "stopped.ckpt")
    resumed = Module(plain_tokenizer)
    trainer(tmp_path, max_steps=7).fit(resumed, datamodule=numbers(), ckpt_path=tmp_path / "stopped.ckpt")
    assert begun.seen + resumed.seen == unbroken.seen


def test_validation_shows_every_held_out_problem_once(tmp_path, plain_tokenizer):
    module = Module(plain_tokenizer)
    trainer(tmp_path).validate(module, datamodule=numbers(val_prompts_per_step=2), verbose=False)
    assert module.held_out == [f"listed/val/{i}" for i in range(3)]


def test_no_validation_on_request(tmp_path, plain_tokenizer):
    module = Module(plain_tokenizer)
    trainer(tmp_path, max_steps=1).fit(module, datamodule=numbers(val_problems=0))
    assert (len(module.seen), module.held_out) == (1, [])


def test_tokenizer_is_the_modules_own(tmp_path):
    with pytest.raises(TypeError, match="attribute `tokenizer` is a transformers tokenizer, got Module with NoneType"):
        trainer(tmp_path).fit(Module(None), datamodule=numbers())
    with pytest.raises(TypeError, match="PromptDataModule works with a Trainer only"):
        numbers().setup("fit")


# --- what is loaded ---


def test_long_prompts_are_left_out_with_a_count(plain_tokenizer):  # PL-01
    data = PromptDataModule(
        Listed(["1" * 150, "22"], ["3"]), template=PromptTemplate(user="x" * 50 + "{problem}"), max_prompt_length=64
    )
    with pytest.warns(UserWarning, match="1 of 2 training prompts are longer than `max_prompt_length` 64: left out"):
        attach(data, plain_tokenizer)
    assert data.problem_ids["train"] == ("listed/train/1",)


def test_no_prompt_within_the_limit_is_an_error(plain_tokenizer):
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match="`max_prompt_length` 3 leaves no training prompt: the shortest has 4 tokens"),
    ):
        attach(PromptDataModule(Listed(["1234"], ["5"]), max_prompt_length=3), plain_tokenizer)


def test_held_out_problems_never_occur_in_training(plain_tokenizer):
    with pytest.warns(UserWarning, match="1 of 3 held-out problems are also training data: left out"):
        data = attach(PromptDataModule(Listed(["1  + 1", "2"], ["3", " 1 + 1", "4"]), num_problems=1), plain_tokenizer)
    assert data.problem_ids["val"] == ("listed/val/0", "listed/val/2")


def test_source_with_nothing_held_out_says_what_to_do(tmp_path, plain_tokenizer):
    path = tmp_path / "toy.jsonl"
    path.write_text(json.dumps({"problem": "1", "answer": "1"}))
    with (
        pytest.warns(UserWarning, match="1 of 1 held-out problems"),
        pytest.raises(ValueError, match=r"no held-out problem is left; hold some out .* or set `val_problems` to 0"),
    ):
        attach(PromptDataModule(DatasetSource(str(path))), plain_tokenizer)


def test_golds_that_cannot_be_read_stop_the_run_or_are_skipped(tmp_path, plain_tokenizer):
    path = tmp_path / "toy.jsonl"
    golds = ["1", r"\frac{1}{", "3", "?!"]
    path.write_text("\n".join(json.dumps({"problem": f"p{i}", "answer": gold}) for i, gold in enumerate(golds)))
    source = DatasetSource(str(path), held_out=1)
    with pytest.raises(
        ValueError, match=r"2 of 3 training problems cannot be verified \(toy/2: `answer` .* set `skip_bad_golds`"
    ):
        attach(PromptDataModule(source), plain_tokenizer)
    with pytest.warns(UserWarning, match="2 of 3 training problems cannot be verified .*: left out"):
        data = attach(PromptDataModule(source, skip_bad_golds=True), plain_tokenizer)
    assert sorted(data.problem_ids["train"] + data.problem_ids["val"]) == ["toy/1", "toy/3"]


def test_subset_is_drawn_by_data_seed(plain_tokenizer):
    drawn = [attach(numbers(num_problems=4, data_seed=seed), plain_tokenizer) for seed in (0, 0, 1)]
    subsets = [data.problem_ids["train"] for data in drawn]
    assert [len(set(subset)) for subset in subsets] == [4, 4, 4]
    assert subsets[0] == subsets[1] != subsets[2]
    assert drawn[0].data_hash == drawn[1].data_hash != drawn[2].data_hash
    with pytest.raises(ValueError, match="`num_problems` must be at most the 10 usable problems, got 11"):
        attach(numbers(num_problems=11), plain_tokenizer)


def test_hash_changes_with_anything_that_is_shown_or_scored(plain_tokenizer):
    def hashed(text="1", template="{problem}"):
        source = Listed([text], ["2"], template=PromptTemplate(user=template))
        return attach(PromptDataModule(source), plain_tokenizer).data_hash

    assert len({hashed(), hashed(text="3"), hashed(template="{problem}=")}) == 3
    assert hashed() == hashed()


def test_source_template_wins_over_the_common_one(plain_tokenizer):
    sources = [Listed(["1"], ["2"], "a", template=PromptTemplate(user="A{problem}")), Listed(["3"], ["4"], "b")]
    data = attach(PromptDataModule(sources, template=PromptTemplate(user="B{problem}")), plain_tokenizer)
    (batch,) = data.train_dataloader()
    assert sorted(batch.prompts) == ["A1", "B3"]


def test_ranks_share_the_problems(plain_tokenizer):
    ranks = [attach(numbers(), plain_tokenizer, rank=r, world_size=2) for r in range(2)]
    assert ranks[0].data_hash == ranks[1].data_hash
    train = [name for data in ranks for batch in data.train_dataloader() for name in batch.problem_ids]
    val = [name for data in ranks for batch in data.val_dataloader() for name in batch.problem_ids]
    assert sorted(train) == sorted(ranks[0].problem_ids["train"])
    assert sorted(val) == sorted(ranks[0].problem_ids["val"])
    with pytest.raises(ValueError, match="`prompts_per_step` must be at least 2, one for each rank, got 1"):
        attach(numbers(prompts_per_step=1), plain_tokenizer, world_size=2).train_dataloader()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts_per_step": 0}, "`prompts_per_step` must be at least 1, got 0"),
        ({"val_problems": -1}, "`val_problems` must be at least 0, got -1"),
        ({"val": Listed([], ["1"])}, "sources with different `task` names, got listed, listed"),
        ({"train": []}, "sources with different `task` names, got none"),
        ({"test": benchmark("1", task="listed")}, "different `task` names, got listed, listed"),
        ({"test": [benchmark("1"), benchmark("2")]}, "different `task` names, got listed, bench, bench"),
        ({"test": benchmark("1"), "test_problems": 0}, "`test_problems` must be at least 1, got 0"),
        ({"decontamination_ngram_size": 0}, "`decontamination_ngram_size` must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused_when_made(options, message):
    with pytest.raises(ValueError, match=message):
        PromptDataModule(**{"train": Listed(["1"])} | options)


WITH_A_LONG_ONE = ["1234567", *NUMBERS]
OPTIONS = [
    {"train": Listed(["x", "y"], ["a"])}, {"val": Listed([], ["d"], "other")}, {"prompts_per_step": 2},
    {"val_prompts_per_step": 2}, {"template": PromptTemplate(user="{problem}=")}, {"max_prompt_length": 1},
    {"data_seed": 1}, {"num_problems": 5}, {"val_problems": 2}, {"val_problems": 0}, {"longest_first": True},
    {"test": benchmark("3")},
]  # fmt: skip
ELSEWHERE = {"skip_bad_golds", "test_problems", "decontamination_ngram_size"}
"""Tested by themselves: with golds that are bad, and with benchmarks."""


def shown(tokenizer, **options):
    """Prompts of the batches of two epochs, and of validation."""
    settings = {"train": Listed(WITH_A_LONG_ONE, ["a", "b", "c"]), "prompts_per_step": 4}
    data = attach(PromptDataModule(**settings | options), tokenizer)
    train = data.train_dataloader()
    return [[batch.prompts for batch in loader] for loader in (train, train, data.val_dataloader())]


@pytest.mark.filterwarnings("ignore:.*are longer than", "ignore:.*successive words with `test`")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_every_option_changes_what_is_shown(plain_tokenizer, options):
    assert shown(plain_tokenizer) == shown(plain_tokenizer) != shown(plain_tokenizer, **options)


def test_every_option_is_in_the_table():
    named = {name for options in OPTIONS for name in options} | ELSEWHERE
    assert named == inspect.signature(PromptDataModule).parameters.keys()


def test_validation_shows_what_its_options_say(plain_tokenizer):
    def held_out(**options):
        return shown(plain_tokenizer, **options)[-1]

    assert held_out() == [("a", "b", "c")]
    assert held_out(val_prompts_per_step=2) == [("a", "b"), ("c",)]
    assert held_out(val=[Listed([], ["d"], "d"), Listed([], ["e"], "e")]) == [("d", "e")]
    drawn = [held_out(val_problems=2, data_seed=seed) for seed in range(8)]
    assert all(len(pair) == 2 and set(pair) < set("abc") for [pair] in drawn)
    assert len({pair for [pair] in drawn}) > 1, "drawn by data seed"


def test_every_epoch_can_begin_with_the_longest_prompt(plain_tokenizer):
    for seed in range(5):
        first, second, _ = shown(plain_tokenizer, longest_first=True, data_seed=seed)
        assert all("1234567" in epoch[0] for epoch in (first, second))


# --- benchmarks ---


def test_each_benchmark_has_a_loader_and_nothing_else_is_loaded(tmp_path, plain_tokenizer):
    data = numbers(test=[benchmark("p", "q", "r"), benchmark("s", task="other")], val_prompts_per_step=2)
    module = Module(plain_tokenizer)
    trainer(tmp_path).test(module, datamodule=data, verbose=False)
    first = [(0, ("bench/test/0", "bench/test/1")), (0, ("bench/test/2",))]
    assert module.tested == [*first, (1, ("other/test/0",))]
    assert data.set_names("test") == ("bench", "other")
    assert data.problem_ids == {"test": ("bench/test/0", "bench/test/1", "bench/test/2", "other/test/0")}
    assert data.task_names == ("listed", "bench", "other")
    assert data.train_sources[0].loaded == []


def test_without_benchmarks_the_held_out_problems_are_tested_on(tmp_path, plain_tokenizer):
    module, data = Module(plain_tokenizer), numbers()
    trainer(tmp_path).test(module, datamodule=data, verbose=False)
    assert module.tested == [(0, tuple(f"listed/val/{i}" for i in range(3)))]
    assert data.set_names("test") == data.set_names("val") == ("listed",)
    assert data.longest_prompt("test") == data.longest_prompt("val") == 1
    with pytest.raises(ValueError, match="nothing to test on: `val_problems` is 0, and `test` names no benchmark"):
        trainer(tmp_path).test(module, datamodule=numbers(val_problems=0), verbose=False)


def test_training_and_testing_follow_each_other_in_one_process(tmp_path, plain_tokenizer):
    data, module = numbers(test=benchmark("pqr")), Module(plain_tokenizer)
    both = trainer(tmp_path, max_epochs=1)
    both.fit(module, datamodule=data)
    assert (data.longest_prompt("test"), data.set_names("train")) == (0, ("listed",))
    fitted = data.data_hash
    both.test(module, datamodule=data, verbose=False)
    assert (len(module.seen), module.tested) == (3, [(0, ("bench/test/0",))])
    assert (data.longest_prompt("test"), data.longest_prompt("train")) == (3, 0)
    tested = data.data_hash
    both.fit(Module(plain_tokenizer), datamodule=data)
    assert data.data_hash == fitted != tested


def test_batches_name_the_tasks_of_their_own_split(plain_tokenizer):
    data = numbers(val=Listed([], ["v"], "val"), test=[benchmark("p"), benchmark("q", task="other")])
    attach(data, plain_tokenizer)
    [*_, train], [val] = data.train_dataloader(), data.val_dataloader()
    assert (train.task_names, val.task_names) == (("listed",), ("val",))
    attach(data, plain_tokenizer, stage="test")
    tests = [batch for loader in data.test_dataloader() for batch in loader]
    assert [(batch.task_names, batch.task_id.tolist()) for batch in tests] == [
        (("bench", "other"), [i]) for i in (0, 1)
    ]


@pytest.mark.parametrize(("stage", "splits"), [("fit", ["test"]), ("validate", []), ("test", ["test"])])
def test_benchmarks_are_read_where_they_are_needed(plain_tokenizer, stage, splits):
    bench = benchmark("p")
    attach(numbers(test=bench), plain_tokenizer, stage=stage)
    assert [split for split, _ in bench.loaded] == splits
    attach(numbers(test=(other := benchmark("p")), decontamination_ngram_size=None), plain_tokenizer)
    assert other.loaded == []


def test_benchmark_problems_are_the_same_for_every_data_seed(plain_tokenizer):
    letters = "abcdefghij"
    drawn = [
        attach(
            numbers(test=[benchmark(*letters), benchmark("x", "y", task="small")], test_problems=4, data_seed=seed),
            plain_tokenizer,
            stage="test",
        )
        for seed in range(3)
    ]
    assert len({data.data_hash for data in drawn}) == 1
    assert {seed for data in drawn for source in data.test_sources for _, seed in source.loaded} == {0}
    ids = drawn[0].problem_ids["test"]
    assert [len([name for name in ids if name.startswith(task)]) for task in ("bench", "small")] == [4, 2]


def test_ranks_share_each_benchmark(plain_tokenizer):
    data = [
        attach(numbers(test=[benchmark(*"pqr"), benchmark(*"st", task="o")]), plain_tokenizer, r, 2, "test")
        for r in range(2)
    ]
    for number, size in enumerate((3, 2)):
        names = [name for part in data for batch in part.test_dataloader()[number] for name in batch.problem_ids]
        assert len(names) == len(set(names)) == size


def test_training_problems_that_overlap_with_a_benchmark_are_left_out_before_the_draw(plain_tokenizer):
    data = numbers(test=benchmark("5", "x 7 y"), num_problems=9)
    with pytest.warns(UserWarning, match="1 of 10 training problems share 13 successive words with `test`: left out"):
        attach(data, plain_tokenizer)
    assert data.problem_ids["train"] == tuple(f"listed/train/{i}" for i in range(10) if i != 5)
    assert data.cleaning["train/listed"]["overlapping"] == 1
    with pytest.warns(UserWarning, match="2 of 10 training problems share 1 successive words with `test`: left out"):
        attach(numbers(test=benchmark("5", "x 7 y"), decontamination_ngram_size=1), plain_tokenizer)
    with pytest.raises(ValueError, match=r"10 of 10 training problems share .*: none is left"):
        attach(numbers(test=benchmark(*NUMBERS)), plain_tokenizer)


def test_a_benchmark_that_cannot_be_read_is_named(plain_tokenizer):
    missing = {"test": DatasetSource("no-one/nothing", task="aime")}
    sentence = r"benchmark aime: `path` 'no-one/nothing' \(name None, split 'train'\) cannot be loaded: .*"
    with pytest.raises(
        ValueError, match=rf"{sentence}; `decontamination_ngram_size` null trains without reading the benchmarks"
    ):
        attach(numbers(**missing), plain_tokenizer)
    with pytest.raises(ValueError, match=sentence):
        attach(numbers(**missing), plain_tokenizer, stage="test")
    with pytest.raises(ValueError, match="benchmark bench has no problem"):
        attach(numbers(test=benchmark()), plain_tokenizer)


def test_what_a_benchmark_loses_is_said_with_its_name(plain_tokenizer):
    data = numbers(test=benchmark("1234567", "1"), max_prompt_length=4)
    with pytest.warns(UserWarning, match="1 of 2 bench prompts are longer than `max_prompt_length` 4: left out"):
        attach(data, plain_tokenizer, stage="test")
    assert data.cleaning == {"test/bench": {"overlapping": 0, "unverifiable": 0, "too_long": 1, "chosen": 1}}
    with (
        pytest.warns(UserWarning, match="1 of 1 bench prompts are longer"),
        pytest.raises(ValueError, match="`max_prompt_length` 1 leaves no bench prompt"),
    ):
        attach(numbers(test=benchmark("12"), max_prompt_length=1), plain_tokenizer, stage="test")


def test_cleaning_counts_what_became_of_every_row(tmp_path, plain_tokenizer):
    path = tmp_path / "toy.jsonl"
    rows = [(str(i), "1") for i in range(6)] + [
        ("1", " 1"),
        ("2", "7"),
        ("1", "1"),
        ("x" * 99, "1"),
        ("?", "?!"),
        ("a", "1"),
    ]
    path.write_text("\n".join(json.dumps({"problem": text, "answer": gold}) for text, gold in rows))
    data = PromptDataModule(
        DatasetSource(str(path), drop="a"),
        test=benchmark("3"),
        val_problems=0,
        skip_bad_golds=True,
        max_prompt_length=9,
    )
    with pytest.warns(UserWarning, match="left out") as warned:
        attach(data, plain_tokenizer)
    counts = {"rows": 12, "repeated": 3, "dropped": 1, "conflicting": 1}
    outcomes = {"overlapping": 1, "unverifiable": 1, "too_long": 1, "chosen": 4}
    assert data.cleaning == {"train/toy": counts | outcomes}
    assert counts.pop("rows") == sum(counts.values()) + sum(outcomes.values())
    assert len(warned) == 4  # nothing is said of repetitions and of what `drop` asked for


# --- verification ---


class Echo(Verifier):
    """Says which task judged which completion."""

    def __init__(self, name):
        self.name = name

    def verify(self, attempts):
        return [Verdict(status="correct", reward=1.0, answer=f"{self.name}{a.completion}") for a in attempts]


def test_completions_go_to_the_verifier_of_their_task_and_keep_their_order(plain_tokenizer):
    verifiers = {name: Echo(name) for name in "ab"}
    sources = [Listed([name * 2], ["v" + name], task=name, verifier=verifiers[name]) for name in "ab"]
    data = attach(PromptDataModule(sources), plain_tokenizer)
    (prompts,) = data.train_dataloader()
    tasks = [prompts.task_names[prompts.task_id[row]] for row in (1, 0, 0, 1)]
    attempts = [
        Attempt(prompt="", completion=str(row), completion_ids=(), truncated=False, columns={}) for row in range(4)
    ]
    verdicts = data.judge(tasks, attempts)
    assert [verdict.answer for verdict in verdicts] == [f"{task}{row}" for row, task in enumerate(tasks)]


# --- from configs ---


def test_config_makes_sources_verifiers_and_templates():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(PromptDataModule, "data")
    package = "lightning_rlvr"
    config = {
        "train": {"class_path": f"{package}.data.sources.SumsSource", "init_args": {"size": 3, "max_term": 9}},
        "val": [
            {
                "class_path": f"{package}.data.sources.DatasetSource",
                "init_args": {
                    "path": "toy.jsonl",
                    "columns": {"problem": "question", "answer": "gold"},
                    "held_out": 0.1,
                    "verifier": {
                        "class_path": f"{package}.verify.exact.ExactVerifier",
                        "init_args": {"extract": "all", "after": ";"},
                    },
                    "template": {"user": r"{problem} \boxed{{}}", "chat": "plain"},
                },
            }
        ],
        "template": {"user": "{problem}!"},
        "data_seed": 7,
    }
    data = parser.instantiate(parser.parse_object({"data": config})).data
    assert isinstance(data.train_sources[0], SumsSource)
    assert isinstance(data.train_sources[0].verifier, ExactVerifier)
    assert data.val_sources[0].verifier.after == ";"
    assert data.val_sources[0].template == PromptTemplate(user=r"{problem} \boxed{{}}", chat="plain")
    assert data.template == PromptTemplate(user="{problem}!")
    assert data.task_names == ("sums", "toy")


def test_help_shows_what_the_docstring_says():
    parser = ArgumentParser()
    parser.add_class_arguments(PromptDataModule, "data")
    shown = " ".join(parser.format_help().split())
    assert "--data.prompts_per_step" in shown
    assert "Prompts of a rollout batch, over all devices." in shown
    assert "--data.template.user" in shown
