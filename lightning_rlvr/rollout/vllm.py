"""The engine that runs vLLM in this process, beside the trainer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from typing_extensions import override

from lightning_rlvr.checks import require, require_choice, require_package
from lightning_rlvr.functional.masking import completion_mask
from lightning_rlvr.rollout.base import ENGINES, Finished, RolloutEngine, Sampling, SamplingPolicy
from lightning_rlvr.types import Completions, PromptBatch

LoraMode = Literal["merged", "adapter"]

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # it warns of what is meant to be so: no tokenizer, random weights at first
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores are the trainer's too
}
"""What vLLM is told unless the user told it otherwise."""

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM makes room for."""


@ENGINES.register("vllm")
class VLLMEngine(RolloutEngine):
    """Decodes with vLLM, whose own copy of the weights is brought up to date before a rollout if they changed.

    A row's tokens depend on its prompt, its seed and the weights, up to rounding, which in vLLM depends on the other
    rows: the same batch gives the same tokens, a part of it may differ where two tokens are nearly as likely. They are
    not those that the `hf` engine draws from the same seeds. Prompts are text; images are refused.

    Args:
        lora: How an adapter gets there: ``merged`` into the base weights, in their dtype and as the `hf` engine does
            it, or as an ``adapter`` beside them, which is less to bring over and slower to decode.
        kv_cache_gib: Memory of the key-value cache, GiB, taken at once; it bounds how many rows decode at a time.
        max_model_len: Longest prompt and completion together, tokens; never more than the model's positions.
    """

    shares_weights: ClassVar[bool] = False

    def __init__(self, lora: LoraMode = "merged", kv_cache_gib: float = 1.0, max_model_len: int = 4096) -> None:
        require_choice("lora", get_args(LoraMode), lora)
        require(kv_cache_gib > 0, "kv_cache_gib", "positive", kv_cache_gib)
        require(max_model_len >= 2, "max_model_len", "at least 2", max_model_len)
        require_package("vllm", "vLLM", "vllm", type(self).__name__)
        self.lora = lora
        self.kv_cache_gib = kv_cache_gib
        self.max_length: int = max_model_len
        self._llm: Any = None  # what vLLM is, an untyped import at the top would cost every start of ours seconds
        self._policy: SamplingPolicy | None = None
        self._weights: tuple[int, ...] | None = None
        self._asleep = False
        self._adapter: Any = None
        self._adapter_ids = count(1)

    @override
    def sync(self, policy: SamplingPolicy) -> None:
        if self._policy is not policy:
            self._start(policy)
        elif self._asleep:
            self._llm.wake_up()
            self._asleep = False
        if (weights := _fingerprint(policy)) == self._weights:
            return
        held, self._weights = self._weights, None  # what is interrupted half-way leaves a mixture
        if self.lora == "merged":
            self._push(policy, set() if held is None else _frozen_embeddings(policy))
        else:
            if self._adapter is None:
                self._push(policy, set())
            self._swap(policy)
        self._llm.reset_prefix_cache()  # it holds what the weights of before made of the prompts
        self._weights = weights

    @override
    def sleep(self) -> None:
        if self._policy is not None and self._device.type == "cuda" and not self._asleep:
            self._weights, self._asleep = None, True
            self._llm.sleep(level=2 if self.lora == "merged" else 1)  # merged weights are pushed again anyway

    @override
    @torch.no_grad()
    def generate(
        self,
        policy: SamplingPolicy,
        prompts: PromptBatch,
        prompt_index: Tensor,
        seeds: Tensor,
        sampling: Sampling,
        finished: Finished | None = None,
    ) -> Completions:
        if self._policy is not policy:
            raise RuntimeError("`sync` must come before `generate`: the engine holds no weights of this policy")
        limit, device = sampling.max_completion_length, prompts.prompt_ids.device
        require(sampling.temperature >= 0, "temperature", "0 (greedy) or positive", sampling.temperature)
        require(limit >= 1, "max_completion_length", "positive", limit)
        require(not prompts.model_inputs, "engine", "hf for prompts with images", "vllm")
        longest = int(prompts.prompt_mask.sum(1).max()) if len(prompts) else 0
        if longest + limit > self.max_length:
            raise ValueError(
                f"the longest prompt and `max_completion_length` must fit into `max_model_len` of the vllm engine and "
                f"the model's positions, {self.max_length} tokens, got {longest} + {limit}"
            )
        rows = self._decode(policy, prompts, prompt_index.tolist(), seeds.tolist(), sampling, finished)
        length = max((len(ids) for ids, _ in rows), default=0)
        padded = [ids + [policy.pad_token_id] * (length - len(ids)) for ids, _ in rows]
        values = [logprobs + [0.0] * (length - len(logprobs)) for _, logprobs in rows]
        ids = torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), length)
        mask, truncated = completion_mask(ids, policy.eos_token_ids)
        return Completions(
            completion_ids=ids,
            completion_mask=mask,
            truncated=truncated,
            logprobs=torch.tensor(values, dtype=torch.float32, device=device).reshape(len(rows), length),
            prompt_index=prompt_index.to(device),
            seeds=seeds.to(device),
        )

    def _decode(
        self,
        policy: SamplingPolicy,
        prompts: PromptBatch,
        prompt_index: list[int],
        seeds: list[int],
        sampling: Sampling,
        finished: Finished | None,
    ) -> list[tuple[list[int], list[float]]]:
        """Token ids and log-probs of each row, end token included."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        ids = [row[mask].tolist() for row, mask in zip(prompts.prompt_ids, prompts.prompt_mask, strict=True)]
        rows: list[tuple[list[int], list[float]]] = [([], [])] * len(seeds)
        try:
            for row, (prompt, seed) in enumerate(zip(prompt_index, seeds, strict=True)):
                params = SamplingParams(
                    temperature=sampling.temperature,
                    max_tokens=sampling.max_completion_length,
                    seed=seed & (2**63 - 1),  # -1 would be no seed at all
                    stop_token_ids=policy.eos_token_ids,
                    logprobs=0,  # that of the sampled token alone
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                engine.add_request(str(row), {"prompt_token_ids": ids[prompt]}, params, lora_request=self._adapter)
            while engine.has_unfinished_requests():
                ended = [output for output in engine.step() if output.finished]
                for output in ended:
                    [completion] = output.outputs
                    tokens = list(completion.token_ids)
                    by_id = zip(tokens, completion.logprobs, strict=True)
                    rows[int(output.request_id)] = tokens, [found[token].logprob for token, found in by_id]
                numbers = [int(output.request_id) for output in ended if output.outputs[0].finish_reason == "stop"]
                if numbers and finished is not None and engine.has_unfinished_requests():
                    finished(numbers, [rows[number][0] for number in numbers])
        finally:
            if engine.has_unfinished_requests():  # an interruption leaves them behind: they would answer the next call
                engine.abort_request([str(row) for row in range(len(seeds))])
        return rows

    def _start(self, policy: SamplingPolicy) -> None:
        """Build vLLM's model from the config of the policy's, with weights that mean nothing yet."""
        if self._policy is not None:
            raise ValueError(
                "the vllm engine serves one policy, and was given another: give each an engine of its own"
            )
        device, rank = policy.model.device, policy.adapter_rank
        require(self.lora == "merged" or rank > 0, "lora", "merged for a policy without adapter", self.lora)
        config = policy.plain_config()
        positions = getattr(config.get_text_config(), "max_position_embeddings", None) or self.max_length
        self.max_length = min(self.max_length, positions)
        with TemporaryDirectory() as folder, _undisturbed():
            config.save_pretrained(folder)
            self._llm = _vllm(device)(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype=str(policy.model.dtype).removeprefix("torch."),
                max_model_len=self.max_length,
                kv_cache_memory_bytes=int(self.kv_cache_gib * 2**30),
                **_share_of_memory(device),
                generation_config="vllm",  # its own defaults, which filter nothing: not those of a checkpoint
                logprobs_mode="processed_logprobs",  # those of the sampling temperature
                enforce_eager=device.type == "cpu",
                enable_sleep_mode=device.type == "cuda",
                enable_lora=self.lora == "adapter",
                max_lora_rank=next(size for size in _LORA_RANKS if size >= rank),
            )
        # vLLM's end would take the process group along, which is the trainer's or another engine's
        self._llm.llm_engine.engine_core._finalizer.detach()
        self._policy, self._device = policy, device

    def _push(self, policy: SamplingPolicy, there: set[int]) -> None:
        """Bring over all weights but those that lie ``there``."""
        with policy.plain_weights(merged=self.lora == "merged") as weights:
            changed = ((name, weight) for name, weight in weights.items() if weight.data_ptr() not in there)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": changed})

    def _swap(self, policy: SamplingPolicy) -> None:
        from vllm.lora.request import LoRARequest

        engine, number = self._llm.llm_engine, next(self._adapter_ids)
        if self._adapter is not None:
            engine.remove_lora(self._adapter.lora_int_id)
        with TemporaryDirectory() as folder:
            policy.save(folder)
            self._adapter = LoRARequest(str(number), number, folder)
            engine.add_lora(self._adapter)


def _fingerprint(policy: SamplingPolicy) -> tuple[int, ...]:
    """Changes with the weights that train: an evaluation of many batches brings them over once."""
    weights = [weight.detach() for weight in policy.trainable_weights]
    marks = [torch.hash_tensor(weight) for weight in weights]
    marks += [weight.sum(dtype=torch.float64) for weight in weights]  # bits of equal pairs cancel out
    return tuple(torch.stack([mark.view(torch.int64) for mark in marks]).tolist())  # waits for the device once


def _share_of_memory(device: torch.device) -> dict[str, float]:
    """What vLLM may take of a GPU's memory: nearly all that the trainer has left, or it refuses to start."""
    if device.type == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"gpu_memory_utilization": 0.95 * free / total}


