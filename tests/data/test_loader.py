import itertools

import pytest
import torch

from lightning_rlvr.data.loader import PromptLoader, PromptSet
from lightning_rlvr.data.sources import Problem
from lightning_rlvr.data.templates import EncodedPrompt


def prompt_set(size, lengths=None):
    lengths = lengths or [1 + i % 3 for i in range(size)]
    return PromptSet(
        problems=tuple(Problem(id=f"p{i}", problem="", columns={"answer": i}, task="ab"[i % 2]) for i in range(size)),
        prompts=tuple(
            EncodedPrompt(text=f"t{i}", ids=torch.full((n,), i + 10), evidence=torch.arange(n) == 0)
            for i, n in enumerate(lengths)
        ),
        task_names=("a", "b"),
        pad_token_id=0,
    )


def ids(batches):
    return [batch.problem_ids for batch in batches]


def flat(batches):
    return list(itertools.chain.from_iterable(ids(batches)))


def epoch(number, *args, **kwargs):
    loader = PromptLoader(*args, **kwargs)
    for _ in range(number):
        list(loader)
    return list(loader)


def test_batch_is_left_padded_and_complete():
    batch = prompt_set(4).batch([1, 2, 0])
    assert batch.prompt_ids.tolist() == [[0, 11, 11], [12, 12, 12], [0, 0, 10]]
    assert batch.prompt_mask.tolist() == [[False, True, True], [True, True, True], [False, False, True]]
    assert batch.evidence_mask.tolist() == [[False, True, False], [True, False, False], [False, False, True]]
    assert batch.task_id.tolist() == [1, 0, 0]
    assert (batch.problem_ids, batch.prompts) == (("p1", "p2", "p0"), ("t1", "t2", "t0"))
    assert [row["answer"] for row in batch.columns] == [1, 2, 0]


def test_every_problem_comes_once_in_an_epoch():  # DG-06
    batches = epoch(0, prompt_set(12), 4)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert sorted(flat(batches)) == sorted(f"p{i}" for i in range(12))


def test_order_depends_on_data_seed_and_epoch_alone():
    orders = [flat(epoch(e, prompt_set(12), 4, data_seed=s)) for s in (0, 1) for e in (0, 1)]
    assert orders == [flat(epoch(e, prompt_set(12), 4, data_seed=s)) for s in (0, 1) for e in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_the_global_batches_of_one_process(world_size, shuffle):  # DG-02
    options = {"data_seed": 3, "shuffle": shuffle}
    alone = ids(epoch(1, prompt_set(12), 6, **options))
    ranks = [ids(epoch(1, prompt_set(12), 6, rank=r, world_size=world_size, **options)) for r in range(world_size)]
    for whole, parts in zip(alone, zip(*ranks, strict=True), strict=True):
        assert list(parts) == [whole[r::world_size] for r in range(world_size)]


@pytest.mark.parametrize(("size", "world_size", "lengths"), [(10, 1, [4, 4, 2]), (10, 2, [4, 4, 2]), (9, 2, [4, 4])])
def test_short_batch_is_kept_unless_a_rank_would_be_empty(size, world_size, lengths):
    loaders = [PromptLoader(prompt_set(size), 4, rank=r, world_size=world_size) for r in range(world_size)]
    counts = [[len(batch) for batch in loader] for loader in loaders]
    assert [sum(parts) for parts in zip(*counts, strict=True)] == lengths
    assert [len(loader) for loader in loaders] == [len(lengths)] * world_size
    assert min(min(row) for row in counts) >= 1


@pytest.mark.parametrize("size", range(3, 30))
@pytest.mark.parametrize("prompts_per_step", [1, 4, 8])
def test_validation_gives_every_rank_equally_many_batches_and_every_problem_once(size, prompts_per_step):
    ranks = [
        list(PromptLoader(prompt_set(size), prompts_per_step, rank=r, world_size=3, shuffle=False)) for r in range(3)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    assert min(len(batch) for batches in ranks for batch in batches) >= 1
    assert sorted(flat(itertools.chain(*ranks))) == sorted(f"p{i}" for i in range(size))


def test_validation_keeps_the_order():
    assert flat(epoch(5, prompt_set(7), 3, shuffle=False)) == [f"p{i}" for i in range(7)]


def test_longest_prompt_can_come_first():
    lengths = [1] * 11 + [9]
    for number in range(4):
        batches = epoch(number, prompt_set(12, lengths), 3, longest_first=True)
        assert batches[0].prompt_ids.shape[1] == 9
        assert sorted(flat(batches)) == sorted(f"p{i}" for i in range(12))


@pytest.mark.parametrize("taken", range(9))
def test_state_continues_where_it_was_saved(taken):
    options = {"data_seed": 5, "rank": 1, "world_size": 2}
    whole = [name for number in range(4) for name in ids(epoch(number, prompt_set(12), 4, **options))]
    saved = PromptLoader(prompt_set(12), 4, **options)
    batches = itertools.chain.from_iterable(saved for _ in range(4))
    assert ids(itertools.islice(batches, taken)) == whole[:taken]
    resumed = PromptLoader(prompt_set(12), 4, **options)
    resumed.load_state_dict(saved.state_dict())
    rest = ids(itertools.islice(itertools.chain.from_iterable(resumed for _ in range(4)), 12 - taken))
    assert rest == whole[taken:]


def test_training_continues_and_validation_begins_anew():
    for shuffle, fresh in ((True, 1), (False, 3)):
        loader = PromptLoader(prompt_set(12), 4, shuffle=shuffle)
        assert len(list(itertools.islice(loader, 2))) == 2
        assert len(list(loader)) == fresh
        assert len(list(loader)) == 3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"data_seed": 1}, "data_seed"),
        ({"prompts_per_step": 3}, "prompts_per_step"),
        ({"longest_first": True}, "longest"),
    ],
)
def test_state_of_another_run_is_refused(options, name):
    state = PromptLoader(prompt_set(12), 4).state_dict()
    other = PromptLoader(prompt_set(12), **{"prompts_per_step": 4} | options)
    with pytest.raises(ValueError, match=f"`{name}.* as in the checkpoint to resume from"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="`num_problems` must be 12, as in the checkpoint"):
        PromptLoader(prompt_set(11), 4).load_state_dict(state)


def test_every_rank_needs_a_prompt():
    with pytest.raises(ValueError, match="`prompts_per_step` must be at least 2, one for each rank, got 1"):
        PromptLoader(prompt_set(8), 1, world_size=2)
    message = "a, b must have at least 4 problems, one for each rank, got 3: set `trainer.devices` lower, or use more"
    with pytest.raises(ValueError, match=message):
        PromptLoader(prompt_set(3), 4, world_size=4)
