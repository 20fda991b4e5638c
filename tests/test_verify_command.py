"""`rlvr verify` as people use it."""

import inspect
import json
import os
import subprocess
import sys

import pytest

from command_line import error
from lightning_rlvr.__main__ import main
from lightning_rlvr.registry import class_path
from lightning_rlvr.verify.answer import AnswerVerifier
from lightning_rlvr.verify.base import STATUSES, VERIFIERS


def half_of_it(completions, gold, **columns):
    return [0.5 if text == answer else None for text, answer in zip(completions, gold, strict=True)]


def interrupted_at_60(gold, **columns):
    if 60 in gold:
        raise KeyboardInterrupt
    return [1.0] * len(gold)


def length(completion_ids, **columns):
    return [len(ids) for ids in completion_ids]


def verify(capsys, *args):
    """Lines of the answer, by name."""
    main(["verify", *map(str, args)])
    return {line[:8].strip(): line[8:] for line in capsys.readouterr().out.splitlines()}


def judged(capsys, file, *args):
    """Rows written, and the line on standard error."""
    main(["verify", *map(str, args), str(file)])
    shown = capsys.readouterr()
    return [json.loads(line, parse_constant=pytest.fail) for line in shown.out.splitlines()], shown.err.strip()


def write(folder, *rows, name="rows.jsonl"):
    file = folder / name
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


# --- one completion ---


def test_verdict_answer_and_rule_are_shown(capsys):
    assert verify(capsys, r"\frac{1}{2}", r"So \boxed{0.5}.") == {
        "status": "correct",
        "reward": "1",
        "answer": "0.5",
        "reason": r"last \boxed{}; equal as mathematics",
    }
    assert verify(capsys, "7", "no idea") == {
        "status": "no_answer",
        "reward": "0",
        "answer": "none",
        "reason": "no box and no Answer: line",
    }


@pytest.mark.parametrize("name", [n for n in VERIFIERS if VERIFIERS[n].__module__.startswith("lightning_rlvr.")])
def test_every_verifier_without_needs_works(name, capsys):
    needs = any(p.default is p.empty for p in inspect.signature(VERIFIERS[name]).parameters.values())
    if needs:
        assert "arguments are required" in error(capsys, "verify", "--verifier", name, "B", "Answer: B")
    else:
        shown = verify(capsys, "--verifier", name, "B", "Answer: B")
        assert shown["status"] == "error" if name in {"reasoning_gym", "numeric", "overlong"} else "correct", shown


def test_settings_of_a_verifier_are_flags(capsys):
    flags = ["--verifier", "exact", "--verifier.extract=all", "--verifier.after", ";"]
    assert verify(capsys, *flags, "7", "3+4;7")["status"] == "correct"
    assert verify(capsys, "7", "so\n7", "--verifier.extract", "last_line")["status"] == "correct"
    function = ["--verifier=function", "--verifier.function", f"{__name__}.half_of_it"]
    assert verify(capsys, *function, "7", "7")["reward"] == "0.5"
    shown = verify(capsys, *function, "7", "8")
    assert (shown["status"], shown["reward"]) == ("abstained", "none")