def _frozen_embeddings(policy: SamplingPolicy) -> set[int]:
    """Where embeddings lie that no training changes: a third of what is to be brought over of a small model."""
    layers: tuple[Any, ...] = policy.model.get_input_embeddings(), policy.model.get_output_embeddings()
    plain = [layer for layer in layers if type(layer) in (nn.Embedding, nn.Linear)]  # and not inside an adapter layer
    return {layer.weight.data_ptr() for layer in plain if not layer.weight.requires_grad}


def _vllm(device: torch.device) -> Any:
    """The class of vLLM's models, ready to be built in this process for this device.

    Raises:
        ValueError: The vLLM that is installed is for other devices, or a single process runs on another GPU than the
            first that it sees.
    """
    os.environ.update(_ENVIRONMENT | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ})
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm
    from vllm.platforms import current_platform

    if current_platform.is_cpu() != (device.type == "cpu"):
        raise ValueError(
            f"`trainer.accelerator` must be what the installed vLLM is for, {current_platform.device_type}, got "
            f"{device.type}"
        )
    if device.type == "cpu":
        current_platform.simple_compile_backend = "eager"  # compiles what ranks log-probs: half a minute for nothing
        vars(torch.ops._C)["init_cpu_memory_env"] = lambda nodes: None  # would bind the trainer's memory too
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it misses triton, which a CPU has no use for
    if not torch.distributed.is_initialized():  # else vLLM does so, with a file that it leaves behind
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # is there, and not in its stubs
        torch.distributed.init_process_group(current_platform.dist_backend, store=store, rank=0, world_size=1)
    if torch.distributed.get_world_size() == 1:
        require(not device.index, "trainer.devices", "1 with the vllm engine (CUDA_VISIBLE_DEVICES chooses)", device)
        return vllm.LLM
    # one engine for each rank, on the rank's own device and in the process group that is there
    os.environ.update(RANK=str(torch.distributed.get_rank()), LOCAL_RANK=str(device.index or 0))
    return partial(vllm.LLM, distributed_executor_backend="external_launcher")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Random states, threads, dtype and environment are afterwards what they were before; no warnings inside."""
    dtype, threads, set_threads = torch.get_default_dtype(), torch.get_num_threads(), torch.set_num_threads
    environment = dict(os.environ)
    try:
        with warnings.catch_warnings(action="ignore"), isolate_rng(include_cuda=torch.cuda.is_initialized()):
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            if not name.startswith(("VLLM_", "TORCHINDUCTOR_")):  # it goes on to read its own
                del os.environ[name]
        os.environ.update(environment)
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
