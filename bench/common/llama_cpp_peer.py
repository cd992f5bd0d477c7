"""llama.cpp through the C interface of llama-cpp-python: the same weights as a GGUF file, KV caches kept, batched decoding."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 2048  # tokens in one call


class LlamaCpp:
    """Greedy decoding of many sequences in one context. ImportError where llama-cpp-python or gguf is not installed."""

    def __init__(self, model: Any, *, sequences: int, context: int = 1280) -> None:
        import llama_cpp

        self.lib, self.vocabulary = llama_cpp, model.config.vocab_size
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(model, path)
            settings = llama_cpp.llama_model_default_params()
            settings.use_mmap = False
            self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 2 * sequences * context, BATCH, 512
        options.n_seq_max = 2 * sequences
        options.n_threads = options.n_threads_batch = 2
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.cached: dict[int, list[int]] = {}

    def clear(self) -> None:
        """Forget every sequence."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        self.cached = {}

    def answer(self, side: str, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """Extend the cache of each sequence by the new part of its prompt, then decode all as one batch, each to its length."""
        # Neighbours in number: llama.cpp decodes sequences side by side only where their numbers follow each other.
        names = [i + (side == "model") * len(prompts) for i in range(len(prompts))]
        feed: list[tuple[int, int, int, bool]] = []
        last: dict[int, int] = {}
        for name, prompt in zip(names, prompts, strict=True):
            past = len(self.cached.get(name, []))
            feed += [(token, past + k, name, past + k == len(prompt) - 1) for k, token in enumerate(prompt[past:])]
        for start in range(0, len(feed), BATCH):
            last |= self._decode(feed[start : start + BATCH])
        sampled: dict[int, list[int]] = {name: [last[name]] for name in names}
        needed = dict(zip(names, lengths, strict=True))
        ends = {name: len(prompt) for name, prompt in zip(names, prompts, strict=True)}
        while running := [name for name in names if len(sampled[name]) < needed[name]]:
            found = self._decode([(sampled[name][-1], ends[name] + len(sampled[name]) - 1, name, True) for name in running])
            for name in running:
                sampled[name].append(found[name])
        for name, prompt in zip(names, prompts, strict=True):
            self.cached[name] = [*prompt, *sampled[name][:-1]]
        return [sampled[name] for name in names]

    def _decode(self, feed: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Feed (token, position, sequence, whether logits are needed); the most likely next token of the sequences that need it."""
        batch = self.batch
        batch.n_tokens = len(feed)
        for k, (token, position, name, logits) in enumerate(feed):
            batch.token[k], batch.pos[k], batch.n_seq_id[k], batch.seq_id[k][0], batch.logits[k] = token, position, 1, name, logits
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed: the context is too small for the workload")
        found = {}
        for k, (_, _, name, logits) in enumerate(feed):
            if logits:
                row = self.lib.llama_get_logits_ith(self.context, k)
                found[name] = int(np.ctypeslib.as_array(row, shape=(self.vocabulary,)).argmax())
        return found


def write_gguf(model: Any, path: Path) -> None:
    """The weights of a transformers Llama as GGUF in float32, without a tokenizer: prompts are ids."""
    import gguf

    config, weights = model.config, {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(config.head_dim)
    out.add_value_length(config.head_dim)
    out.add_rope_dimension_count(config.head_dim)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("no_vocab")
    out.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    out.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        for name, ours in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.v_proj", "attn_v"),
                           ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                           ("mlp.down_proj", "ffn_down")):  # fmt: skip
            out.add_tensor(f"blk.{i}.{ours}.weight", weights[f"{layer}.{name}.weight"])
        for name, ours, n in (("self_attn.q_proj", "attn_q", heads), ("self_attn.k_proj", "attn_k", kv_heads)):
            out.add_tensor(f"blk.{i}.{ours}.weight", _interleaved(weights[f"{layer}.{name}.weight"], n))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs, transformers the two halves of a head: reorder the rows of q and k."""
    rows, width = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width))
