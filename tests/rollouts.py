"""The only fabricator of rollouts."""

import torch

from lightning_rlvr.types import Rollout, TokenStatistics


def make_rollout(
    seed=0,
    *,
    num_groups=3,
    num_generations=4,
    prompt_tokens=5,
    completion_tokens=7,
    requires=(),
    rewards=None,
    ragged=True,
    num_tasks=1,
    **changes,
):
    """A random but valid rollout; rows of a group are not neighbours, lengths are uneven, some rows are truncated.

    ``requires`` names the statistics to invent: values in [0, 1] for ``margin``, in [0, 3] for ``entropy``, log-probs
    for everything else. ``changes`` replace fields at the end.
    """
    g = torch.Generator().manual_seed(seed)
    sizes = [num_generations - (i % 2 if ragged and num_generations > 1 else 0) for i in range(num_groups)]
    group_index = torch.cat([torch.full((n,), i) for i, n in enumerate(sizes)])
    group_index = group_index[torch.randperm(len(group_index), generator=g)]
    b, t, p = len(group_index), completion_tokens, prompt_tokens
    lengths = torch.randint(1, t + 1, (b,), generator=g)
    lengths[0] = t
    mask = torch.arange(t) < lengths[:, None]
    prompt_lengths = torch.randint(2, p + 1, (num_groups,), generator=g)
    prompt_lengths[0] = p
    prompt_mask = torch.arange(p).flip(0)[None] < prompt_lengths[group_index][:, None]
    prompt_ids = torch.randint(3, 50, (num_groups, p), generator=g)[group_index] * prompt_mask
    statistics = {}
    for name in requires:
        noise = torch.rand(b, t, generator=g)
        values = {"margin": noise, "entropy": 3 * noise}.get(name, -3 * noise)
        statistics[name] = values * mask
    fields = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "evidence_mask": prompt_mask & (torch.arange(p) < p - 1),
        "completion_ids": torch.randint(3, 50, (b, t), generator=g) * mask,
        "completion_mask": mask,
        "group_index": group_index,
        "task_id": group_index % num_tasks,
        "rewards": torch.randint(0, 3, (b,), generator=g).float() / 2,
        "truncated": (lengths == t) & (torch.rand(b, generator=g) < 0.5),
        "seeds": torch.randint(0, 2**62, (b,), generator=g),
        "old_logprobs": -2 * torch.rand(b, t, generator=g) * mask,
        "statistics": TokenStatistics(statistics),
    }
    if rewards is not None:
        fields["rewards"] = torch.as_tensor(rewards, dtype=torch.float32)
    return Rollout(**(fields | changes))
