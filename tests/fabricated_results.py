"""Results of sweeps that never ran, for the tests of reports: the only fabricator of them."""

import numpy as np
import pandas as pd

from lightning_rlvr.report.results import SweepResults


def make_results(
    effects=(("grpo", 0.0), ("mcpo", 0.1)), *, seeds=(0, 1, 2), sets=("sums",), problems=12, samples=8,
    length=(("grpo", 25.0), ("mcpo", 25.0)), steps=10, random_seed=0, same_problems=True, retraining=0.0,
):  # fmt: skip
    """Problems from hard to easy, the same in all arms; an arm's effect is added to the chance to solve each.

    Args:
        effects: Arms, the baseline first, and what each adds to the probability of a correct sample.
        length: Mean tokens of an arm's completions; a geometric spread around it.
        same_problems: The same problems in all seeds (a benchmark) or others in each (held out by seed).
        retraining: Standard deviation of what a run adds to the chance of a problem, as if trained again.
    """
    random = np.random.default_rng(random_seed)
    mean_length, rows = dict(length), []
    for arm, effect in effects:
        for seed in seeds:
            for name in sets:
                for problem in range(problems):
                    chance = np.clip((problem + 0.5) / problems * 1.4 - 0.2 + effect, 0.0, 1.0)
                    chance = np.clip(chance + random.normal(0, retraining), 0.0, 1.0) if retraining else chance
                    correct = random.random(samples) < chance
                    tokens = np.clip(random.normal(mean_length.get(arm, 25.0), 5.0, samples).round(), 2, 64)
                    tag = f"{name}-{problem}" if same_problems else f"{name}-{seed}-{problem}"
                    rows += [
                        (
                            arm,
                            seed,
                            name,
                            tag,
                            k,
                            float(c),
                            float(c),
                            int(t),
                            bool(t >= 64),
                            "correct" if c else "wrong",
                        )
                        for k, (c, t) in enumerate(zip(correct, tokens, strict=True))
                    ]
    columns = ["arm", "seed", "set", "problem", "sample", "correct", "reward", "tokens", "truncated", "status"]
    curves = [
        {
            "arm": arm, "seed": seed, "step": step, "rollouts": step, "sampled_tokens": 1600.0 * step,
            "seconds": 0.3 * step, "flops": 1e10 * step,
            "reward/mean": min(1.0, 0.4 + 0.02 * step + effect * step / steps + random.normal(0, 0.02)),
            "completion/length": mean_length.get(arm, 25.0), "completion/truncated": 0.01,
            "advantage/rms": 0.9, "policy/entropy": 0.1, "policy/grad_norm": 0.5, "credit/ess": 0.8,
        }
        for arm, effect in effects for seed in seeds for step in range(1, steps + 1)
    ]  # fmt: skip
    arms = tuple(arm for arm, _ in effects)
    return SweepResults(
        name="fabricated", baseline=arms[0], arms=arms, seeds=tuple(seeds),
        samples=pd.DataFrame(rows, columns=columns), steps=pd.DataFrame(curves),
        settings={arm: {"credit": arm} for arm in arms},
    )  # fmt: skip
