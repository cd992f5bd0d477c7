"""The engine against llama.cpp's own server: ids and log-probabilities of the weights that it was started with, and what it refuses.

Run by `make test-peers`, in an environment that has xllamacpp and gguf. The model file is written here, with random weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import bytes_tokenizer
from real_servers import llama_cpp
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.engines import build_engine
from dreamgym.engines.server.weight_sync import publish_weights, score
from dreamgym.errors import ServerError
from dreamgym.llm import tiny
from dreamgym.types import Request, Sampling

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Any]]:
    """(address, module, tokenizer) of a small Llama over bytes."""
    gguf = pytest.importorskip("gguf", reason="it has an environment of its own: make test-peers PEERS=llama-cpp")
    pytest.importorskip("xllamacpp", reason="it has an environment of its own: make test-peers PEERS=llama-cpp")
    tokenizer = bytes_tokenizer()
    torch.manual_seed(0)
    module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            initializer_range=0.125,
        )
    ).eval()
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write(gguf, module, tokenizer, path)
    for url in llama_cpp(path, path.with_suffix(".txt")):
        yield url, module, tokenizer


def write(gguf: Any, module: Any, tokenizer: Any, path: Path) -> None:
    """The model in float32, with its tokens in the order of their ids."""
    config, weights = module.config, {name: tensor.float().numpy() for name, tensor in module.state_dict().items()}
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_rope_dimension_count(config.head_dim)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(config.vocab_size)
    special = set(tokenizer.all_special_ids)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    out.add_token_types([3 if i in special else 1 for i in range(len(tokenizer))])
    out.add_token_merges(["Ā Ā"])  # of two zero bytes: the list must not be empty
    out.add_eos_token_id(tokenizer.eos_token_id)
    out.add_add_bos_token(False)
    out.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    out.add_tensor("output.weight", weights["lm_head.weight"])
    out.add_tensor("output_norm.weight", weights["model.norm.weight"])
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for i in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            out.add_tensor(f"blk.{i}.{ours}.weight", weights[f"model.layers.{i}.{theirs}.weight"])
        for theirs, ours in (("q", "attn_q"), ("k", "attn_k")):  # llama.cpp rotates neighbouring pairs, transformers the halves of a head
            weight = weights[f"model.layers.{i}.self_attn.{theirs}_proj.weight"]
            heads, (rows, width) = config.num_attention_heads, weight.shape
            turned = weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width).copy()
            out.add_tensor(f"blk.{i}.{ours}.weight", turned)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def test_another_tokenizer_is_refused(served: tuple[str, Any, Any]) -> None:
    other = tiny.train_tokenizer(["red mug under 12.50"] * 3, vocab_size=300)
    with (
        closing(build_engine(of(served[0]), tokenizer=other)) as engine,
        pytest.raises(ServerError, match="The tokenizer of .* is not ours"),
    ):
        engine.doctor()


def of(url: str, **more: Any) -> dict[str, Any]:
    return {"name": "server", "base_url": url, "model": "model", "dialect": "llama_cpp", "concurrency": 2} | more


def test_ids_and_log_probabilities_are_those_of_the_module(served: tuple[str, Any, Any]) -> None:
    url, module, tokenizer = served
    requests = [Request([40 + i, 50, 60], Sampling(8), (0, i)) for i in range(8)]
    with closing(build_engine(of(url, training=False), model=module, tokenizer=tokenizer)) as engine:
        found = engine.generate(requests)
        again = engine.generate(requests[:1])
    gaps = [abs(a - b) for c in found for a, b in zip(c.logprobs, score(module, c), strict=True) if a == a]
    assert len(gaps) > 20 and max(gaps) < 2e-3  # its attention cache is in float16
    assert again[0].ids == found[0].ids, "a seed names a stream there too"


def test_it_cannot_load_weights_so_it_must_serve_them_already(served: tuple[str, Any, Any], tmp_path: Path) -> None:
    url, module, tokenizer = served
    with closing(build_engine(of(url, training=False), model=module, tokenizer=tokenizer)) as engine:
        publish_weights(engine, tmp_path, 3, lora=False, scorer=functools.partial(score, module))
        assert engine.version == 3
        other = LlamaForCausalLM(module.config).eval()
        with pytest.raises(ServerError, match="cannot load weights as it runs"):
            publish_weights(engine, tmp_path, 4, lora=False, scorer=functools.partial(score, other))
        assert engine.version == 3
