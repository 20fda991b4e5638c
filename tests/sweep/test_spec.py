import dataclasses

import pytest

from lightning_rlvr.sweep.spec import SweepSpec, expand, read_spec

SWEEP = """
configs: [base.yaml]
fixed: {trainer.max_steps: 20, model.optimizer.learning_rate: 1e-3}
arms:
  short: {model.rollout.max_completion_length: 8}
  long: {model.rollout.max_completion_length: 16, configs: [more.yaml]}
grid:
  credit: [uniform, margin.yaml]
  data.longest_first: [false]
exclude:
  - {arm: long, credit: uniform}
seeds: [7, 3]
baseline: short-uniform-longest_first=false
test: {num_samples: 4}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "more", "margin"):
        (tmp_path / f"{name}.yaml").write_text("{}")

    def written(text):
        (tmp_path / "study.yaml").write_text(text)
        return read_spec("study.yaml")

    return written


def test_expansion_is_this(write):
    cells = expand(write(SWEEP), "out")
    assert [cell.folder for cell in cells] == [
        "short-uniform-longest_first=false/seed_7",
        "short-margin-longest_first=false/seed_7",
        "long-margin-longest_first=false/seed_7",
        "short-uniform-longest_first=false/seed_3",
        "short-margin-longest_first=false/seed_3",
        "long-margin-longest_first=false/seed_3",
    ]
    # classes come before what is set of them, files of the arm after those of all
    command = (
        "-c base.yaml -c more.yaml --credit margin.yaml --trainer.max_steps 20 --model.optimizer.learning_rate 0.001 "
        "--model.rollout.max_completion_length 16 --data.longest_first false --data.data_seed 7 --runs_dir out/study "
        "--name long-margin-longest_first=false/seed_7"
    )
    assert " ".join(cells[2].fit) == f"fit {command}"
    assert " ".join(cells[2].test) == f"test {command} --num_samples 4"


def test_expansion_is_pure(write):
    spec = write(SWEEP)
    before = repr(spec)
    assert expand(spec) == expand(spec)
    assert repr(spec) == before


def test_no_test_where_there_is_none(write):
    assert expand(write("configs: [base.yaml]\ngrid: {credit: [uniform]}\ntest: null"))[0].test is None


def test_values_keep_what_stands_after_a_dot(write):
    models = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.6B"]
    cells = expand(write(f"configs: [base.yaml]\ngrid: {{model.policy.name_or_path: {models}}}"))
    assert [cell.arm for cell in cells] == ["name_or_path=Qwen2.5-0.5B", "name_or_path=Qwen2.5-0.6B"]


def test_paths_are_seen_from_the_sweep(tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "a.yaml").write_text("{}")
    (tmp_path / "sweeps" / "s.yaml").write_text("configs: [../a.yaml]\narms: {x: {credit: ../a.yaml}}")
    monkeypatch.chdir(tmp_path)
    [cell] = expand(read_spec("sweeps/s.yaml"))
    assert cell.fit[:5] == ("fit", "-c", "a.yaml", "--credit", "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: {credit: [uniform]}", "must have keys among name, configs, .*got `grids`"),
        ("configs: [no_such.yaml]", "no such configuration file: '.*no_such.yaml'"),
        ("configs: []", "`configs` must be a list of at least one configuration file, got \\[\\]"),
        ("configs: base.yaml", "`configs` of 'study.yaml' must be a list, got 'base.yaml'"),
        ("- 1", "must have keys among .*, got list"),
        ("configs: [base.yaml\n", "cannot be read as YAML"),
        ("configs: [base.yaml]\ngrid: {credit: []}", r"`grid.credit` must be a list of at least one value, got \[\]"),
        ("configs: [base.yaml]\ngrid: {credit: uniform}", "`grid.credit` must be a list of at least one value"),
        ("configs: [base.yaml]\nseeds: []", "`seeds` must be at least one whole number"),
        ("configs: [base.yaml]\nseeds: [1, 1]", "`seeds` must be different, got \\[1, 1\\]"),
        ("configs: [base.yaml]\nseeds: [1.5]", "`seeds` must be whole numbers"),
        ("configs: [base.yaml]\nseeds: 5", "`seeds` of 'study.yaml' must be a list, got 5"),
        ("configs: [base.yaml]\narms: {a: {}}\nbaseline: b", "`baseline` must be a cell, got 'b'; choices: a"),
        ("configs: [base.yaml]\narms: {a: 1}", "`arms.a` must be a mapping of settings, got 1"),
        ("configs: [base.yaml]\narms: {a: {}, a: {}}", "(?s)cannot be read as YAML: .*duplicate key a"),
        ("configs: [base.yaml]\ngrid: {credit: [margin, margin.yaml]}", "different names, got 'margin' twice"),
        (
            "configs: [base.yaml]\ngrid: {credit: [margin]}\nexclude: [{credit: margn}]",
            "`exclude` must be settings of",
        ),
        ("configs: [base.yaml]\ngrid: {credit: [margin]}\nexclude: [{credit: margin}]", "such that a cell is left"),
        (
            "configs: [base.yaml]\narms: {a: {}}\nfixed: {data.data_seed: 1}",
            "`fixed` must not set `data.data_seed`, which `seeds` decides",
        ),
        ("configs: [base.yaml]\narms: {a: {name: x}}", "`arms.a` must not set `name`"),
        (
            "configs: [base.yaml]\nfixed: {credit: uniform}\ngrid: {credit: [margin]}",
            "`fixed` and `grid` both set `credit`",
        ),
        (
            "configs: [base.yaml]\narms: {a: {credit: uniform}}\ngrid: {credit: [margin]}",
            "`grid` and `arms.a` both set `credit`",
        ),
        ("configs: [3]\narms: {a: {}}", "`configs` must be a list of at least one configuration file, got"),
        ("configs: [base.yaml]\nname: a/b", "`name` must be letters, digits"),
        ("configs: [base.yaml]\nname: ..", "`name` must be letters, digits"),
        ("configs: [base.yaml]\narms: {-x: {}}", "the name of a cell must be made of"),
        ("configs: [base.yaml]\ngrid: {data.template: [{user: x}]}", "the name of a cell must be made of at most 100"),
        ("configs: [base.yaml]", "`arms` must be given, or `grid`"),
        ("configs: [base.yaml]\narms: {1: {}}", r"`arms` must be keyed by text \(in quotes .*got 1"),
        ("configs: [base.yaml]\narms: {off: {}}", r"`arms` must be keyed by text .*got False"),
        ("configs: [base.yaml]\narms: {a: {1: 2}}", r"`arms.a` must be keyed by text .*got 1"),
        (
            "configs: [base.yaml]\narms: {report: {}}",
            "`arms` must not be named report, slurm, sweep.json, got",
        ),
        ("configs: [base.yaml]\narms: {a: {configs: more.yaml}}", "`arms.a.configs` must be a list of files"),
        ("configs: [base.yaml]\ngrid: {configs: [more.yaml]}", "`grid.configs` must be a list of files, of an arm"),
    ],
)
def test_what_is_wrong_is_named(write, text, message):
    with pytest.raises(ValueError, match=message):
        expand(write(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OSError, match=r"no such sweep: '.*nothing\.yaml'"):
        read_spec(tmp_path / "nothing.yaml")


def test_every_key_of_a_file_is_documented():
    documented = SweepSpec.__doc__.partition("Args:")[2]
    assert all(f"{field.name}:" in documented for field in dataclasses.fields(SweepSpec))
