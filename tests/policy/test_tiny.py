import string
import threading

import pytest
import torch

from lightning_rlvr.policy import tiny
from lightning_rlvr.policy.folders import cached_folder
from lightning_rlvr.policy.loading import load_policy
from lightning_rlvr.policy.settings import PolicySettings
from lightning_rlvr.policy.tiny import build_tiny, build_tokenizer, warm_up
from lightning_rlvr.tasks.sums import generate


def test_printable_text_round_trips_one_token_a_character():
    tokenizer = build_tokenizer()
    ids = tokenizer(string.printable).input_ids
    assert len(ids) == len(set(ids)) == len(string.printable)
    assert tokenizer.decode(ids) == string.printable
    assert tokenizer("\u00e9").input_ids == [tokenizer.unk_token_id]


def test_the_initialisation_is_seeded_and_leaves_global_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    models = [build_tiny()[0] for _ in range(2)]
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_tiny_untrained_loads_like_any_other_model(tmp_path, monkeypatch):
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    policy = load_policy(PolicySettings(name_or_path="tiny_untrained", lora=None))
    expected = build_tiny()[0].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in policy.model.state_dict().items())
    assert policy.eos_token_ids == (1,)
    assert policy.pad_token_id == 0
    text = "27+48=\n x"
    assert policy.tokenizer.decode(policy.tokenizer(text).input_ids) == text


def test_warm_up_stops_where_it_is_told_and_learns_the_solutions(monkeypatch):
    model, tokenizer = build_tiny()
    records = generate(0, 2)
    monkeypatch.setattr(tiny.sums, "generate", lambda seed, count: records)
    assert 0.35 <= warm_up(model, tokenizer, pass_rate=0.35) <= 1.0
    prompt = tokenizer(records[0]["problem"], return_tensors="pt").input_ids
    answer = model.generate(input_ids=prompt, do_sample=False, max_new_tokens=40)[0, prompt.shape[1] :]
    assert tokenizer.decode(answer) == records[0]["solution"] + "<eos>"


def test_warm_up_that_gets_nowhere_is_an_error():
    with pytest.raises(RuntimeError, match=r"must solve a share of 0\.9 after 1 steps"):
        warm_up(*build_tiny(), pass_rate=0.9, max_steps=1)


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    def fail(new):
        (new / "half").touch()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        cached_folder(tmp_path / "x", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def test_of_several_builders_one_builds(tmp_path):
    built = []
    threads = [threading.Thread(target=cached_folder, args=(tmp_path / "x", built.append)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
