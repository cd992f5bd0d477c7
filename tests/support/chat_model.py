"""A model that could be an instruct model: a chat template over bytes, and random weights of a known architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CHATML = """{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def bytes_tokenizer() -> Any:
    """Ids 0 to 255 are bytes, as in ScriptedLLM, and 256 is the end of a reply."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    vocabulary = {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    words = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"])
    words.chat_template = CHATML
    return words


def save_instruct_model(path: Path, *, width: int = 32) -> Path:
    """A checkpoint directory as a hub would hold it: a small Qwen2 that knows nothing, and its chat template."""
    words = bytes_tokenizer()
    shape = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = Qwen2Config(
        vocab_size=len(words),
        **shape,
        max_position_embeddings=4096,
        initializer_range=width**-0.5,
        tie_word_embeddings=True,
        eos_token_id=words.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(path)
    words.save_pretrained(path)
    return path
