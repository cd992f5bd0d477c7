"""Claims as a pretrained model reads them: their hidden states, and a head that is fitted to these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_model import bytes_tokenizer, save_instruct_model
from shop_claims import LOGS, OTHERS, SHOP
from transformers import AutoModelForCausalLM

from dreamgym.engines.local import causal_lm
from dreamgym.errors import UsageError
from dreamgym.experience.learned_verifier import hidden_states
from dreamgym.experience.learned_verifier.calibration import CalibrationConfig
from dreamgym.experience.learned_verifier.cases import logged_claims, scored_episodes
from dreamgym.experience.learned_verifier.features import ALWAYS, HASHED, rows_of
from dreamgym.experience.learned_verifier.head import LabelledClaim, fit
from dreamgym.experience.learned_verifier.hidden_states import QUESTION, reader, text_of
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier, fit_verifier, prepare_once
from dreamgym.experience.verifiers import VerifierInputs, learned
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.types import Observation, Transition

CLAIMS = logged_claims(scored_episodes(OTHERS)[:12])
WIDTH = 32


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> BackboneConfig:
    return BackboneConfig(model=str(save_instruct_model(tmp_path_factory.mktemp("hub") / "blank", width=WIDTH)), device="cpu")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts that models read from here on; a check of a model that is loaded reads four tokens."""
    found, body = list[int](), causal_lm.body

    def counted(model: Any) -> Callable[..., Any]:
        def read(input_ids: torch.Tensor, **how: Any) -> Any:
            if input_ids.shape[1] > 4:
                found.append(input_ids.shape[1])
            return body(model)(input_ids=input_ids, **how)

        return read

    monkeypatch.setattr(causal_lm, "body", counted)
    return found


def hidden(backbone: BackboneConfig, claim: LabelledClaim) -> np.ndarray:
    """What transformers says of the text of a claim."""
    model = AutoModelForCausalLM.from_pretrained(backbone.model).eval()
    ids = torch.tensor([bytes_tokenizer().encode(text_of(claim.instruction, claim.steps))])
    with torch.no_grad():
        return np.asarray(model(ids, output_hidden_states=True).hidden_states[-1][0].mean(0))


def test_a_claim_is_the_mean_hidden_state_of_its_text_whatever_it_is_read_with(backbone: BackboneConfig):
    read = reader("backbone", backbone, {})
    rows, alone = read(CLAIMS), read(CLAIMS[3:4])
    assert rows.n == len(CLAIMS) and len(rows.values) == len(CLAIMS) * (WIDTH + 1)
    own = rows.values[rows.rows == 3]
    assert np.array_equal(own, alone.values)
    assert np.allclose(own[rows.columns[rows.rows == 3] >= HASHED], hidden(backbone, CLAIMS[3]), atol=1e-4)
    assert set(rows.columns) == {ALWAYS, *range(HASHED, HASHED + WIDTH)}
    assert read([]).n == 0


def test_both_are_the_hashed_features_beside_the_hidden_states(backbone: BackboneConfig):
    hashed, states, both = rows_of(CLAIMS), reader("backbone", backbone, {})(CLAIMS), reader("both", backbone, {})(CLAIMS)
    assert (np.diff(both.rows) >= 0).all()
    for part, chosen in ((hashed, both.columns < HASHED), (states, both.columns >= HASHED)):
        kept = slice(None) if part is hashed else part.columns >= HASHED
        for name in ("rows", "columns", "values"):
            assert np.array_equal(getattr(both, name)[chosen], getattr(part, name)[kept])


def test_a_text_has_instruction_steps_and_question_and_long_observations_lose_their_middle():
    steps = [
        Transition(Observation("start"), f"go {i}", Observation(f"start\nroom {i} {'x' * 1000} end {i}"), 0.0, False) for i in range(20)
    ]
    text = text_of("leave the house", steps)
    assert text.startswith("Task: leave the house\nstart\n> go 8\nroom 8") and text.endswith(f"end 19\n{QUESTION}")
    assert "room 3" not in text and " ... " in text and len(text) < 7000


def test_a_text_beyond_the_models_context_keeps_its_instruction_and_its_end(
    backbone: BackboneConfig, passes: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hidden_states, "TOKENS", 100)
    reader("backbone", backbone, {})(CLAIMS[:1])
    assert passes == [100]


def test_weights_are_those_that_are_in_memory_already(backbone: BackboneConfig, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    asked, fetch = list[str](), backbones._fetch
    monkeypatch.setattr(backbones, "_fetch", lambda source, *rest: asked.append(source) or fetch(source, *rest))
    monkeypatch.setattr(backbones, "_held", {})
    dreams, _ = backbones.load(backbone.model_copy(update={"lora": LoraConfig(rank=2), "markers": True}))
    reader("backbone", backbone.model_copy(update={"lora": LoraConfig(rank=2), "markers": True}), {})(CLAIMS[:1])
    assert asked == [backbone.model] and dreams


def test_scores_of_left_out_claims_are_those_of_the_fitted_weights_on_hidden_states_as_they_are(backbone: BackboneConfig):
    rng = np.random.default_rng(0)

    def claim(i: int) -> LabelledClaim:
        done = bool(i % 2)
        step = Transition(Observation("a page"), "send", Observation("sent" if done else "not sent"), 1.0, True)
        return LabelledClaim(f"send parcel {rng.integers(10**6)}", (step,), float(done), fold=i // 2 % 3)

    seen, others = ([claim(i) for i in range(40)] for _ in range(2))
    for kind in ("backbone", "both"):
        read = reader(kind, backbone, {})
        head, scores = fit(seen, read(seen), members=3)
        logits = head.logits(read(seen))
        assert np.allclose(scores, [logits[one.fold, i] for i, one in enumerate(seen)], atol=1e-6)
        right = [(score > 0) == bool(one.label) for score, one in zip(head.logits(read(others)).mean(0), others, strict=True)]
        assert np.mean(right) > 0.8


def test_logs_are_read_once_and_a_saved_verifier_gives_the_same_verdicts(backbone: BackboneConfig, passes: list[int], tmp_path: Path):
    logs, kept = LOGS[:60], dict[Any, Any]()
    inputs = VerifierInputs(SHOP.rules, logs, checkpoint=tmp_path / "verifier", cache=kept, backbone=backbone)
    assert learned.fit(inputs, features="both")["n"] > 0
    n = len(passes)
    verifier = fit_verifier(prepare_once(kept, logs, SHOP.rules, seed=0, read=reader("both", backbone, kept)), CalibrationConfig())
    loaded = learned.make(inputs, features="both")
    assert len(passes) == n
    asked = [(one.instruction, one.steps) for one in CLAIMS]
    assert loaded.judge(asked) == verifier.judge(asked)
    assert isinstance(loaded, LearnedVerifier) and np.abs(loaded.head.weights[:, HASHED : HASHED + WIDTH]).max() > 0


def test_without_a_pretrained_model_the_setting_is_named_with_the_way_out(backbone: BackboneConfig, tmp_path: Path):
    for features in ("backbone", "both"):
        with pytest.raises(UsageError, match=rf"experience\.verifier\.features = '{features}'.*experience\.backbone.*leave out `features`"):
            learned.check(None, features=features)
        with pytest.raises(UsageError, match="leave out `features`"):
            learned.fit(VerifierInputs(SHOP.rules, LOGS, checkpoint=tmp_path), features=features)
        learned.check(backbone, features=features)
        learned.check(None, features=features, backbone=backbone.model_dump())
    learned.check(None)