def test_parts_of_a_composed_reward_are_shown(capsys):
    composed = json.dumps({"class_path": "WeightedVerifier", "init_args": {"verifiers": ["exact", "choice"]}})
    main(["verify", f"--verifier={composed}", "B", "Answer: b"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "status            wrong"
    assert lines[-2:] == ["reward of exact   0", "reward of choice  1"]


def test_texts_with_a_leading_minus_sign_are_passed(capsys):
    assert verify(capsys, "-5", r"\boxed{-5}")["status"] == "correct"
    assert verify(capsys, "-5", "-5", "--verifier=exact", "--verifier.extract=all")["status"] == "correct"
    assert verify(capsys, "--", r"-\frac12", r"-\boxed{-0.5}")["status"] == "correct"
    sentence = error(capsys, "verify", r"-\frac12", "x")
    assert sentence.endswith("a text that begins with a minus sign comes after `--`")


@pytest.mark.parametrize("text", ["null", "[1,2)", "{a: b}", "1_000", "1e5", "${x}", "@7", "yes", "x.jsonl"])
def test_texts_are_taken_as_they_are(text, capsys):
    shown = verify(capsys, "--verifier=exact", "--verifier.extract=all", text, text)
    assert (shown["status"], shown["answer"]) == ("correct", text)


def test_answer_of_several_lines_stays_on_its_line(capsys):
    assert verify(capsys, "--verifier=exact", "1 2", "\\boxed{1\n2}")["answer"] == "1 2"


def test_truncated_completion_has_no_answer(capsys):
    assert verify(capsys, "7", "Answer: 7")["status"] == "correct"
    assert verify(capsys, "7", "Answer: 7", "--truncated")["status"] == "no_answer"


def test_gold_that_cannot_be_read_is_an_error_and_never_right(capsys):
    shown = verify(capsys, "?!", r"\boxed{?!}")
    assert (shown["status"], shown["reward"]) == ("error", "none")
    assert "'?!' does not parse" in shown["reason"]


def test_bad_command_lines_end_in_one_sentence(capsys, tmp_path):
    file = write(tmp_path, {"gold": "7", "pred": "7"})
    for args, sentence in (
        (["--verifier", "maths", "7", "7"], f"unknown verifier 'maths'; choices: {', '.join(VERIFIERS)}"),
        (["--verifier", "no.such.Class", "7", "7"], "`verifier` 'no.such.Class' is no file and no known class"),
        (["7", "7", "--verifier.extract=lost"], "`extract` must be one of"),
        (["7", "7", "--verifier.rtoll=1"], "`verifier` has no setting `rtoll`"),
        (["7"], "give a gold answer and a completion, or an existing .jsonl file; got only '7'"),
        ([tmp_path / "none.jsonl"], "give a gold answer and a completion, or an existing .jsonl file; got only "),
        ([file, "--truncated"], "a file has a column `truncated`"),
        (["7", "8", "9"], "unrecognized arguments: 9"),
        ([], "the following arguments are required: gold"),
    ):
        assert sentence in error(capsys, "verify", *args)


def test_help_has_examples_in_plain_words(capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert "    rlvr verify --verifier numeric --verifier.rtol 0.01 3.14 'Answer: 22/7'\n" in shown
    assert "known subclasses" not in shown
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "rlvr verify GOLD COMPLETION" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", [name for name in VERIFIERS if issubclass(VERIFIERS[name], AnswerVerifier)])
def test_help_of_every_verifier_that_reads_answers_says_where(name, capsys):
    with pytest.raises(SystemExit):
        main(["verify", "--verifier.help", class_path(VERIFIERS[name])])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--verifier.extract {boxed,last_line,last_number,all} Where the final answer is" in shown


# --- a file ---


def test_rows_come_back_in_order_with_their_verdicts(capsys, tmp_path):
    rows = [{"id": i, "gold": i, "pred": f"Answer: {i % 3}", "note": "\u00e9"} for i in range(5)]
    out, counts = judged(capsys, write(tmp_path, *rows))
    assert [{name: row[name] for name in rows[0]} for row in out] == rows
    assert [row["status"] for row in out] == ["correct"] * 3 + ["wrong"] * 2
    assert [row["answer"] for row in out] == ["0", "1", "2", "0", "1"]
    assert [row["reward"] for row in out] == [1.0] * 3 + [0.0] * 2
    assert all(row["reason"].startswith("last Answer: line; ") for row in out)
    assert counts == "5 rows: 3 correct, 2 wrong"


def test_truncated_rows_and_unreadable_golds_keep_their_place(capsys, tmp_path):
    rows = [
        {"gold": "7", "pred": "Answer: 7", "truncated": True},
        {"gold": "?!", "pred": r"\boxed{?!}"},
        {"gold": None, "pred": r"\boxed{None}"},
        {"gold": "7", "pred": "Answer: 7", "truncated": False},
    ]
    out, counts = judged(capsys, write(tmp_path, *rows))
    assert [row["status"] for row in out] == ["no_answer", "error", "error", "correct"]
    assert [row["reward"] for row in out] == [0.0, None, None, 1.0]
    assert "does not parse" in out[1]["reason"]
    assert counts == "4 rows: 1 correct, 1 no_answer, 2 error"
    assert [row["status"] for row in judged(capsys, write(tmp_path, *rows), "--verifier=exact")[0]][2] == "error"


def test_other_columns_reach_the_verifier(capsys, tmp_path):
    file = write(tmp_path, {"gold": 1, "pred": r"\boxed{B}", "choices": ["x", "y"], "answer": "kept for nobody"})
    [row], _ = judged(capsys, file, "--verifier", "choice")
    assert (row["status"], row["answer"], row["choices"]) == ("correct", "B", ["x", "y"])


def test_token_ids_reach_the_verifier(capsys, tmp_path):
    file = write(tmp_path, {"gold": "", "pred": "", "completion_ids": [1, 2, 3]}, {"gold": "", "pred": ""})
    flags = ["--verifier=function", "--verifier.function", f"{__name__}.length"]
    assert [row["reward"] for row in judged(capsys, file, *flags)[0]] == [3, 0]


def test_the_budget_is_not_known(capsys):
    shown = verify(capsys, "--verifier=overlong", "7", "7")
    assert (shown["status"], shown["reason"]) == ("error", "no token ids to count")


def test_parts_are_written_and_all_of_it_is_json(capsys, tmp_path):
    function = {"class_path": "FunctionVerifier", "init_args": {"function": f"{__name__}.half_of_it"}}
    composed = {"class_path": "WeightedVerifier", "init_args": {"verifiers": ["exact", function]}}
    file = write(tmp_path, '{"gold": "7", "pred": "Answer: 7", "loss": NaN}')
    [row], _ = judged(capsys, file, f"--verifier={json.dumps(composed)}")
    assert row["parts"] == {"exact": 1.0, "function": None}
    assert row["loss"] is None


def test_rows_are_streamed_in_batches(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_rlvr.verify_command._BATCHES", (2, 2))
    file = write(tmp_path, *[{"gold": i, "pred": f"Answer: {i}"} for i in range(3)], "oops", "")
    with pytest.raises(SystemExit, match=r"line 4 of .* is not JSON"):
        main(["verify", "--verifier=exact", str(file)])
    assert len(capsys.readouterr().out.splitlines()) == 2, "whole batches before the bad line"


def test_what_was_judged_before_an_interruption_is_written(capsys, tmp_path):
    file = write(tmp_path, *[{"gold": i, "pred": "x"} for i in range(100)])
    with pytest.raises(SystemExit) as end:
        main(["verify", "--verifier=function", f"--verifier.function={__name__}.interrupted_at_60", str(file)])
    assert end.value.code == 130
    shown = capsys.readouterr()
    assert [json.loads(line)["gold"] for line in shown.out.splitlines()] == list(range(16 + 32))
    assert shown.err == ""


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{", "line 2 of '{file}' is not JSON: "),
        ('"7"', "line 2 of '{file}' must be an object, got str"),
        ({"gold": "7"}, "line 2 of '{file}' has no column 'pred'; got gold"),
        ({"pred": "7", "id": 1}, "line 2 of '{file}' has no column 'gold'; got pred, id"),
        ({"gold": "7", "pred": 7}, "line 2 of '{file}': `pred` must be text, got 7"),
        (
            {"gold": "7", "pred": "7", "truncated": "no"},
            "line 2 of '{file}': `truncated` must be true or false, got 'no'",
        ),
        (
            {"gold": "7", "pred": "7", "completion_ids": 3},
            "line 2 of '{file}': `completion_ids` must be a list, got 3",
        ),
        ("[" * 100_000, "line 2 of '{file}' is not JSON: "),
    ],
)
def test_bad_rows_end_in_one_sentence(capsys, tmp_path, row, sentence):
    file = write(tmp_path, {"gold": "7", "pred": "7"}, row)
    assert sentence.format(file=file) in error(capsys, "verify", "--verifier=exact", file)


def test_file_that_is_not_text_is_refused(capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xff\xfe{")
    assert f"'{file}' must be UTF-8" in error(capsys, "verify", file)


def test_empty_file_has_no_rows(capsys, tmp_path):
    assert judged(capsys, write(tmp_path, "", "")) == ([], "0 rows: none")


@pytest.mark.slow
def test_reader_that_stops_early_ends_it_quietly(tmp_path):
    file = write(tmp_path, *[{"gold": i, "pred": "x" * 2000} for i in range(600)])
    command = [sys.executable, "-m", "lightning_rlvr", "verify", "--verifier", "exact", str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        complaint = process.stderr.read()
    assert first["status"] in STATUSES
    assert (process.returncode, complaint) == (0, "")
