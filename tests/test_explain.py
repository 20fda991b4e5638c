"""`rlvr explain` says what would be done, without doing it."""

import pytest

from command_line import CONFIGS, parse
from lightning_rlvr import module
from lightning_rlvr.__main__ import main
from lightning_rlvr.explain import explain


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("explain loads no model")

    monkeypatch.setattr(module, "load_policy", refuse)
    monkeypatch.setattr(module, "load_tokenizer", refuse)


@pytest.mark.parametrize(
    ("preset", "parts"),
    [
        (
            "tiny_mcpo",
            ["tiny, dtype auto; all weights train", "8 prompts x 8 completions = 64 rows (B), at most 32 tokens (T)",
             "(r - mean) / (std + eps)", "ddof = 1, eps = 0.0001", "M = p1 - p2",
             "u = floor + (1 - floor) s; A_t = A u / mean(u)", "rewards [B] -> advantages [B], float32",
             "advantages [B] -> token_advantages [B, T], float32, 0 outside the mask",
             "grpo: 1/B sum_i 1/T_i sum_t -min(rho A_t, clip(rho, 0.8, 1.2) A_t)", "declared statistics: margin",
             "1 training forward, 0 scoring, 0 extra", "64 rows -> 1 optimizer step",
             "max_steps 100: 100 rollouts, 800 prompts, 6400 completions"],
        ),
        (
            "sums_tace",
            ["LoRA rank 16, alpha 32, on all-linear", "ReasoningGymSource(dataset = chain_sum", "OTNormalCalibrator",
             "mean of Phi^-1((j - 1/2) / n)", "e = signed contrast of log p(y_t)", "g = exp(tau x)",
             "declared statistics: none", "1 training forward, 0 scoring, 1 extra", "evidence removed by PromptMask"],
        ),
        (
            "dapo_mcpo_qwen3_4b",
            ["Qwen/Qwen3-4B-Base", "open-r1/DAPO-Math-17k-Processed", "scored by MathVerifier",
             "32 prompts x 8 completions = 256 rows (B), at most 4096 tokens (T)", "engine HFEngine(max_rows = 64",
             "M = p1 - p2",
             "max_steps 200: 200 rollouts, 6400 prompts, 51200 completions"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_presets_are_explained(preset, parts, capsys):
    main(["explain", "-c", str(CONFIGS / "experiment" / f"{preset}.yaml")])
    shown = capsys.readouterr().out
    assert [part for part in parts if part not in shown] == []


def test_overlays_and_flags_show():
    flags = ["-c", CONFIGS / "overlay" / "several_updates.yaml", "-c", CONFIGS / "overlay" / "kl.yaml"]
    flags += ["--model.loss.importance_sampling=token_truncate", "--model.loss.importance_sampling_cap=3"]
    shown = explain(parse(*flags, "--credit=evidence_contrast", "--credit.ablation=ref_model"))
    assert "times min(pi_old / mu, 3), mu the engine's probabilities" in shown
    assert "+ 0.04 k3(policy || policy as training starts)" in shown
    assert "2 training forwards, 1 scoring, 1 extra" in shown, "two passes; KL and ablation share the reference"
    assert "64 rows -> 4 optimizer steps (2 iterations x 2 minibatches of about 32 rows)" in shown
    assert "max_steps 100: 25 rollouts, 200 prompts, 1600 completions" in shown


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="exactly one CreditAssigner, got UniformCredit, MarginCredit"):
        explain(parse("--trainer.callbacks+=UniformCredit"))
