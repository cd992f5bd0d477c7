"""Pretrained backbones: any causal LM of transformers, by hub name or directory, whole or with LoRA adapters.

    model, tokenizer = load(BackboneConfig(model="meta-llama/Llama-3.2-3B-Instruct", lora=LoraConfig(rank=16)))
    model, tokenizer = load(BackboneConfig(model="smollm2"))       # comes in a package: `llm.packaged`

Frozen weights are in memory once, however many models are loaded over them: with adapters (experience model, policy), or as they are
(`frozen`: an instruct model that verifies, judges or teaches, and the features of the learned verifier).

Nothing is downloaded unless `download` is set. A model that is trained whole needs `dtype="float32"` and a learner that computes in
bfloat16: the small steps of RL round to nothing in bfloat16 weights. With LoRA the frozen weights may be bfloat16; the adapters are
float32.
"""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import json
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from dreamgym.engines.local import causal_lm
from dreamgym.errors import ConfigError, MissingExtra, MissingModel, UsageError
from dreamgym.llm import packaged
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.llm.vocabulary import END, MARKERS
from dreamgym.runs import atomic_directory

PADS = ("<|finetune_right_pad_id|>", "<|endoftext|>", "<pad>", "<|pad|>", "[PAD]", "<unk>")
"""What known tokenizers without a pad token offer for the purpose, better choices first."""


def load(config: BackboneConfig, *, seed: int = 0, shared: bool = True, frozen: bool = False) -> tuple[Any, Any]:
    """(model, tokenizer), in evaluation mode, on its device. With LoRA, or from a directory of adapters, the model is peft's wrapper.
    `seed` draws fresh adapters. Unless frozen weights are `shared` with other models, they may be changed. `frozen`: nobody trains the
    model, so that weights without adapters are shared too.

    UsageError for a model that is not here, MissingExtra without peft, ConfigError for an architecture whose probabilities we would miss.
    """
    atomic_directory.restore_interrupted(config.model)
    adapter = _adapter_of(config)
    source, revision = _source_of(config, adapter)
    tokenizer = _tokenizer(config.model if adapter else source, None if adapter else revision, config)
    share = shared and bool(frozen or adapter or config.lora)
    model = _shared(source, revision, config, _rows(tokenizer)) if share else _fetch(source, revision, config)
    new = _add_markers(model, tokenizer) if config.markers and not adapter else []
    _grow(model, _rows(tokenizer))  # by the markers, which adapters bring
    _choose_pad(tokenizer)
    model = model.to(device(config.device))
    causal_lm.verify(model)
    if source in packaged.PACKAGES:
        model.name_or_path = source  # by which adapters find it on another machine
    if adapter:
        model = _adapted(model, config.model, source)
    elif config.lora is not None:
        model = with_lora(model, config.lora, new, seed=seed, revision=revision)
    if adapter or config.lora is not None:
        for p in model.parameters():
            p.data = p.data.float() if p.requires_grad else p.data
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # others' adapters may bring some
            module.p = 0.0
    if config.gradient_checkpointing:
        recompute(model)
    return model.eval(), tokenizer


def outline(config: BackboneConfig) -> Any:
    """The model of the configuration without its weights (on the meta device): quick, for checks before a run. Raises what `load` raises
    for a device, a model or an attention kernel that is not here, for LoRA without peft, and for adapters that fit no layer."""
    atomic_directory.restore_interrupted(config.model)
    device(config.device)
    adapter, model = _adapter_of(config), _blank(config, "meta")
    with torch.device("meta"):
        if adapter:
            return _peft().get_peft_model(model, _peft().PeftConfig.from_pretrained(config.model))
        return model if config.lora is None else with_lora(model, config.lora)


