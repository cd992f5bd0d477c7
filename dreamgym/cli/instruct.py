"""Commands that use an instruct model on a server or in this process: `annotate` and `judge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.cli._show import Json, Run, score, table, values

BaseUrl = Annotated[
    str | None,
    typer.Option(help="The host's OpenAI-compatible address, such as http://localhost:8000/v1. Without it the model runs in this process."),
]
Model = Annotated[str, typer.Option(help="The model's name at that host; in this process a directory, a name on the hub, or smollm2.")]
KeyEnv = Annotated[str, typer.Option(help="The environment variable with the key; it may be unset for hosts without keys.")]
PriceIn = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of prompt.")]
PriceOut = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of reply.")]
MaxDollars = Annotated[float | None, typer.Option(min=0, help="Send no request that could raise the cost above this; requires prices.")]
MaxTokens = Annotated[int, typer.Option(min=16, help="Limit of one reply, reasoning tokens included.")]
Form = Annotated[str, typer.Option("--format", help="Structured output that the host supports: json_schema, json_object or none.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sampling temperature; some hosted models accept only 1.")]
SendSeed = Annotated[bool, typer.Option("--send-seed/--no-send-seed", help="Whether requests carry a seed; some hosts reject the field.")]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        help="NAME=VALUE: any further option of the engine, such as timeout_s=60 or max_tokens_key=max_completion_tokens.",
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Concurrent requests.")]
PerMinute = Annotated[int | None, typer.Option(help="The host's limit of requests per minute.")]
TokensPerMinute = Annotated[int | None, typer.Option(help="The host's limit of tokens per minute.")]


def annotate(
    logs: Annotated[Path, typer.Argument(help="A file of episodes, such as runs/quickstart/episodes/logs.jsonl.")],
    out: Annotated[Path, typer.Option(help="The file of annotated episodes. Replies are kept beside it; the same command resumes.")],
    model: Model,
    base_url: BaseUrl = None,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 4096,
    temperature: Temperature = 0.0,
    send_seed: SendSeed = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    engine_options: EngineOptions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate of tokens and dollars, and send nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Annotate logged episodes with an instruct model: a tutorial, and a reasoning trace for every step."""
    from dreamgym.errors import counted
    from dreamgym.recipes import chat_server
    from dreamgym.recipes.annotate import annotate as run
    from dreamgym.recipes.annotate import read_logs

    address: dict[str, Any] = {"api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_server.ask_config(max_tokens=max_tokens, temperature=temperature, send_seed=send_seed, format=form, max_cost=max_dollars)
    episodes = read_logs(logs, out)  # before a model is loaded, which takes minutes
    with chat_server.open_chat(model, base_url, engine_options or (), **address, **limits, **prices) as chat:
        found = run(chat, episodes, out, how, dry_run=dry_run)
    if as_json:
        print(json.dumps(found))
        return
    values("estimate", found["estimate"])
    if not dry_run:
        written = f"{found['written']} of {counted(found['episodes'], 'episode')}"
        values(f"written: {written} to {found['out']}", found["counts"] | found["used"])
        for name, problem in list(found["problems"].items())[:5]:
            print(f"left out: {name}: {problem[:200]}")


def judge(
    run: Run,
    model: Model,
    base_url: BaseUrl = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Dreamed transitions to judge.")] = 100,
    controls: Annotated[int, typer.Option(min=0, help="Real transitions, and as many corrupted ones, as controls.")] = 30,
    dreams: Annotated[
        str | None, typer.Option(help="Name of the run's episodes, such as dream-0050; by default those of the audit.")
    ] = None,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.0,
    send_seed: SendSeed = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    engine_options: EngineOptions = None,
    seed: Annotated[int, typer.Option(help="Seed of the drawn transitions and of the order of questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Score dreamed transitions with an instruct model; real and corrupted transitions are the controls."""
    from dreamgym.evals.judge import KINDS, QUESTIONS, JudgeConfig
    from dreamgym.recipes import chat_server
    from dreamgym.recipes.judge import dreams_of, judge_run

    address: dict[str, Any] = {"api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_server.ask_config(max_tokens=max_tokens, temperature=temperature, send_seed=send_seed, format=form, max_cost=max_dollars)
    name = dreams_of(run, dreams)  # before a model is loaded, which takes minutes
    with chat_server.open_chat(model, base_url, engine_options or (), **address, **limits, **prices) as chat:
        found = judge_run(chat, run, JudgeConfig(n=n, controls=controls, seed=seed, ask=how), dreams=name)
    if as_json:
        print(json.dumps(found))
        return
    rows = [[name, *(score(found[kind][f"judge_{name}"]) for kind in KINDS)] for name in QUESTIONS]
    table(f"{found['judge']} on {found['dreams']}: 0 to 2, higher is better [95 % interval]", ["", *KINDS], rows)
    print(f"controls: {found['controls']['reason'] or 'passed'}")
    values("agreement with the environment", found["agreement"]["dream"] | {"unreadable": found["judge_unreadable"], **found["used"]})
