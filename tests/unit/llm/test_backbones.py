"""Pretrained backbones of several architectures: what is loaded by path acts, learns and is saved as it should."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from dreamgym.engines.local import causal_lm, llama
from dreamgym.engines.local.causal_lm import rotary_limit
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.errors import ConfigError, MissingExtra, UsageError
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.llm.backbones import load, save
from dreamgym.llm.vocabulary import ACT, MARKERS
from dreamgym.train.algos import grpo
from dreamgym.train.batch import pad
from dreamgym.train.forward import token_logprobs
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig, SFTConfig
from dreamgym.train.sft import train
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory, Transition, Turn

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Qwen2": {"attention_dropout": 0.5},  # dropout is switched off
    "Qwen3": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 64},
    "Gemma3Text": {"sliding_window": 64, "query_pre_attn_scalar": 8},
    "Granite": {"logits_scaling": 4.0},
    "Cohere": {"logit_scale": 0.3},
}
HEADS = {"Gemma3Text": "Gemma3ForCausalLM"}
LORA = LoraConfig(rank=4, alpha=8.0)
WORDS = ["go left", "go right", "open the door"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A checkpoint directory of random weights per architecture, made once."""
    made: dict[str, str] = {}
    tokenizer = tiny.train_tokenizer(WORDS, vocab_size=300)

    def of(name: str) -> str:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            torch.manual_seed(0)
            config = getattr(transformers, f"{name}Config")(**(SHAPE | MORE[name]))
            model = getattr(transformers, HEADS.get(name, f"{name}ForCausalLM"))(config)
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.ndim > 1:
                        weight.mul_(8)  # sharp enough that samples differ and errors show
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)
            made[name] = str(path)
        return made[name]

    return of


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(10, 300, n).tolist() for n in lengths]


def sampled(model: Any, tokenizer: Any, asked: Sequence[Sequence[int]], **how: Any) -> list[Completion]:
    sampling = Sampling(10, **({"temperature": 1.0} | how))
    return LocalEngine(model, tokenizer).generate([Request(p, sampling, (i,)) for i, p in enumerate(asked)])


def learnt(model: Any, completions: Sequence[Completion]) -> list[torch.Tensor]:
    """The learner's log-probabilities of what was sampled, one tensor per completion."""
    ids = [[*c.prompt_ids, *c.ids] for c in completions]
    weights = [[0.0] * len(c.prompt_ids) + [1.0] * len(c.ids) for c in completions]
    found, _ = token_logprobs(model, pad(ids, weights, range(len(ids))))
    return list(found.split([len(c.ids) for c in completions]))