def excerpt(config: BackboneConfig, layers: int) -> tuple[Any, Any]:
    """(model, tokenizer) as `load` gives them, with `layers` layers and random weights: for measuring what the model costs. Raises what
    `outline` and `load_tokenizer` raise."""
    atomic_directory.restore_interrupted(config.model)
    adapter = _adapter_of(config)
    tokenizer = _tokenizer(config.model, None if adapter else config.revision, config)
    model = _blank(config, device(config.device), layers)
    new = _add_markers(model, tokenizer) if config.markers and not adapter else []
    _grow(model, _rows(tokenizer))
    _choose_pad(tokenizer)
    if adapter:
        model = _peft().get_peft_model(model, _peft().PeftConfig.from_pretrained(config.model, inference_mode=False))
    elif config.lora is not None:
        model = with_lora(model, config.lora, new)
    for p in model.parameters():
        p.data = p.data.float() if p.requires_grad and (adapter or config.lora) else p.data
    if config.gradient_checkpointing:
        recompute(model)
    return model.eval(), tokenizer


def base_key(config: BackboneConfig, *, frozen: bool = False) -> tuple[Any, ...] | None:
    """What two configurations have in common whose models share their frozen weights in memory; None for a model without frozen ones.
    `frozen`: as in `load`."""
    adapter = _adapter_of(config)
    return _base_key(*_source_of(config, adapter), config) if frozen or adapter or config.lora else None


def load_tokenizer(config: BackboneConfig) -> Any:
    """The tokenizer alone, quickly. It fails as `load` does when the model is not here."""
    atomic_directory.restore_interrupted(config.model)
    adapter = _adapter_of(config)
    tokenizer = _tokenizer(config.model, None if adapter else config.revision, config)
    if config.markers:
        _extend(tokenizer)
    _choose_pad(tokenizer)
    return tokenizer


def save(model: Any, tokenizer: Any, path: Path | str) -> Path:
    """Write a checkpoint directory that `load` reads: all weights, or the adapters alone. It appears whole or not at all."""

    def write(fresh: Path) -> None:
        model.save_pretrained(fresh, **({"save_embedding_layers": False} if hasattr(model, "peft_config") else {}))
        tokenizer.save_pretrained(fresh)

    return atomic_directory.replace(path, write)


def merge(path: Path | str, out: Path | str) -> Path:
    """Write the model of a checkpoint with its adapters, and the tokens that it learned, as one ordinary model that any server loads.
    UsageError where there are none, and for adapters of embeddings that are tied to the head, which no ordinary model can hold."""
    model, tokenizer = load(BackboneConfig(model=str(path), device="cpu"), shared=False)  # adapters are added to the weights in place
    if not hasattr(model, "merge_and_unload"):
        raise UsageError(f"'{path}' holds no adapters: it is a whole model already, which a server loads as it is.")
    base = model.get_base_model()
    both = (base.get_input_embeddings(), base.get_output_embeddings())
    if both[0].weight is both[1].weight and any("lora_" in name for layer in both for name, _ in layer.named_parameters()):
        raise UsageError(
            f"The adapters in '{path}' change the head or the embeddings, which are one matrix in {type(base).__name__}: merged, the one "
            "would change the other. Use them unmerged, or train adapters without these layers."
        )
    return save(model.merge_and_unload(), tokenizer, out)


def positions(config: BackboneConfig) -> int:
    """Tokens of context that the model was built for."""
    adapter = _adapter_of(config)
    source, revision = _source_of(config, adapter)
    where = _where(source, revision, config)
    try:
        settings = AutoConfig.from_pretrained(_place(source), **where)
    except UsageError:
        raise
    except Exception as error:  # a boundary, as in `_fetch`
        raise _unreadable(source, config, error) from error
    return int(getattr(settings.get_text_config(), "max_position_embeddings", 4096))


