import pytest
from jsonargparse import auto_cli

from lightning_rlvr.policy.settings import LoraSettings, PolicySettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, r"`policy\.lora\.rank` must be positive, got 0"),
        ({"alpha": -1}, r"`policy\.lora\.alpha` must be positive, got -1"),
        ({"target_modules": []}, "must be the name of at least one module"),
        ({"init": "pissa"}, "must be True or 'gaussian', got 'pissa'"),
        ({"init": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init": "olora"}, "olora"),
        ({"init": False}, "got False"),
        ({"init": "gaussian", "adapter": "a"}, "has no effect beside"),
    ],
)
def test_adapters_that_cannot_work_are_refused(settings, message):  # WS-04
    with pytest.raises(ValueError, match=message):
        LoraSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name_or_path": ""}, "must be a model"),
        ({"name_or_path": "x", "dtype": "float16"}, "must be one of auto, float32, bfloat16, got 'float16'"),
        ({"name_or_path": "x", "dtype": "bfloat16", "lora": None}, "all weights train"),
        ({"name_or_path": "tiny", "dtype": "bfloat16"}, "the tiny models are float32"),
    ],
)
def test_policies_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PolicySettings(**settings)


def same(policy: PolicySettings) -> PolicySettings:
    return policy


def test_settings_parse_from_the_command_line():
    arguments = ["--policy.name_or_path=x", "--policy.lora.rank=8", '--policy.lora.target_modules=["q_proj"]']
    policy = PolicySettings(name_or_path="x", lora=LoraSettings(rank=8, target_modules=["q_proj"]))
    assert auto_cli(same, args=arguments) == policy
    assert auto_cli(same, args=["--policy.lora=null"]) == PolicySettings(lora=None)
