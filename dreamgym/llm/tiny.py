"""A small Llama from scratch: its tokenizer, its weights, and its checkpoint directory in the ordinary Hugging Face form.

The tokenizer is byte-level BPE made for copying: a piece is never merged with its neighbours. Pieces are a word with the digits that
follow it (`b017`), up to three digits, a punctuation mark, a newline, and the TextRules' token patterns (`[buy now]`, `$23`). Frequent
pieces become one token, rare ones several. A word carries its leading space, so that it is the same token in every position:

    search[red mug]     ->  ␣search  [  ␣red  ␣mug  ]
    [b017] 1250 red     ->  [  ␣b017  ]  ␣  125  0  ␣red        with token patterns:  [␣b017]  ␣  125  0  ␣red

The spaces that make this so after `[`, `(`, a newline, a hyphen or slash inside a word, and at the beginning of the text are put in
by the normalizer and taken out by the decoder. `decode(encode(text)) == text` holds for every text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dreamgym.errors import ConfigError, UsageError, nearest
from dreamgym.llm.sizes import MAX_POSITIONS, shape_of
from dreamgym.runs import atomic_directory
from dreamgym.runs.files import without_lone_surrogates

PAD, END = "<|pad|>", "<|end|>"

_JOINTS = (
    (r"\[", "["),
    (r"\(", "("),
    (r"\n", "\n"),
    (r"(?<=\p{L})-", "-"),
    (r"(?<=\p{L})/", "/"),
    (r"(?<=[ \n])'", "'"),  # opening quotes, as around names, but not those of JSON
    (r"(?<=\p{L} )\"", '"'),
)  # what a word may follow without a space
_TAKES_SPACE = r"[\p{L} ]|\[\p{N}"  # what gets a space before it: a word, another space, the number of an element
# A piece has a bound: merging takes the square of its length, and so does a pattern that looks for its end to the end of the text.
_PIECES = r" ?[\p{L}\p{M}]{1,64}\p{N}{1,64}| ?[\p{L}\p{M}]{1,64}|\p{N}{1,3}|\s(?![^\s\p{L}\p{M}\p{N}])| ?[^\s\p{L}\p{M}\p{N}]|\s"
_ADDED_SPACE = r"(?:\A|(?<=[\[(\n])|(?<=\p{L}[-/])|(?<=[ \n]')|(?<=\p{L} \")) "


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 2048, special: Sequence[str] = (), token_patterns: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Learn the vocabulary from `texts`. `special` names are single ids beside `<|pad|>` (0) and `<|end|>` (1).

    `token_patterns` are regular expressions of what is never cut before merging, such as `[buy now]`: where it is frequent it becomes
    one token. They bound their repetitions (`{1,200}`, not `+`): without the end of a match, a long text would take the square of its
    length. What a small model must copy is easiest to copy as one token: an induction head looks one token back, and the token before
    every option value would otherwise be the same bracket.

    Text never becomes a special id (`split_special_tokens`): only `special_id` gives one.
    """
    markers = list(dict.fromkeys([PAD, END, *special]))
    if vocab_size < 256 + len(markers):
        raise ConfigError(
            f"vocab_size={vocab_size} cannot hold 256 bytes and {len(markers)} special tokens. Use at least {256 + len(markers)}."
        )
    core = Tokenizer(models.BPE())
    spaced = [normalizers.Replace(Regex(rf"{mark}(?={_TAKES_SPACE})"), text + " ") for mark, text in _JOINTS]
    unspaced = normalizers.Replace(Regex(rf"\A (?!{_TAKES_SPACE})"), "")  # Prepend's space stays before a word only
    core.normalizer = normalizers.Sequence([normalizers.Prepend(" "), unspaced, *spaced])
    prompt_parts = Regex("|".join([*map(_spaced, token_patterns), _PIECES]))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(prompt_parts, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex(_ADDED_SPACE), "")])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=markers, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(map(without_lone_surrogates, texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=markers[2:],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def _spaced(atom: str) -> str:
    """A token pattern as it reads after the normalizer has put a space behind an opening bracket."""
    return atom.replace(r"\[[^", r"\[ ?[^")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of `text`, none of them special: a marker written in the text stays text. Half characters become question marks."""
    return tokenizer.encode(without_lone_surrogates(text), add_special_tokens=False, split_special_tokens=True)


def special_id(tokenizer: Any, name: str) -> int:
    """The id of a special token such as `<|end|>`."""
    known = tokenizer.get_added_vocab()
    if name not in known:
        raise UsageError(f"The tokenizer has no special token '{name}'.{nearest(name, known)} Known: {', '.join(sorted(known))}.")
    return known[name]


def build(tokenizer: Any, size: str = "1m", *, seed: int = 0, max_positions: int = MAX_POSITIONS) -> LlamaForCausalLM:
    """A Llama of the named size with fresh weights: "1m", "4m", "15m" or "60m" parameters, roughly. Same seed, same weights."""
    shape = shape_of(size)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape["width"],
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["width"] // shape["heads"],
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        # transformers' 0.02 suits widths of thousands; at 128 it starts attention so flat that copying is learnt much later.
        initializer_range=shape["width"] ** -0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save(model: Any, tokenizer: Any, path: Path | str) -> Path:
    """Write an ordinary checkpoint directory. It appears whole or not at all; one that was there before is replaced."""

    def write(fresh: Path) -> None:
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)

    return atomic_directory.replace(path, write)


def load(path: Path | str, *, dtype: Any = None) -> tuple[Any, Any]:
    """(model, tokenizer) of a local checkpoint directory, through transformers' Auto classes. `dtype` None keeps the saved one."""
    path = atomic_directory.restore_interrupted(path)
    if not (path / "config.json").is_file():
        raise UsageError(
            f"No checkpoint at '{path}': expected a directory with config.json. Check the path, or train a model and save it there first."
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype or "auto", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # a boundary: safetensors, tokenizers and json each raise their own kinds
        raise UsageError(
            f"Cannot read the checkpoint at '{path}': {error} Save it again, restore it from a copy, or point to another checkpoint."
        ) from error
    return model, tokenizer