def _adapter_of(config: BackboneConfig) -> dict[str, Any]:
    """The settings of the adapters in a directory; empty when `BackboneConfig.model` is none of adapters."""
    file = Path(config.model) / "adapter_config.json"
    if not file.is_file() or (Path(config.model) / "config.json").is_file():
        return {}
    if config.lora is not None:
        raise ConfigError(f"'{config.model}' holds adapters already, so `lora` has nothing to say. Leave it out, or name the base model.")
    settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if not settings.get("base_model_name_or_path"):
        raise UsageError(f"'{file}' does not say which model the adapters are of. Write its name or path at base_model_name_or_path.")
    return settings


def _source_of(config: BackboneConfig, adapter: dict[str, Any]) -> tuple[str, str | None]:
    """The model whose weights are read, and its revision: the base of adapters, or the model of the configuration."""
    if adapter:
        return adapter["base_model_name_or_path"], adapter.get("revision")
    return config.model, config.revision


def _adapted(model: Any, path: str, source: str) -> Any:
    """The model with the adapters of a directory. UsageError when they are of another model."""
    try:
        return _peft().PeftModel.from_pretrained(model, path, is_trainable=True, torch_device=str(model.device))
    except (RuntimeError, ValueError) as error:  # other shapes; modules that this model does not have
        reason = str(error).strip().splitlines()[-1].strip()
        raise UsageError(
            f"The adapters in '{path}' do not fit '{source}': {reason} Name the model they were trained on at base_model_name_or_path."
        ) from error


def _shared(source: str, revision: str | None, config: BackboneConfig, vocabulary: int) -> Any:
    """A model whose weights are frozen: its tensors are those of every other such model of this process over the same backbone, but for
    embeddings that will grow to `vocabulary` tokens or take markers in."""
    held = _base(source, revision, config)
    base = held.model
    both = (base.get_input_embeddings().weight, base.get_output_embeddings().weight)
    changes = config.markers or vocabulary > both[0].shape[0]  # transformers grows a weight in place, for all that hold it
    own = {id(weight) for weight in both} if changes else set()
    kept = (tensor for tensor in itertools.chain(base.parameters(), base.buffers()) if id(tensor) not in own)
    model = copy.deepcopy(base, {id(tensor): tensor for tensor in kept})
    held.users.add(model)
    return model


@dataclass(frozen=True)
class _Base:
    """Frozen weights, and the models in memory that share them."""

    model: Any
    users: WeakSet[Any]


_held: dict[tuple[Any, ...], _Base] = {}
"""The frozen weights that are in use or were loaded last. Others leave memory when the next ones are loaded."""


def _base(source: str, revision: str | None, config: BackboneConfig) -> _Base:
    """The frozen weights of a model, loaded once for all configurations that want the same of them."""
    key = _base_key(source, revision, config)
    if key not in _held:
        gc.collect()  # a model that is gone may wait for it
        for unused in [name for name, held in _held.items() if not held.users]:
            del _held[unused]
        _held[key] = _Base(_fetch(source, revision, config).to(device(config.device)).requires_grad_(False), WeakSet())
    return _held[key]


def _base_key(source: str, revision: str | None, config: BackboneConfig) -> tuple[Any, ...]:
    """What two configurations have in common that share their frozen weights."""
    file, where = Path(_place(source)) / "config.json", torch.empty(0, device=device(config.device)).device  # "cuda" has a number there
    stamp = file.stat().st_mtime_ns if file.is_file() else 0
    return (source, revision or "main", config.dtype, config.attention, str(where), stamp)


def _fetch(source: str, revision: str | None, config: BackboneConfig) -> Any:
    how, place = _where(source, revision, config), _place(source)
    try:
        settings = AutoConfig.from_pretrained(place, **how)
        _refuse_quantised(settings, source)
        for name in vars(settings):
            if name.endswith(("dropout", "pdrop")) and isinstance(getattr(settings, name), float):
                setattr(settings, name, 0.0)  # dropout would part the learner's log-probs from the sampler's
        dtype = "auto" if config.dtype == "auto" else getattr(torch, config.dtype)
        return AutoModelForCausalLM.from_pretrained(place, config=settings, dtype=dtype, attn_implementation=config.attention, **how)
    except UsageError:
        raise
    except Exception as error:  # a boundary: the hub, safetensors, json and attention kernels each raise their own kinds
        raise _unreadable(source, config, error) from error


