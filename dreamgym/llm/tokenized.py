"""What every engine over a transformers tokenizer does with text, written once so that engines cannot disagree about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym.runs.files import without_lone_surrogates


class Tokenized:
    """`encode`, `decode` and `special_id` of `protocols.LLM` on top of `self.tokenizer`."""

    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, none of them special: a marker such as `<|end|>` inside the text stays text. Half characters become question
        marks."""
        ids = self.tokenizer.encode(without_lone_surrogates(text), add_special_tokens=False, split_special_tokens=True)
        forbidden = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        return [i for i in ids if i not in forbidden]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens leave none."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def special_id(self, name: str) -> int:
        """The id of a special token such as `<|end|>`."""
        from dreamgym.llm.tiny import special_id

        return special_id(self.tokenizer, name)
