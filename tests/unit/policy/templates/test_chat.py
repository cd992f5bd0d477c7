"""The agent of instruct models: conversations that only grow, replies that stay as sampled, and what is read out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chat_model import CHATML, bytes_tokenizer
from hypothesis import example, given
from hypothesis import strategies as st
from rollouts import act

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.scripted import END_ID, ScriptedLLM
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import tiny
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.templates.chat import Chat
from dreamgym.rollout import rollout
from dreamgym.train.batch import pad, sequences_of
from dreamgym.train.forward import token_logprobs
from dreamgym.types import Observation, Task, View

INSTRUCTIONS = "Say what you do in a line such as Action: left."
SUITE = corridor.make(length=4)


WORDS = bytes_tokenizer()
assert WORDS.convert_tokens_to_ids("<|im_end|>") == END_ID
TEMPLATE = Chat(ChatFormat(WORDS), "corridor", INSTRUCTIONS)


def task(start: int, target: int) -> Task:
    goal = corridor.Goal(start, target)
    return Task(f"{start}-{target}", goal.instruction, "corridor", goal={"start": start, "target": target, "key": 0})


def walker(prompt: str) -> str:
    """Goes right until the room that the task names, and opens its door, thinking aloud."""
    goal = corridor.read_goal(prompt[prompt.index("Task: ") + 6 :].split("\n")[0])
    assert goal is not None
    room = int(prompt.rsplit("room ", 1)[1].split(" of")[0])
    return f"I am in {room}. Action: jump? No.\nAction: {'open' if room == goal.target else 'right'}"


def agent(llm: Any, template: Chat = TEMPLATE, **more: Any) -> Agent:
    return Agent(llm, template, SUITE.rules, **more)


def walk(tasks: list[Task], *, answer: Any = walker, **more: Any) -> tuple[Any, ScriptedLLM]:
    llm = ScriptedLLM(answer)
    return rollout(agent(llm, **more), EnvPool(SUITE.env, SUITE.rules), tasks, seed=5, max_steps=6), llm


def test_an_episode_is_one_conversation_in_the_template_of_the_model() -> None:
    episodes, _ = walk([task(1, 2), task(1, 3)])
    assert [e.success for e in episodes] == [True, True]
    assert [t.action for t in episodes[1].transitions] == ["right", "right", "open"]
    (row,) = sequences_of(episodes[1], 0)
    chat = [{"role": "system", "content": f"You are an agent in the environment 'corridor'.\n{INSTRUCTIONS}"}]
    for i, turn in enumerate(episodes[1].turns):
        state = turn.transition.state.text
        chat.append({"role": "user", "content": state if i else f"Task: {episodes[1].task.instruction}\n\n{state}"})
        assert turn.completion is not None
        prompt = WORDS.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert list(turn.completion.prompt_ids) == WORDS.encode(prompt, add_special_tokens=False)
        chat.append({"role": "assistant", "content": WORDS.decode(turn.completion.ids[:-1])})
    trained = [i for i, m in zip(row.ids, row.mask, strict=True) if m]
    assert trained == [i for t in episodes[1].turns if t.completion for i in t.completion.ids]
    assert trained.count(END_ID) == 3  # the end of a reply is trained with it


@pytest.mark.parametrize(("window", "rows", "shown"), [(0, 4, 0), (1, 3, 1), (2, 2, 2), (3, 1, 3), (None, 1, 3)])
def test_a_window_shows_the_last_turns_and_opens_new_rows(window: int | None, rows: int, shown: int) -> None:
    (episode,), llm = walk([task(1, 4)], window=window)
    assert episode.success and len(episode.turns) == 4
    assert len(sequences_of(episode, 0)) == rows
    last = llm.prompts[-1]
    assert last.count("I am in ") == shown and last.count(INSTRUCTIONS) == last.count("Task: ") == 1
    assert all(f"room {room} of 4" in last for room in range(4 - shown, 5)) and f"room {3 - shown} of 4" not in last
    trained = [i for row in sequences_of(episode, 0) for i, m in zip(row.ids, row.mask, strict=True) if m]
    assert trained == [i for t in episode.turns if t.completion for i in t.completion.ids]  # each reply once, in whatever rows


def test_a_reply_that_was_cut_short_is_ended_for_the_next_turn_and_the_end_is_not_trained() -> None:
    (episode,), _ = walk([task(1, 2)], answer=lambda _: "right " * 9, max_reply_tokens=5)
    first, second = episode.turns[:2]
    assert first.completion is not None and second.completion is not None
    assert first.completion.finish_reason == "length" and first.transition.action == "right"
    (row,) = sequences_of(episode, 0)
    assert second.completion.prompt_ids[len(first.completion.prompt_ids) + 5] == END_ID and END_ID not in first.completion.ids
    assert END_ID not in [i for i, m in zip(row.ids, row.mask, strict=True) if m]


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: search[red mug]", "search[red mug]"),
        ("I could say Action: left.\nBut\naction:  right \nbecause", "right"),
        ("<action> open\n</action> Action: left", "open"),
        ("<action>left</action> no, <action>right</action>", "right"),
        ("<think>Action: left</think>\n\n open ", "open"),
        ("<think>\nhm</think>Action: take", "take"),
        ("<think>I could go\nAction: left", ""),
        ("<think>hm</think>Action: take <think>Action: left", "take"),
        (" right\n", "right"),
        ("**Action:** left", "left"),
        ("I think.\n- __action__: left\n", "left"),
        ("**Action:**\nclick[a]\nas I see", "click[a]"),
        ("1. `Action: left", "left"),
        ("I go on. Action: right", "right"),
        ("Action: search[call to action: buy]", "search[call to action: buy]"),
        ("Action: say[Look. Action: now]", "say[Look. Action: now]"),
        ("search[call to action: buy]", "search[call to action: buy]"),
        ("Action:", ""),
        ("", ""),
    ],
)
def test_what_is_read_out_of_a_reply(reply: str, action: str) -> None:
    assert TEMPLATE.action_of(reply) == action


PIECES = ["action:", "Action: ", "*", ". ", "\n", "\r", "\u2028", "<action>", "</ACTION>", "<think>", "</think>", "<|im_end|>", "buy[", "é"]
ACTIONS = (st.text() | st.lists(st.sampled_from(PIECES)).map("".join)).map(str.strip).filter(bool)


@given(ACTIONS)
@example("search[call to action: buy]")
@example("type[first line\nsecond line]")
@example("type[a\nAction: b]")
@example("note[<action>x</action>]")
def test_a_demonstrated_action_is_read_back_or_refused(action: str) -> None:
    try:
        ids = TEMPLATE.reply(action)
    except UsageError as error:
        assert f"The action {action!r} cannot be shown" in str(error)
        assert any(tag in action.lower() for tag in ("<action>", "</action>", "<think>", "</think>")), "nothing else is refused"
    else:
        assert TEMPLATE.action_of(WORDS.decode(ids[:-1], skip_special_tokens=True), ids) == action and ids[-1] == END_ID


def test_a_demonstration_is_one_line_unless_a_line_cannot_hold_the_action() -> None:
    written = [WORDS.decode(TEMPLATE.reply(action)) for action in ("click[action: buy]", "type[a\nb]")]
    assert written == ["Action: click[action: buy]<|im_end|>", "<action>type[a\nb]</action><|im_end|>"]
    with pytest.raises(UsageError, match=r"'type\[a <think> b\]' cannot be shown .*'type\[a' would be read\. Leave its episode out"):
        TEMPLATE.reply("type[a <think> b]")


@pytest.mark.parametrize("special", [False, True])
def test_where_the_prompt_opens_the_thinking_only_what_follows_its_end_is_read_and_demonstrations_close_it(special: bool) -> None:
    words = bytes_tokenizer()
    words.chat_template = CHATML.replace("<|im_start|>assistant\n' }}", "<|im_start|>assistant\n<think>\n' }}")
    if special:
        words.add_tokens(["</think>"], special_tokens=True)
    template = Chat(ChatFormat(words), "corridor", INSTRUCTIONS)

    def read(reply: str) -> str:
        ids = words.encode(reply, add_special_tokens=False)
        return template.action_of(words.decode(ids, skip_special_tokens=True), ids)

    assert read("I could go\nAction: left") == "" and read("not Action: left</think>\n\nAction: open") == "open"
    shown = words.decode([*template.opening("go", "room 1"), *template.reply("open")])
    assert shown.endswith("<think>\n</think>\n\nAction: open<|im_end|>")
    assert read("</think>\n\nAction: open") == "open"


def test_actions_are_in_the_words_of_the_environment_and_states_in_those_of_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(SUITE.rules), "view", lambda self, observation: View("line [1]", {"1": "b835"}))
    llm = ScriptedLLM(lambda prompt: "Action: click[1]")
    policy = agent(llm)
    talks = policy.begin([task(1, 2)], name="x")
    said = act(policy, talks[0], Observation("b835 and all"))
    assert said.text == "click[b835]" and "line [1]" in llm.prompts[0] and "b835" not in llm.prompts[0]


def test_a_window_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="window=-1"):
        agent(ScriptedLLM(walker), window=-1)


def test_a_demonstration_is_what_the_agent_would_have_written() -> None:
    (episode,), _ = walk([task(1, 3)], answer=lambda prompt: "Action: " + walker(prompt).rpartition(": ")[2])
    (row,) = sequences_of(episode, 0)
    ((ids, weights),) = demonstrations(episode, TEMPLATE, SUITE.rules)
    assert ids == row.ids and weights == row.mask


@pytest.mark.parametrize("window", [None, 1])
def test_a_real_chat_model_rolls_out_and_the_learner_agrees_with_it(window: int | None) -> None:
    words = tiny.train_tokenizer(
        ["room 1 of 4", "Action: left right open", INSTRUCTIONS], vocab_size=320, special=("<|im_start|>", "<|im_end|>")
    )
    words.chat_template = CHATML
    model = tiny.build(words, seed=3).eval()
    template = Chat(ChatFormat(words), "corridor", INSTRUCTIONS)

    def roll() -> Any:
        policy = agent(LocalEngine(model, words), template, window=window, max_reply_tokens=8)
        return rollout(policy, EnvPool(SUITE.env, SUITE.rules), [task(1, 2), task(2, 4)], seed=1, max_steps=3)

    episodes = roll()
    assert episodes == roll()  # one seed, one episode
    rows = [row for i, episode in enumerate(episodes) for row in sequences_of(episode, i)]
    assert len(rows) == (2 if window is None else 4)  # of three turns each
    found, _ = token_logprobs(model, pad([r.ids for r in rows], [r.mask for r in rows], range(len(rows))))
    sampled = [p for r in rows for p, m in zip(r.rollout_logprobs, r.mask, strict=True) if m]
    assert np.allclose(found.tolist(), sampled, atol=1e-4)