def _blank(config: BackboneConfig, where: torch.device | str, layers: int | None = None) -> Any:
    """The model without adapters that `_fetch` reads, without its weights: with its first `layers` layers alone, where that is given."""
    source, revision = _source_of(config, _adapter_of(config))
    how = _where(source, revision, config)
    try:
        settings = AutoConfig.from_pretrained(_place(source), **how)
        _refuse_quantised(settings, source)
        if layers is not None:
            shape = settings.get_text_config()
            shape.num_hidden_layers = layers
            if getattr(shape, "layer_types", None):
                shape.layer_types = shape.layer_types[:layers]
        dtype = getattr(settings, "dtype", None) if config.dtype == "auto" else getattr(torch, config.dtype)
        with torch.device(where):
            return AutoModelForCausalLM.from_config(settings, dtype=dtype or torch.float32, attn_implementation=config.attention)
    except UsageError:
        raise
    except Exception as error:  # a boundary, as in `_fetch`
        raise _unreadable(source, config, error) from error


def _refuse_quantised(settings: Any, source: str) -> None:
    """ConfigError for weights that are stored in fewer bits: they cannot be trained, and adapters cannot be merged into them."""
    found = getattr(settings, "quantization_config", None)
    if found:
        kind = found.get("quant_method", "unknown") if isinstance(found, dict) else getattr(found, "quant_method", "unknown")
        raise ConfigError(
            f"'{source}' is quantised ({kind}): its weights can be neither trained nor joined with adapters, and the engine samples from "
            "plain ones. Use the checkpoint that it was made from, in bfloat16 or float32."
        )


def _tokenizer(source: str, revision: str | None, config: BackboneConfig) -> Any:
    try:
        return AutoTokenizer.from_pretrained(_place(source), **_where(source, revision, config))
    except UsageError:
        raise
    except Exception as error:  # a boundary, as above
        raise _unreadable(source, config, error) from error


def _place(source: str) -> str:
    """Where transformers finds a model: the directory of one that comes in a package, else what it is called."""
    return str(packaged.find(source)) if source in packaged.PACKAGES else source


def _where(source: str, revision: str | None, config: BackboneConfig) -> dict[str, Any]:
    """Arguments of from_pretrained that say where to look. UsageError for a path that is none."""
    if source in packaged.PACKAGES or Path(source).is_dir():
        return {"local_files_only": True}
    if source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise UsageError(f"No model at '{source}': expected a directory with config.json. Check the path, or give a name on the hub.")
    return {"revision": revision or "main", "local_files_only": not config.download}


def _unreadable(source: str, config: BackboneConfig, error: Exception) -> UsageError:
    reason = str(error).strip().split("\n")[0]
    if Path(source).is_dir():
        return UsageError(f"Cannot read the model at '{source}': {reason} Save it again, or point to another checkpoint.")
    if isinstance(error, ImportError | ValueError) and "attention" in reason.lower():
        return UsageError(f"Cannot use attention={config.attention} with '{source}': {reason}")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    return MissingModel(
        f"'{source}' is not on this machine ({reason}). Fetch it with `hf download {source}` into {cache} (HF_HOME names another place), "
        "or set download = true (`dreamgym init --download`); models behind a licence need `hf auth login` first. Without a network, copy "
        "the directory from another machine and give its path as `model`."
    )


def device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one. UsageError for a device that torch cannot use."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"No device is called '{name}'. Expected auto, cpu, cuda, or cuda:1 for the second GPU.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={name}, but torch sees no CUDA device. Use device=cpu, or install the torch build for your CUDA version.")
    try:
        torch.empty(1, device=found).cpu()  # a device that this build of torch lacks, or that holds no numbers, such as mps and meta
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UsageError(f"device={name} cannot be used: {str(error).splitlines()[0][:200]}. Use device=cpu, cuda or auto.") from error
    return found


