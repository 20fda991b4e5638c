import math

import pytest

from lightning_rlvr.evaluation.samples import Sample
from lightning_rlvr.verify.base import UNSCORED


def make_sample(problem="p", number=0, status="correct", answer="1", tokens=10, **fields):
    reward = math.nan if status in UNSCORED else float(status == "correct")
    kept = {"text": "text", "completion_ids": [3]}
    defaults = {"problem_hash": f"hash of {problem}", "reward": reward, "truncated": False, "seed": 7, **kept}
    return Sample(
        problem_id=problem, sample=number, status=status, answer=answer, tokens=tokens, **{**defaults, **fields}
    )


@pytest.fixture(name="make_sample", scope="session")
def make_sample_fixture():
    return make_sample
