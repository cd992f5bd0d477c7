"""One conversation as every format of logs writes it: look up an order, cancel it, and answer the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dreamgym.logs.importing import import_logs
from dreamgym.runs.episodes import read_trajectories
from dreamgym.types import Trajectory

TASK, DONE = "Cancel order W1, mail ann@example.com", "Cancelled."
CALLS = [("c1", "get_order", {"id": "W1"}, '{"id": "W1", "status": "pending"}'), ("c2", "cancel", {"id": "W1", "refund": True}, "ok")]
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TOOLS = [{"type": "function", "function": {"name": "get_order", "description": "Read an order.", "parameters": SCHEMA}}]
ACTIONS = ['get_order(id="W1")', 'cancel(id="W1", refund=true)', 'respond(content="Cancelled.")']


def written(folder: Path, records: list[Any], name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def imported(folder: Path, records: list[Any], **how: Any) -> tuple[list[Trajectory], dict[str, Any]]:
    out = folder / "episodes.jsonl"
    found = import_logs([written(folder, records)], out, **how)
    return read_trajectories(out), found


def openai_messages() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": TASK}]
    for name, tool, arguments, result in CALLS:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        found.append({"role": "assistant", "content": None, "tool_calls": [{"id": name, "type": "function", "function": function}]})
        found.append({"role": "tool", "tool_call_id": name, "content": [{"type": "text", "text": result}]})
    return [*found, {"role": "assistant", "content": DONE}]


def openai() -> list[Any]:
    return [{"id": "e1", "messages": openai_messages(), "tools": TOOLS, "reward": 1.0}]


def responses_items() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    for name, tool, arguments, result in CALLS:
        found.append({"type": "reasoning", "id": f"rs_{name}", "summary": []})
        found.append({"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": tool, "arguments": json.dumps(arguments)})
        found.append({"type": "function_call_output", "call_id": name, "output": result})
    said = {"type": "output_text", "text": DONE, "annotations": []}
    return [*found, {"type": "message", "id": "msg_1", "role": "assistant", "content": [said]}]


def responses() -> list[Any]:
    """A request with its response, as a proxy logs them."""
    items = responses_items()
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    return [{"id": "e1", "instructions": "Be kind.", "input": items[:-1], "output": items[-1:], "tools": tools, "reward": 1.0}]


def agents_sdk() -> list[Any]:
    """`result.to_input_list()` of a run."""
    return [{"id": "e1", "items": responses_items(), "reward": 1.0}]


def openai_columns() -> list[Any]:
    """A row of a data set, whose columns are JSON strings."""
    return [{"id": "e1", "messages": json.dumps(openai_messages()), "tools": json.dumps(TOOLS), "reward": 1.0}]


def openenv() -> list[Any]:
    trace = [{"tool_name": tool, "arguments": arguments, "result": {"data": result}} for _, tool, arguments, result in CALLS]
    return [{"episode_id": "e1", "messages": openai_messages(), "reward": 1.0, "done": True, "tool_trace": trace, "metrics": {}}]


def tau_bench() -> list[Any]:
    return [{"task_id": 7, "trial": 0, "reward": 1.0, "info": {}, "traj": openai_messages()}]


def verifiers_results() -> list[Any]:
    """A line of `results.jsonl`, in the shape of verifiers' `legacy/utils/save_utils.py` (`state_to_output`, at a60a606c, 2026-08-21; the
    package's last version with it is 0.3.0): each call is a JSON string (`sanitize_tool_calls`), and metrics stand twice."""
    messages = openai_messages()
    for one in messages:
        if "tool_calls" in one:
            calls = [{"id": call["id"], **call["function"]} for call in one["tool_calls"]]
            one |= {"content": "", "tool_calls": [json.dumps(call) for call in calls]}
    tools = [{**tool["function"], "strict": None} for tool in TOOLS]
    return [
        {
            "example_id": 3, "prompt": messages[:2], "completion": messages[2:], "answer": "W1", "info": {"split": "test"}, "reward": 1.0,
            "error": None, "timing": {"start_time": 0.0}, "is_completed": True, "is_truncated": False, "stop_condition": None,
            "metrics": {"cancelled": 1.0}, "tool_defs": tools, "token_usage": {"input_tokens": 9.0, "output_tokens": 3.0}, "cancelled": 1.0,
        }
    ]  # fmt: skip