def _choose_pad(tokenizer: Any) -> None:
    """A pad token out of the vocabulary, which never grows for it: rows are masked by length, so that any token will do."""
    if tokenizer.pad_token is None:
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((name for name in PADS if name in known), tokenizer.eos_token)


def _add_markers(model: Any, tokenizer: Any) -> list[int]:
    """Ids of the markers that were new to the vocabulary. In both embeddings their rows are the mean of those before them."""
    new = _extend(tokenizer)
    _grow(model, _rows(tokenizer))
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            layer.weight[new] = layer.weight[: min(new, default=0)].float().mean(0).to(layer.weight.dtype)
    return new


def _grow(model: Any, rows: int) -> None:
    """Embeddings of at least so many tokens: new rows are the mean of the others, so that every load gives the same model."""
    before = model.get_input_embeddings().weight.shape[0]
    if rows <= before:  # some models keep spare rows
        return
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            layer.weight[before:] = layer.weight[:before].float().mean(0).to(layer.weight.dtype)


def _rows(tokenizer: Any) -> int:
    """How many embeddings the tokenizer's ids need; the size of its vocabulary is less where ids are left out."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _extend(tokenizer: Any) -> list[int]:
    """Ids of the markers that were new to a tokenizer."""
    known = tokenizer.get_vocab()
    tokenizer.add_special_tokens({"extra_special_tokens": [*MARKERS, END]}, replace_extra_special_tokens=False)
    return sorted(tokenizer.convert_tokens_to_ids(name) for name in (*MARKERS, END) if name not in known)


def _peft() -> Any:
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # in transformers; peft reads it
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise MissingExtra("LoRA needs peft. Install it with: pip install 'dreamgym[peft]'") from error


def with_lora(model: Any, lora: LoraConfig, new: Sequence[int] = (), *, seed: int = 0, revision: str | None = None) -> Any:
    """The model with fresh adapters, drawn by `seed`, which change nothing yet. Rows of `new` tokens are trained too; others stay. The
    adapters remember the `revision` of their base. ConfigError for adapters of embeddings that are tied to the head."""
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    both = (model.get_input_embeddings(), model.get_output_embeddings())
    tied = both[0].weight is both[1].weight
    if tied and (wrong := [name for name, module in model.named_modules() if module in both and _targeted(targets, name)]):
        raise ConfigError(
            f"lora.target_modules name '{wrong[0]}', and {type(model).__name__} has one matrix for embeddings and head: an adapter of the "
            'one would change the other when it is merged. Leave it out; "all-linear" does.'
        )
    names = [name for name, module in model.named_modules() if module is both[0] or (module is both[1] and not tied)]
    tokens = {"trainable_token_indices": {name.rpartition(".")[2]: list(new) for name in names}} if new else {}
    settings = _peft().LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
        bias="none",
        revision=revision,
        **tokens,
    )
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return _peft().get_peft_model(model, settings)
    except ValueError as error:
        raise ConfigError(f"LoRA finds none of its target_modules {targets!r} in {type(model).__name__}: {error}") from error


def _targeted(targets: str | Sequence[str], name: str) -> bool:
    """Whether peft adapts the module of that name."""
    if isinstance(targets, str):
        return targets != "all-linear" and re.fullmatch(targets, name) is not None
    return any(name == one or name.endswith(f".{one}") for one in targets)


def recompute(model: Any) -> None:
    """Switch gradient checkpointing on."""
    causal = causal_lm.plain(model)
    switch = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    switch({"use_reentrant": False})
    if causal is not model:  # frozen embeddings; layers that checkpoint in a way of their own may ask for a gradient at their input
        causal.enable_input_require_grads()