def stir(model: Any) -> Any:
    """Fresh adapters change nothing; these do."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.normal_(std=0.1)
    return model


def group(model: Any, tokenizer: Any) -> list[Trajectory]:
    """Four rollouts of one task, half of them rewarded."""
    state = Observation("s")
    said = sampled(model, tokenizer, prompts(12) * 4)
    return [
        Trajectory("t", Task("t", "i", "e"), "real", (Turn(Transition(state, "a", state, r, True), c),), r == 1)
        for c, r in zip(said, (1.0, 0.0, 1.0, 0.0), strict=True)
    ]


def snapshot(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MORE)
def test_what_is_loaded_by_path_says_what_transformers_says_and_learns_what_it_said(name: str, saved: Callable[[str], str]) -> None:
    model, tokenizer = load(BackboneConfig(model=saved(name), device="cpu"))
    asked = prompts(3, 40, 17)
    for prompt, c in zip(asked, sampled(model, tokenizer, asked, temperature=0.0), strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        assert list(c.ids) == theirs[0, len(prompt) :].tolist()
    said = sampled(model, tokenizer, asked)
    model.train()  # as the learner does: nothing may be random
    for c, found in zip(said, learnt(model, said), strict=True):
        assert np.allclose(c.logprobs, found.tolist(), atol=1e-4)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_a_step_of_supervision_and_a_step_of_rl_move_the_whole_model(name: str, saved: Callable[[str], str]) -> None:
    model, tokenizer = load(BackboneConfig(model=saved(name), device="cpu", gradient_checkpointing=True))
    losses: list[float] = []
    rows = prompts(9, 14)
    config = SFTConfig(epochs=8.0, lr=1e-3, batch_tokens=32, bf16=False)
    train(model, rows, [[1.0] * len(r) for r in rows], config, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    assert losses[-1] < losses[0]
    before, episodes = snapshot(model), group(model, tokenizer)
    Learner(model, grpo.make(), LearnerConfig(minibatches=1, lr=1e-3, bf16=False)).update([episodes])
    good = [t.turns[0].completion for t in episodes if t.success]
    was = sum(sum(c.logprobs) for c in good if c)
    assert sum(x.sum().item() for x in learnt(model, [c for c in good if c])) > was
    assert any(not torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("name", ["Llama", "Qwen2"])
def test_gradient_checkpointing_gives_the_same_gradients(name: str, saved: Callable[[str], str]) -> None:
    rows = prompts(20, 33)
    found = []
    for checkpointing in (False, True):
        model, _ = load(BackboneConfig(model=saved(name), device="cpu", gradient_checkpointing=checkpointing))
        assert causal_lm.recomputes(model) == checkpointing
        model.train()
        token_logprobs(model, pad(rows, [[1.0] * len(r) for r in rows], [0, 1]))[0].sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))


def test_logits_computed_in_parts_are_the_same_logits(saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load(BackboneConfig(model=saved("Qwen2"), device="cpu"))
    rows = prompts(20, 33)
    found = []
    for held in (1 << 28, 300 * 7):
        monkeypatch.setattr("dreamgym.train.forward.LOGITS", {"cpu": held})
        model.zero_grad()
        logprobs, entropies = token_logprobs(model, pad(rows, [[1.0] * len(r) for r in rows], [0, 1]))
        logprobs.sum().backward()
        found.append((logprobs, entropies, *(p.grad.clone() for p in model.parameters())))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*found, strict=True))


def test_the_engine_goes_no_further_than_a_sliding_window(saved: Callable[[str], str]) -> None:
    model, tokenizer = load(BackboneConfig(model=saved("Mistral"), device="cpu"))
    assert LocalEngine(model, tokenizer).max_context == LocalEngine(model, tokenizer, cache_dtype="bfloat16").max_context == 64
    with pytest.raises(ConfigError, match="sliding window of 64"):
        LocalEngine(model, tokenizer, max_context=65)


def test_the_engine_goes_no_further_than_rotary_frequencies_that_do_not_change() -> None:
    """`longrope` takes other frequencies for a whole batch as soon as one sequence is long."""
    tokenizer = tiny.train_tokenizer(WORDS, vocab_size=300)
    long: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    long["original_max_position_embeddings"] = 64
    shape = transformers.Phi3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=64, pad_token_id=0, rope_parameters=long,
    )  # fmt: skip
    model = transformers.Phi3ForCausalLM(shape).eval()
    assert LocalEngine(model, tokenizer).max_context == 64
    with pytest.raises(ConfigError, match="64 positions up to which the model's rotary frequencies do not change"):
        LocalEngine(model, tokenizer, max_context=65)
    model.config.rope_parameters = {"full_attention": long, "sliding_attention": {"rope_type": "default"}}  # a table a kind of layer
    assert rotary_limit(model) == 64


def test_an_architecture_whose_probabilities_we_would_miss_is_refused_by_name(tmp_path: Path) -> None:
    class Sharpened(transformers.Qwen2ForCausalLM):
        def forward(self, *args: Any, **more: Any) -> Any:
            out = super().forward(*args, **more)
            out.logits = out.logits * 2
            return out

    with pytest.raises(ConfigError, match="Sharpened does more to its logits"):
        causal_lm.verify(Sharpened(transformers.Qwen2Config(**SHAPE)))
    gemma = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SHAPE))
    causal_lm.verify(gemma)  # its soft cap of logits is known
    with pytest.raises(ConfigError, match="Gemma2ForCausalLM caps its attention scores"):
        LocalEngine(gemma, tiny.train_tokenizer(["a"], vocab_size=300))
    shape = SHAPE | {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"] * 2}
    sinking = transformers.GptOssForCausalLM(transformers.GptOssConfig(**shape))
    causal_lm.verify(sinking)
    with pytest.raises(ConfigError, match="GptOssForCausalLM attends in a way"):
        LocalEngine(sinking, tiny.train_tokenizer(["a"], vocab_size=300))


def test_a_model_that_is_not_here_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'no-one/Nothing-1B' is not on this machine.*hf download no-one/Nothing-1B.*download = true"):
        load(BackboneConfig(model="no-one/Nothing-1B"))
    with pytest.raises(UsageError, match="No model at './nowhere/at/all'"):
        load(BackboneConfig(model="./nowhere/at/all"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="Cannot read the model at"):
        load(BackboneConfig(model=str(tmp_path)))


def test_an_outline_has_the_layers_and_the_dtype_of_the_model_and_no_weights(saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    found = backbones.outline(BackboneConfig(model=saved("Qwen3"), device="cpu", dtype="bfloat16", lora=LORA))
    parameters = dict(found.named_parameters())
    assert {p.device.type for p in parameters.values()} == {"meta"}
    assert any("lora_A" in name for name in parameters)
    assert {p.dtype for name, p in parameters.items() if "lora" not in name} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="finds none of its target_modules"):
        backbones.outline(BackboneConfig(model=saved("Qwen3"), device="cpu", lora=LoraConfig(target_modules=("nothing",))))


def test_without_peft_the_install_command_is_named(saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(backbones.importlib, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'dreamgym\[peft\]'"):
        load(BackboneConfig(model=saved("Qwen3"), device="cpu", lora=LORA))


def test_a_tokenizer_without_a_pad_token_borrows_one_and_the_vocabulary_stays(saved: Callable[[str], str]) -> None:
    _, tokenizer = load(BackboneConfig(model=saved("Qwen3"), device="cpu"))
    size = len(tokenizer)
    tokenizer.pad_token = None
    backbones._choose_pad(tokenizer)
    assert tokenizer.pad_token == "<|pad|>" and len(tokenizer) == size
    tokenizer.pad_token = "[CLS]"  # one that is there stays
    backbones._choose_pad(tokenizer)
    assert tokenizer.pad_token == "[CLS]"


@pytest.mark.parametrize("targets", [("q_proj", "lm_head"), ("embed_tokens",), r".*(q_proj|lm_head)"])
def test_adapters_of_a_head_that_is_tied_to_the_embeddings_are_refused(targets: str | tuple[str, ...], saved: Callable[[str], str]) -> None:
    """Merged, they would change the embeddings as well."""
    pytest.importorskip("peft")
    lora = LoraConfig(rank=4, target_modules=targets)
    tied = next(name for name in ("Llama", "Qwen2") if load(BackboneConfig(model=saved(name), device="cpu"))[0].config.tie_word_embeddings)
    for ask in (load, backbones.outline):
        with pytest.raises(ConfigError, match=r"target_modules name .* one matrix for embeddings and head"):
            ask(BackboneConfig(model=saved(tied), device="cpu", lora=lora))


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["q_proj", "embed_tokens"]])
@pytest.mark.parametrize("name", ["Llama", "Qwen2"])  # tied and untied embeddings
def test_adapters_of_others_that_change_a_tied_head_are_not_merged(
    targets: list[str], name: str, saved: Callable[[str], str], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    base, tokenizer = load(BackboneConfig(model=saved(name), device="cpu"))
    theirs = stir(peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")))
    save(theirs, tokenizer, tmp_path / "adapter")
    if name == "Llama":
        with pytest.raises(UsageError, match="one matrix in LlamaForCausalLM"):
            backbones.merge(tmp_path / "adapter", tmp_path / "whole")
        assert not (tmp_path / "whole").exists()
        return
    whole, _ = load(BackboneConfig(model=str(backbones.merge(tmp_path / "adapter", tmp_path / "whole")), device="cpu"))
    ids = torch.tensor(prompts(20))
    assert torch.allclose(whole(ids).logits, theirs(ids).logits, atol=1e-4)


def test_adapters_remember_the_revision_of_their_base(saved: Callable[[str], str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved("Llama"), revision="v2", device="cpu", lora=LORA))
    save(model, tokenizer, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["revision"] == "v2"


def test_adapters_come_back_on_the_revision_of_their_base(
    saved: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved("Llama"), revision="v2", device="cpu", lora=LORA))
    save(model, tokenizer, tmp_path / "adapter")
    asked, fetch = list[Any](), backbones._fetch
    monkeypatch.setattr(backbones, "_fetch", lambda source, revision, config: asked.append(revision) or fetch(source, revision, config))
    monkeypatch.setattr(backbones, "_held", {})
    again, _ = load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu"))
    assert asked == ["v2"]
    save(again, tokenizer, tmp_path / "again")
    load(BackboneConfig(model=str(tmp_path / "again"), device="cpu"), shared=False)
    assert asked == ["v2", "v2"]


def test_a_base_is_read_once_for_configurations_that_want_the_same_of_it(
    saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    asked, fetch = list[Any](), backbones._fetch
    monkeypatch.setattr(backbones, "_fetch", lambda source, revision, config: asked.append(revision) or fetch(source, revision, config))
    monkeypatch.setattr(backbones, "_held", {})
    config = BackboneConfig(model=saved("Llama"), device="cpu", lora=LORA)
    same: tuple[dict[str, Any], ...] = ({}, {"gradient_checkpointing": True}, {"download": True}, {"revision": "main"})
    for changes in same if torch.cuda.is_available() else (*same, {"device": "auto"}):
        load(config.model_copy(update=changes))
    assert len(asked) == 1
    load(config.model_copy(update={"attention": "eager"}))
    assert len(asked) == 2


def test_frozen_weights_stay_in_memory_while_a_model_uses_them_and_leave_it_with_the_last(
    saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fetch = list[str](), backbones._fetch
    monkeypatch.setattr(backbones, "_fetch", lambda source, *rest: asked.append(source) or fetch(source, *rest))
    monkeypatch.setattr(backbones, "_held", {})
    llama, qwen, mistral = (BackboneConfig(model=saved(name), device="cpu") for name in ("Llama", "Qwen2", "Mistral"))
    first, _ = load(llama, frozen=True)
    load(qwen, frozen=True)
    again, _ = load(llama, frozen=True)
    assert asked == [llama.model, qwen.model]
    assert [p.data_ptr() for p in first.parameters()] == [p.data_ptr() for p in again.parameters()]
    load(mistral, frozen=True)
    assert {name for name, *_ in backbones._held} == {llama.model, mistral.model}, "nobody uses the second"


@pytest.mark.parametrize("name", ["Llama", "Qwen2"])  # tied and untied embeddings
def test_markers_are_added_once_and_begin_at_the_mean(name: str, saved: Callable[[str], str], tmp_path: Path) -> None:
    plain, words = load(BackboneConfig(model=saved(name), device="cpu"))
    model, tokenizer = load(BackboneConfig(model=saved(name), device="cpu", markers=True))
    engine = LocalEngine(model, tokenizer)
    ids = [engine.special_id(marker) for marker in MARKERS]
    assert len(tokenizer) == len(words) + len(MARKERS)  # `<|end|>` was there
    for layer, old in ((model.get_input_embeddings(), plain.get_input_embeddings()), (model.lm_head, plain.lm_head)):
        assert torch.allclose(layer.weight[ids], old.weight[: len(words)].mean(0).expand(len(ids), -1), atol=1e-5)
        assert torch.equal(layer.weight[: len(words)], old.weight[: len(words)])
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == (name == "Llama")
    assert engine.special_id(ACT) not in engine.encode(f"a {ACT} b")
    save(model, tokenizer, tmp_path / "grown")
    again, same = load(BackboneConfig(model=str(tmp_path / "grown"), device="cpu", markers=True))
    assert len(same) == len(tokenizer) and torch.equal(again.lm_head.weight, model.lm_head.weight)


# --- adapters -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_a_model_with_adapters_acts_as_its_merged_weights_and_learns_what_it_said(name: str, saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved(name), device="cpu", lora=LORA))
    stir(model)
    assert llama.supports(model) is (name == "Llama")  # which reads adapters; other architectures run through their own forward
    asked = prompts(3, 40, 17)
    said, whole = sampled(model, tokenizer, asked), copy.deepcopy(model).merge_and_unload()
    assert not any("lora" in n for n, _ in whole.named_parameters()) and any("lora" in n for n, _ in model.named_parameters())
    for a, b in zip(said, sampled(whole, tokenizer, asked), strict=True):
        assert a.ids == b.ids and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    base, _ = load(BackboneConfig(model=saved(name), device="cpu"))
    assert not np.allclose(said[1].logprobs, learnt(base, said)[1].tolist(), atol=1e-2)
    for c, found in zip(said, learnt(model, said), strict=True):
        assert np.allclose(c.logprobs, found.tolist(), atol=1e-4)


@pytest.mark.parametrize("markers", [False, True])
def test_the_packed_forward_of_a_llama_with_adapters_has_the_gradients_of_pefts(markers: bool, saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved("Llama"), device="cpu", lora=LORA, markers=markers))
    stir(model)
    rows = [[*one, len(tokenizer) - 1] for one in prompts(20, 33)]  # the last of the markers among them
    batch = pad(rows, [[0.0, *[1.0] * (len(r) - 1)] for r in rows], [0, 1])
    found = []
    for packed in (True, False):
        if packed:
            scores = token_logprobs(model, batch)[0]
        else:
            logits = model(input_ids=batch.ids[:, :-1]).logits.log_softmax(-1)
            scores = logits.gather(-1, batch.ids[:, 1:, None])[..., 0][batch.weights[:, 1:] != 0]
        model.zero_grad()
        scores.square().sum().backward()
        found.append((scores.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad and p.grad is not None}))
    (ours, our_gradients), (theirs, their_gradients) = found
    assert llama.supports(model) and torch.allclose(ours, theirs, atol=1e-4)
    assert our_gradients.keys() == their_gradients.keys() and any("trainable_tokens" in name for name in our_gradients) == markers
    for name, gradient in their_gradients.items():
        assert torch.allclose(our_gradients[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()) + 1e-6), name


def test_adapters_that_are_not_merged_act_as_those_that_are(saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved("Llama"), device="cpu", lora=LORA))
    stir(model)
    merged = sampled(model, tokenizer, prompts(3, 40))
    monkeypatch.setattr(llama, "FUSE_BELOW", 0)
    beside = sampled(model, tokenizer, prompts(3, 40))
    assert [c.ids for c in merged] == [c.ids for c in beside]
    assert all(np.allclose(a.logprobs, b.logprobs, atol=1e-4) for a, b in zip(merged, beside, strict=True))


def test_models_with_adapters_over_one_backbone_share_its_weights_and_learn_apart(saved: Callable[[str], str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    one, tokenizer = load(BackboneConfig(model=saved("Llama"), device="cpu", lora=LORA))
    save(stir(one), tokenizer, tmp_path / "one")
    again, _ = load(BackboneConfig(model=str(tmp_path / "one"), device="cpu"))
    said = sampled(one, tokenizer, prompts(12))
    other, _ = load(
        BackboneConfig(model=saved("Llama"), device="auto", lora=LORA, markers=True, gradient_checkpointing=True, download=True)
    )
    tensors = [{p.data_ptr() for n, p in m.named_parameters() if "layers.0.mlp.up_proj.base" in n} for m in (one, again, other)]
    assert tensors[0] == tensors[1] == tensors[2] != set()
    stir(other)
    assert sampled(one, tokenizer, prompts(12))[0].logprobs == said[0].logprobs == sampled(again, tokenizer, prompts(12))[0].logprobs


@pytest.mark.parametrize("name", ["Llama", "Qwen2"])  # tied and untied embeddings
def test_what_else_is_loaded_or_merged_over_a_backbone_leaves_a_living_model_as_it_was(
    name: str, saved: Callable[[str], str], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    base, tokenizer = load(BackboneConfig(model=saved(name), device="cpu"))
    base.resize_token_embeddings(len(tokenizer))  # without spare rows, so that markers make it grow
    config = BackboneConfig(model=str(save(base, tokenizer, tmp_path / "base")), device="cpu", lora=LORA)
    marked, words = load(config.model_copy(update={"markers": True}))
    save(stir(marked), words, tmp_path / "marked")
    plain, _ = load(config)
    save(stir(plain), tokenizer, tmp_path / "plain")
    size = plain.get_input_embeddings().weight.shape[0]
    asked = [[i % size for i in prompt] for prompt in prompts(12, 20)]
    before = sampled(plain, tokenizer, asked)
    fresh, ids = load(config)[0], torch.tensor(asked[:1])
    logits = fresh(ids).logits
    grown, _ = load(BackboneConfig(model=str(tmp_path / "marked"), device="cpu"))
    assert grown.get_input_embeddings().weight.shape[0] == len(words) > size
    assert plain.get_input_embeddings().weight.shape[0] == plain.get_output_embeddings().weight.shape[0] == size
    for kind, model in (("marked", grown), ("plain", plain)):
        whole, _ = load(BackboneConfig(model=str(backbones.merge(tmp_path / kind, tmp_path / f"{kind} whole")), device="cpu"))
        assert torch.allclose(whole(ids).logits, model(ids).logits, atol=1e-4)
    assert [(c.ids, c.logprobs) for c in sampled(plain, tokenizer, asked)] == [(c.ids, c.logprobs) for c in before]
    assert torch.equal(fresh(ids).logits, logits) and torch.equal(load(config)[0](ids).logits, logits)


def test_quantised_weights_are_refused_by_name(saved: Callable[[str], str], tmp_path: Path) -> None:
    source = Path(saved("Llama"))
    settings = json.loads((source / "config.json").read_text()) | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(settings))
    for ask in (load, backbones.outline):
        with pytest.raises(ConfigError, match="is quantised"):
            ask(BackboneConfig(model=str(tmp_path), device="cpu"))


def test_the_end_token_is_trained_although_it_also_pads(saved: Callable[[str], str]) -> None:
    model, tokenizer = load(BackboneConfig(model=saved("Llama"), device="cpu"))
    end = tokenizer.pad_token_id  # as in SmolLM2, whose end of a turn is also its padding
    rows, weights = [[20, 30, 40, end], [20, 30, 41, 42, 43, end]], [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]]
    train(model, rows, weights, SFTConfig(epochs=200.0, lr=1e-2, batch_tokens=16, bf16=False))
    with torch.no_grad():
        after = [float(x[-1]) for x in token_logprobs(model, pad(rows, weights, [0, 1]))[0].split([2, 4])]
    assert min(after) > math.log(0.5)


def test_fresh_adapters_are_drawn_by_their_seed_and_leave_the_global_generator_alone(saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")

    def drawn(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(99)
        before = torch.get_rng_state()
        model, _ = load(BackboneConfig(model=saved("Llama"), device="cpu", lora=LORA), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        return [p.detach() for name, p in model.named_parameters() if "lora_A" in name]

    one, same, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("markers", [False, True])
def test_training_moves_the_adapters_alone(markers: bool, checkpointing: bool, saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(
        BackboneConfig(
            model=saved("Qwen2"), device="cpu", dtype="bfloat16", lora=LORA, markers=markers, gradient_checkpointing=checkpointing
        )
    )
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    before = snapshot(model)
    losses: list[float] = []
    rows = prompts(9, 14)
    if markers:
        rows[0] += [tokenizer.convert_tokens_to_ids(ACT)] * 2
    config = SFTConfig(epochs=12.0, lr=1e-2, batch_tokens=32, bf16=False)
    train(model, rows, [[1.0] * len(r) for r in rows], config, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    assert losses[-1] < losses[0]
    learner = Learner(model, grpo.make(kl_coef=0.1), LearnerConfig(minibatches=1, lr=1e-2, bf16=False))
    between = snapshot(model)
    metrics = learner.update([group(model, tokenizer)])
    assert metrics["logprob_mismatch"] < 0.1 and metrics["kl"] == pytest.approx(0.0, abs=1e-6)  # the first step is taken at the reference
    after = snapshot(model)
    moved = {n for n in before if not torch.equal(before[n], between[n]) or not torch.equal(between[n], after[n])}
    assert moved == {n for n, p in model.named_parameters() if p.requires_grad}
    again = learner.update([group(model, tokenizer)])
    assert again["kl"] > 0
    assert all(torch.equal(p, snapshot(model)[n]) for n, p in after.items() if n not in moved)


def test_the_reference_of_adapters_is_the_policy_as_it_was_even_when_it_had_been_trained(saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved("Qwen2"), device="cpu", lora=LORA))
    stir(model)
    said = sampled(model, tokenizer, prompts(12, 20))
    was = [x.detach() for x in learnt(model, said)]
    learner = Learner(model, grpo.make(kl_coef=0.1), LearnerConfig(bf16=False))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.mul_(1.5)
    now = snapshot(model)
    assert learner.reference is not None
    with learner.reference.acting() as reference:
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(was, learnt(reference, said), strict=True))
    assert all(torch.equal(p, now[n]) for n, p in model.named_parameters())
    assert not torch.allclose(was[0], learnt(model, said)[0], atol=1e-3)


def test_a_learner_of_adapters_goes_on_as_if_never_stopped_and_keeps_nothing_else(saved: Callable[[str], str]) -> None:
    pytest.importorskip("peft")
    config = BackboneConfig(model=saved("Qwen2"), device="cpu", lora=LORA)

    def learner(seed: int) -> Learner:
        torch.manual_seed(seed)  # of fresh adapters
        return Learner(load(config)[0], grpo.make(), LearnerConfig(minibatches=2, lr=1e-2, bf16=False))

    whole, half = learner(0), learner(0)
    tokenizer = load(config)[1]
    groups = [group(whole.model, tokenizer)]
    whole.update(groups)
    half.update(groups)
    state = half.state_dict()
    assert state["model"] and all("lora" in name for name in state["model"])
    resumed = learner(5)
    resumed.load_state_dict(state)
    assert whole.update(groups) == resumed.update(groups)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    other = Learner(
        load(config.model_copy(update={"lora": LoraConfig(rank=2)}))[0], grpo.make(), LearnerConfig(minibatches=2, lr=1e-2, bf16=False)
    )
    with pytest.raises(UsageError, match="checkpoint is of other adapters"):
        other.load_state_dict(state)


@pytest.mark.parametrize(("name", "markers"), [("Llama", True), ("Qwen2", True), ("Qwen2", False)])
def test_saved_adapters_come_back_on_their_base_and_go_on_learning(
    name: str, markers: bool, saved: Callable[[str], str], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    model, tokenizer = load(BackboneConfig(model=saved(name), device="cpu", lora=LORA, markers=markers))
    stir(model)
    for _ in range(2):  # the second replaces the first
        save(model, tokenizer, tmp_path / "adapter")
    assert [p.name for p in tmp_path.iterdir()] == ["adapter"]
    wider = str(tmp_path / "wider")
    settings = getattr(transformers, f"{name}Config")(**(SHAPE | MORE[name] | {"hidden_size": 64}))
    getattr(transformers, f"{name}ForCausalLM")(settings).save_pretrained(wider)
    tokenizer.save_pretrained(wider)
    again, words = load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu"))
    assert len(words) == len(tokenizer)
    ids = torch.tensor(prompts(30))
    ids[0, 3] = len(words) - 1  # a marker, where there are any
    assert torch.allclose(model(ids).logits, again(ids).logits, atol=1e-5)
    path = tmp_path / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"lora_dropout": 0.5}))  # as others' adapters may have
    again, _ = load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu"))
    again.train()
    assert torch.allclose(model(ids).logits, again(ids).logits, atol=1e-5)
    trainable = [n for n, p in again.named_parameters() if p.requires_grad]
    assert trainable == [n for n, p in model.named_parameters() if p.requires_grad]
    with pytest.raises(ConfigError, match="holds adapters already"):
        load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu", lora=LORA))
    path.write_text(json.dumps(settings | {"base_model_name_or_path": wider}))
    with pytest.raises(UsageError, match="do not fit .*wider.*base_model_name_or_path"):
        load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu"))
    path.write_text(json.dumps(settings | {"base_model_name_or_path": None}))
    with pytest.raises(UsageError, match="does not say which model"):
        load(BackboneConfig(model=str(tmp_path / "adapter"), device="cpu"))


@pytest.mark.parametrize("name", ["mps", "meta", "xla", "gpu", "cuda:99"])
def test_a_device_that_torch_cannot_use_is_named(name: str):
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is one here")
    with pytest.raises(UsageError, match=name):
        backbones.device(name)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma3Text"])
def test_an_excerpt_has_the_shape_of_the_model_in_fewer_layers_and_needs_no_weights(
    name: str, saved: Callable[[str], str], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    for file in Path(saved(name)).iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = BackboneConfig(model=str(tmp_path), device="cpu", lora=LORA, markers=True)
    (one, tokenizer), (both, _) = (backbones.excerpt(config, layers) for layers in (1, 2))
    loaded, _ = load(BackboneConfig(model=saved(name), device="cpu", lora=LORA, markers=True))

    def shapes(model: Any) -> dict[str, tuple[torch.Size, bool, torch.dtype]]:
        return {name: (p.shape, p.requires_grad, p.dtype) for name, p in model.named_parameters()}

    assert shapes(both) == shapes(loaded)
    assert shapes(one) == {name: shape for name, shape in shapes(loaded).items() if ".layers.1." not in name}
    assert len(sampled(one, tokenizer, prompts(5))[0].ids) == 10