def verifiers_info_tools() -> list[Any]:
    """A line as verifiers 0.1.9 wrote it (`utils/eval_utils.py`, `make_dataset`): OpenAI's calls as JSON strings, tools in `info`."""
    messages = openai_messages()
    for one in messages:
        if "tool_calls" in one:
            one |= {"content": None, "tool_calls": [json.dumps(call) for call in one["tool_calls"]]}
    row = {"example_id": 3, "prompt": messages[:2], "completion": messages[2:], "task": "default", "reward": 1.0, "error": None}
    return [
        row | {"generation_ms": 5.0, "scoring_ms": 1.0, "total_ms": 6.0, "info": {"oai_tools": TOOLS}, "answer": "W1", "cancelled": 1.0}
    ]


def verifiers_traces() -> list[Any]:
    """A line of `traces.jsonl`: an `Episode` without its nulls, in the shape of verifiers 0.4.0 (`v1/utils/trace_store.py` writes it;
    `v1/episode.py`, `v1/trace.py`, `v1/graph.py` and `v1/types.py` say what is in it). Its `WireEpisode` reads this one, with the same
    reward; left out are defaults of timings, limits and counts of tokens."""
    nodes: list[dict[str, Any]] = []
    for i, one in enumerate(openai_messages()):
        message = {key: value for key, value in one.items() if value is not None}
        if "tool_calls" in one:
            message["tool_calls"] = [{"id": call["id"], "type": "function", **call["function"]} for call in one["tool_calls"]]
        tokens = {"token_ids": [], "mask": [], "is_content": [], "logprobs": []}
        parent = {"parent": i - 1} if i else {}
        nodes.append(
            {**parent, "semantic_parents": [], "message": message, "sampled": one["role"] == "assistant", "timestamp": 1.0, **tokens}
        )
    task = {"type": "ShopTask", "data": {"idx": 3, "prompt": TASK, "system_prompt": "Be kind."}, "key": "shop/3", "hash": "f" * 64}
    calls = [{"node": i, "model": "m", "endpoint": "/chat/completions"} for i, node in enumerate(nodes) if node["sampled"]]
    agent = {"config": {}, "name": "agent", "trainable": True}
    rewards = {"cancelled": {"score": 1.0, "weight": 0.75}, "kind": {"score": 0.5, "weight": 0.5}}
    trace = {
        "version": 1, "id": "e1", "verifiers": {"version": "0.4.0"}, "task": task, "agent": agent,
        "tools": [{"type": "function", **tool["function"]} for tool in TOOLS], "nodes": nodes, "calls": calls, "mm_token_type_id_map": {},
        "request_rewrites": [], "response_rewrites": [], "rewards": rewards, "metrics": {"turns": 3.0}, "info": {}, "extra_usage": [],
        "is_completed": True, "ok": True, "is_timeout": False, "errors": [], "timing": {"start": 0.0}, "num_total_tokens": 0,
    }  # fmt: skip
    return [{"id": "x", "env": {"id": "shop"}, "task": task, "ok": True, "is_timeout": False, "errors": [], "traces": [trace]}]


def legacy_functions() -> list[Any]:
    found: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    for _, tool, arguments, result in CALLS:
        found.append({"role": "assistant", "content": None, "function_call": {"name": tool, "arguments": json.dumps(arguments)}})
        found.append({"role": "function", "name": tool, "content": result})
    return [{"id": "e1", "messages": [*found, {"role": "assistant", "content": DONE}], "reward": 1.0}]


def anthropic_messages() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    for name, tool, arguments, result in CALLS:
        found.append({"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": tool, "input": arguments}]})
        parts = [{"type": "text", "text": result}]
        found.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": parts, "is_error": False}]})
    return [*found, {"role": "assistant", "content": [{"type": "text", "text": DONE}]}]


def anthropic() -> list[Any]:
    tools = [{"name": "get_order", "description": "Read an order.", "input_schema": SCHEMA}]
    return [{"id": "e1", "system": "Be kind.", "messages": anthropic_messages(), "tools": tools, "reward": 1.0}]


