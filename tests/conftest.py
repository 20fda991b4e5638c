"""What every test needs around it."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from rollouts import make_rollout


@pytest.fixture(name="make_rollout")
def make_rollout_fixture():
    return make_rollout
