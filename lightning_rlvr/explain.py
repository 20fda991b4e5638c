"""Says in words what a configuration does: formulas, shapes, declared statistics, forwards and sizes of a step."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from lightning_rlvr.calibration.base import RewardCalibrator
from lightning_rlvr.credit.base import CreditAssigner
from lightning_rlvr.functional.losses import LOSS_TYPES
from lightning_rlvr.learner import reads_training_forward
from lightning_rlvr.plugins import Needs, find_one, unite_needs

if TYPE_CHECKING:
    from lightning_rlvr.cli import RLVRCLI
    from lightning_rlvr.data.datamodule import PromptDataModule
    from lightning_rlvr.data.sources import ProblemSource
    from lightning_rlvr.module import RLVRModule

_AGGREGATIONS = {
    "sequence_mean": "1/B sum_i 1/T_i sum_t",
    "token_mean": "1/(tokens of the rollout batch / num_minibatches) sum_i sum_t",
    "minibatch_token_mean": "1/(tokens of the minibatch) sum_i sum_t",
    "constant_length": "1/(B max_completion_length) sum_i sum_t",
}


def explain(cli: RLVRCLI) -> str:
    """The resolved pipeline as text; loads no model and no data.

    Raises:
        ValueError: The parts do not fit together; the same errors that ``rlvr fit`` ends with.
    """
    module, data = cli.model, cli.datamodule
    calibrator = find_one(cli.trainer, RewardCalibrator)
    assigner = find_one(cli.trainer, CreditAssigner)
    loss = module.loss_settings
    module.check_sizes(cli.trainer.max_steps, data.prompts_per_step)
    needs = unite_needs(calibrator, assigner, reference=loss.beta > 0, entropy_gradient=loss.entropy_coef > 0)
    sections = {
        "policy": _policy(module),
        "data": _data(data),
        "rollout": _rollout(module, data),
        "calibrator": _plugin(calibrator, "rewards [B] -> advantages [B], float32"),
        "credit": _plugin(assigner, "advantages [B] -> token_advantages [B, T], float32, 0 outside the mask"),
        "loss": _loss(module),
        "forwards": _forwards(module, calibrator, assigner, needs),
        "step": _step(module, data, cli.trainer.max_steps, cli.trainer.world_size),
    }
    return "\n".join(f"{name}\n{_indented(lines)}" for name, lines in sections.items())


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _policy(module: RLVRModule) -> list[str]:
    settings = module.policy_settings
    lora = settings.lora
    adapter = (
        "all weights train"
        if lora is None
        else f"LoRA rank {lora.rank}, alpha {lora.alpha}, on {lora.target_modules}, float32"
    )
    return [f"{settings.name_or_path}, dtype {settings.dtype}; {adapter}"]


def _data(data: PromptDataModule) -> list[str]:
    trained = [*data.train_sources, *(s for s in data.val_sources if s not in data.train_sources)]
    lines = [_source(source) for source in trained]
    lines.append(f"data_seed {data.data_seed}: which problems, in which order")
    if not data.test_sources:
        return [*lines, "tested on the held-out problems"]
    lines += [f"tested on {_source(source)}" for source in data.test_sources]
    if data.test_problems is not None:
        lines.append(f"at most {data.test_problems} problems of each test set, the same for every data_seed")
    size = data.decontamination_ngram_size
    if size is None:
        return [*lines, "training problems are not compared with the test sets"]
    return [*lines, f"training problems that share {size} successive words with a test problem are left out"]


def _source(source: ProblemSource) -> str:
    return f"{source.task}: {type(source).__name__}({_arguments(source)}), scored by {type(source.verifier).__name__}"


def _rollout(module: RLVRModule, data: PromptDataModule) -> list[str]:
    settings = module.rollout_settings
    seed = "data_seed" if settings.sample_seed is None else settings.sample_seed
    engine = settings.engine
    engine = engine if isinstance(engine, str) else f"{type(engine).__name__}({_arguments(engine)})"
    return [
        f"{data.prompts_per_step} prompts x {settings.num_generations} completions = "
        f"{data.prompts_per_step * settings.num_generations} rows (B), at most {settings.max_completion_length} "
        f"tokens (T), temperature {settings.temperature}, no filters, engine {engine}, sample seed {seed}"
    ]


def _plugin(plugin: RewardCalibrator | CreditAssigner, shapes: str) -> list[str]:
    summary = (inspect.getdoc(type(plugin)) or "").partition("\n")[0]
    lines = [f"{type(plugin).__name__}: {shapes}", plugin.formula or summary.replace("``", "")]
    if arguments := _arguments(plugin):
        lines.append(arguments)
    return lines


def _arguments(part: object) -> str:
    """Settings of a part, as it resolved them."""
    names = inspect.signature(type(part).__init__).parameters
    hidden = {"self", "task", "verifier", "template", "problem_pattern"}
    values = {name: getattr(part, name) for name in names if name not in hidden and hasattr(part, name)}
    return ", ".join(f"{name} = {_shown(value)}" for name, value in values.items() if value is not None)


def _shown(value: object) -> str:
    if isinstance(value, (RewardCalibrator, CreditAssigner)):
        return type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_shown(item) for item in value)}]"
    return str(value)


def _loss(module: RLVRModule) -> list[str]:
    settings = module.loss_settings
    kind = LOSS_TYPES[settings.loss_type]
    high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    ratio = {"token": "rho = pi / pi_old", "gspo_token": "rho = sg[s_i] pi / sg[pi]"}[kind.ratio]
    surrogate = {
        "clip": f"-min(rho A_t, clip(rho, {1 - settings.epsilon:g}, {1 + high:g}) A_t)",
        "cispo": f"-sg[min(rho, {1 + high:g})] A_t log pi",
    }[kind.surrogate]
    lines = [f"{settings.loss_type}: {_AGGREGATIONS[kind.aggregation]} {surrogate}, {ratio}"]
    if settings.delta is not None:
        lines.append(f"dual clip: at most {settings.delta:g} |A_t| where A_t < 0")
    if settings.importance_sampling is not None:
        weight = {"token_truncate": "pi_old / mu", "sequence_truncate": "prod_t pi_old / mu"}
        bounded = f"min({weight[settings.importance_sampling]}, {settings.importance_sampling_cap:g})"
        lines.append(f"times {bounded}, mu the engine's probabilities")
    if settings.beta > 0:
        lines.append(f"+ {settings.beta:g} k3(policy || policy as training starts), not weighted by credit")
    if settings.entropy_coef > 0:
        lines.append(f"- {settings.entropy_coef:g} entropy, not weighted by credit")
    if settings.mask_truncated_completions:
        lines.append("truncated completions leave numerator and denominator alike")
    return lines


def _forwards(module: RLVRModule, calibrator: RewardCalibrator, assigner: CreditAssigner, needs: Needs) -> list[str]:
    loss = module.loss_settings
    declared = sorted(calibrator.requires | assigner.requires)
    lines = [
        f"declared statistics: {', '.join(declared) or 'none'} (read in the forward that yields the log-probs; the "
        "entropy is logged for all methods)"
    ]
    training, scoring = loss.num_iterations, int(not reads_training_forward(loss, calibrator, assigner))
    lines.append(
        f"for each row: {training} training forward{'s' * (training > 1)}, {scoring} scoring, "
        f"{needs.extra_forwards} extra without gradient"
    )
    lines += [f"evidence removed by {ablation!r}" for ablation in sorted(needs.ablations, key=repr)]
    if not loss.needs_all_rows and assigner.row_local:
        lines.append("rows whose advantage is exactly 0 are not forwarded; they stay in the denominators")
    return lines


def _step(module: RLVRModule, data: PromptDataModule, max_steps: int, world_size: int) -> list[str]:
    loss, rows = module.loss_settings, data.prompts_per_step * module.rollout_settings.num_generations
    updates, minibatch = loss.updates_per_rollout, rows // loss.num_minibatches
    lines = [
        f"{rows} rows -> {updates} optimizer step{'s' * (updates > 1)} "
        f"({loss.num_iterations} iterations x {loss.num_minibatches} minibatches of about {minibatch} rows), "
        f"micro-batches of at most {loss.max_tokens_per_micro_batch} padded tokens"
    ]
    if max_steps > 0:
        rollouts = max_steps // updates
        lines.append(
            f"max_steps {max_steps}: {rollouts} rollouts, {rollouts * data.prompts_per_step} prompts, "
            f"{rollouts * rows} completions"
        )
    if world_size > 1:
        lines.append(f"{world_size} processes share each rollout batch; whole prompts stay on one of them")
    return lines