def claude_code() -> list[Any]:
    found: list[dict[str, Any]] = [{"type": "summary", "summary": "An order", "leafUuid": "u5", "sessionId": "e1"}]
    parent = None
    for i, message in enumerate(anthropic_messages()):
        kind = message["role"]
        found.append({"type": kind, "uuid": f"u{i}", "parentUuid": parent, "isSidechain": False, "sessionId": "e1", "message": message})
        parent = f"u{i}"
    aside = {"role": "assistant", "content": [{"type": "tool_use", "id": "s", "name": "other", "input": {}}]}
    return [*found, {"type": "assistant", "uuid": "s1", "parentUuid": "u1", "isSidechain": True, "sessionId": "e1", "message": aside}]


def atif() -> list[Any]:
    steps: list[dict[str, Any]] = [{"source": "user", "message": TASK}]
    for name, tool, arguments, result in CALLS:
        call = {"tool_call_id": name, "function_name": tool, "arguments": arguments}
        answer = {"results": [{"source_call_id": name, "content": result}]}
        steps.append({"source": "agent", "message": "", "tool_calls": [call], "observation": answer})
    steps.insert(1, {"source": "agent", "message": "Old news.", "is_copied_context": True})
    steps = [{"step_id": i, **step} for i, step in enumerate([*steps, {"source": "agent", "message": DONE}], start=1)]
    agent = {"name": "a", "version": "1", "model_name": "m", "tool_definitions": TOOLS}
    return [{"schema_version": "ATIF-v1.8", "session_id": "e1", "agent": agent, "steps": steps, "extra": {"reward": 1.0}}]


def tau2() -> list[Any]:
    found: list[dict[str, Any]] = [{"role": "assistant", "content": "Hi!"}, {"role": "user", "content": TASK}]
    phone = {"id": "u1", "name": "look_at_phone", "arguments": {}, "requestor": "user"}
    found += [{"role": "user", "content": None, "tool_calls": [phone]}, {"role": "tool", "id": "u1", "requestor": "user", "content": "off"}]
    for name, tool, arguments, result in CALLS:
        call = {"id": name, "name": tool, "arguments": arguments, "requestor": "assistant"}
        found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        found.append({"role": "tool", "tool_messages": [{"role": "tool", "id": name, "requestor": "assistant", "content": result}]})
    found.append({"role": "assistant", "content": DONE})
    one = {"id": "e1", "task_id": "t", "messages": found, "termination_reason": "user_stop", "reward_info": {"reward": 1.0}}
    info = {"environment_info": {"domain_name": "shop", "tool_defs": TOOLS}}
    return [{"info": info, "tasks": [{"id": "t"}], "simulations": [one]}]


def _attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "stringValue" if isinstance(value, str) else "doubleValue" if isinstance(value, float) else "intValue"
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def _span(number: int, attributes: dict[str, Any]) -> dict[str, Any]:
    found = [_attribute(key, value) for key, value in attributes.items()]
    return {"traceId": "e1", "spanId": f"s{number}", "startTimeUnixNano": str(number), "attributes": found}


def _parts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "parts": [{"type": "text", "content": TASK}]}]
    for name, tool, arguments, result in CALLS:
        call = {"type": "tool_call", "id": name, "name": tool, "arguments": arguments}
        found.append({"role": "assistant", "parts": [call]})
        found.append({"role": "tool", "parts": [{"type": "tool_call_response", "id": name, "response": result}]})
    return [*found, {"role": "assistant", "parts": [{"type": "text", "content": DONE}]}]


def otel_spans() -> list[Any]:
    """Each model span repeats the history. The last file comes first: spans are ordered by time."""
    messages, spans = _parts(), []
    for number, end in enumerate((1, 3, 5)):
        inputs, outputs = json.dumps(messages[:end]), json.dumps(messages[end : end + 1])
        found = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": inputs, "gen_ai.output.messages": outputs}
        spans.append(_span(number, found | ({"gen_ai.tool.definitions": json.dumps(TOOLS), "reward": 1.0} if end == 5 else {})))
    return spans[::-1]


def otlp() -> list[Any]:
    return [{"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": otel_spans()}]}]}]


def otel_tools() -> list[Any]:
    """The legacy dialect without messages: a model span names the call, a tool span has the output."""
    spans = []
    for i, (_, tool, arguments, result) in enumerate(CALLS):
        opening = {"gen_ai.prompt": TASK, "reward": 1.0} if not i else {}
        call = {"gen_ai.operation.name": "chat", "gen_ai.tool.name": tool, "gen_ai.tool.call.arguments": json.dumps(arguments)}
        spans.append(_span(2 * i, call | opening))
        output = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool, "gen_ai.tool.message": result}
        spans.append(_span(2 * i + 1, output))
    return [*spans, _span(9, {"gen_ai.operation.name": "chat", "gen_ai.completion": DONE})]


