import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_rlvr.functional.batching import micro_batches

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=24)


def cut(sizes, **settings):
    """Prompts of group g have 5 g + 1 tokens."""
    groups = torch.tensor([group for group, _ in sizes])
    prompts, completions = 5 * groups + 1, torch.tensor([length for _, length in sizes])
    shared = settings.pop("shared", True)
    batches = micro_batches(prompts, completions, groups=groups if shared else None, **settings)
    padded = []
    for batch in batches:
        prompt_rows = len(groups[batch].unique()) if shared else len(batch)
        padded.append(prompt_rows * int(prompts[batch].max()) + len(batch) * int(completions[batch].max()))
    return batches, padded


@settings(deadline=None)
@given(rows, st.integers(1, 300), st.booleans())
def test_every_row_is_in_one_batch_and_only_single_rows_exceed_the_budget(sizes, budget, shared):
    batches, padded = cut(sizes, max_tokens=budget, shared=shared)
    assert sorted(torch.cat(batches).tolist()) == list(range(len(sizes)))
    assert all(tokens <= budget or len(batch) == 1 for batch, tokens in zip(batches, padded, strict=True))
    assert padded == sorted(padded, reverse=True), "what does not fit shows at once"


@settings(deadline=None)
@given(rows, st.integers(0, 100))
def test_cutting_never_costs_more_than_it_saves(sizes, forward_cost):
    whole = cut(sizes, max_tokens=10**6, forward_cost=10**6)[1]
    batches, padded = cut(sizes, max_tokens=10**6, forward_cost=forward_cost)
    assert len(whole) == 1
    assert sum(padded) + forward_cost * len(batches) <= whole[0] + forward_cost


def test_rows_of_a_group_stay_together_where_their_prompt_is_long():
    """Two prompts of 100 tokens: apart in the order of lengths (40, 39, 2, 1), which would compute both twice."""
    groups, lengths = torch.tensor([0, 1, 0, 1]), torch.tensor([40, 39, 2, 1])
    prompts = torch.full((4,), 100)
    by_group = micro_batches(prompts, lengths, max_tokens=190, groups=groups)
    assert [batch.tolist() for batch in by_group] == [[0, 2], [1, 3]]
    by_length = micro_batches(prompts, lengths, max_tokens=10**6, groups=None, forward_cost=10)
    assert [batch.tolist() for batch in by_length] == [[0, 1], [2, 3]]


def plainly(prompts, completions, groups, max_tokens, forward_cost):
    """Costs of the best cuts in both orders, part by part."""

    def cost(order):
        best = [0.0] + [float("inf")] * len(order)
        for start in range(len(order)):
            for end in range(start + 1, len(order) + 1):
                part = order[start:end]
                tokens = len({groups[row] for row in part}) * max(prompts[row] for row in part)
                tokens += len(part) * max(completions[row] for row in part)
                if tokens <= max_tokens or len(part) == 1:
                    best[end] = min(best[end], best[start] + tokens + forward_cost)
        return best[-1]

    by_length = sorted(range(len(prompts)), key=lambda row: -prompts[row] - completions[row])
    first = {group: place for place, group in reversed([*enumerate(groups[row] for row in by_length)])}
    return min(cost(by_length), cost(sorted(by_length, key=lambda row: first[groups[row]])))


@settings(deadline=None)
@given(rows, st.integers(1, 300), st.integers(0, 100))
def test_no_cut_in_order_is_cheaper(sizes, budget, forward_cost):
    batches, padded = cut(sizes, max_tokens=budget, forward_cost=forward_cost)
    groups, lengths = [group for group, _ in sizes], [length for _, length in sizes]
    expected = plainly([5 * group + 1 for group in groups], lengths, groups, budget, forward_cost)
    assert sum(padded) + forward_cost * len(batches) == expected


def test_thousands_of_rows_are_planned():
    """Python's steps once were the square of the rows that fit the budget: 43 seconds here."""
    lengths = torch.randint(1, 65, (4096,), generator=torch.Generator().manual_seed(0))
    groups = torch.arange(512).repeat_interleave(8)
    batches = micro_batches(torch.full((4096,), 60), lengths, max_tokens=65536, groups=groups)
    assert sorted(torch.cat(batches).tolist()) == list(range(4096))