def _indexed(prefix: str, messages: list[dict[str, Any]], message: str, call: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, one in enumerate(messages):
        at = f"{prefix}.{i}.{message}"
        found[f"{at}role"] = one["role"]
        text = one["content"]
        found |= {f"{at}content": text[0]["text"] if isinstance(text, list) else text} if text else {}
        found |= {f"{at}tool_call_id": one["tool_call_id"]} if "tool_call_id" in one else {}
        for j, given in enumerate(one.get("tool_calls", ())):
            here = f"{at}tool_calls.{j}.{call}"
            inner = f"{here}function." if call else here
            found |= {f"{here}id": given["id"], f"{inner}name": given["function"]["name"]}
            found[f"{inner}arguments"] = given["function"]["arguments"]
    return found


def openinference() -> list[Any]:
    messages = openai_messages()
    kind = {"openinference.span.kind": "LLM", "reward": 1.0, "llm.tools.0.tool.json_schema": json.dumps(TOOLS[0])}
    both = _indexed("llm.input_messages", messages[:-1], "message.", "tool_call.")
    return [_span(0, kind | both | _indexed("llm.output_messages", messages[-1:], "message.", "tool_call."))]


def otel_legacy() -> list[Any]:
    """traceloop's indexed keys."""
    messages = openai_messages()
    return [
        _span(0, {"reward": 1.0} | _indexed("gen_ai.prompt", messages[:-1], "", "") | _indexed("gen_ai.completion", messages[-1:], "", ""))
    ]


def sharegpt() -> list[Any]:
    """A row of LLaMA-Factory's: tools as a JSON string, results in the order of their calls."""
    turns = [{"from": "human", "value": TASK}]
    for _, tool, arguments, result in CALLS:
        turns.append({"from": "function_call", "value": json.dumps({"name": tool, "arguments": arguments})})
        turns.append({"from": "observation", "value": result})
    turns.append({"from": "gpt", "value": DONE})
    return [{"id": "e1", "conversations": turns, "system": "Be kind.", "tools": json.dumps(TOOLS), "reward": 1.0}]


def hermes() -> list[Any]:
    """Calls and results in tags of the texts."""
    turns = [{"from": "system", "value": "Call in <tool_call></tool_call>."}, {"from": "human", "value": TASK}]
    for _, tool, arguments, result in CALLS:
        turns.append({"from": "gpt", "value": f"<tool_call>\n{json.dumps({'arguments': arguments, 'name': tool})}\n</tool_call>"})
        turns.append({"from": "tool", "value": f"<tool_response>\n{result}\n</tool_response>"})
    return [{"id": "e1", "conversations": [*turns, {"from": "gpt", "value": DONE}], "reward": 1.0}]


DIALECTS = {
    "responses": responses, "agents_sdk": agents_sdk,
    "openai": openai, "openai_columns": openai_columns, "openenv": openenv, "tau_bench": tau_bench, "legacy_functions": legacy_functions,
    "verifiers_results": verifiers_results, "verifiers_info_tools": verifiers_info_tools, "verifiers_traces": verifiers_traces,
    "sharegpt": sharegpt, "hermes": hermes,
    "anthropic": anthropic, "claude_code": claude_code, "atif": atif, "tau2": tau2, "otel_spans": otel_spans, "otlp": otlp,
    "otel_tools": otel_tools, "openinference": openinference, "otel_legacy": otel_legacy,
}  # fmt: skip
FORMATS = {
    "responses": "openai_responses", "agents_sdk": "openai_responses",
    "openai": "openai", "openai_columns": "openai", "openenv": "openai", "tau_bench": "openai", "legacy_functions": "openai",
    "verifiers_results": "openai", "verifiers_info_tools": "openai", "verifiers_traces": "verifiers",
    "sharegpt": "sharegpt", "hermes": "sharegpt",
    "anthropic": "anthropic", "claude_code": "claude_code", "atif": "atif", "tau2": "tau2",
}  # fmt: skip
"""The format of a dialect; all others are OpenTelemetry's."""
SUCCESS = {"atif": "extra.reward==1", "tau2": "reward_info.reward==1"}
