"""Commands that ask an instruct model at a host: `annotate` and `judge`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli._show import Json, Run, score, table, values

BaseUrl = Annotated[str, typer.Option("--base-url", help="The host's OpenAI-compatible address, such as http://localhost:8000/v1.")]
Model = Annotated[str, typer.Option(help="The model's name at that host.")]
KeyEnv = Annotated[str, typer.Option(help="The environment variable that holds the key; it may be unset for hosts that want none.")]
PriceIn = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of prompt.")]
PriceOut = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of reply.")]
MaxDollars = Annotated[float | None, typer.Option(min=0, help="Send no request that could take the cost above this; needs prices.")]
MaxTokens = Annotated[int, typer.Option(min=16, help="Of one reply, thinking included.")]
Form = Annotated[str, typer.Option("--format", help="What the host can be held to: json_schema, json_object or none.")]
Temperature = Annotated[float, typer.Option(min=0, help="Some hosted models take 1 only.")]
Seeds = Annotated[bool, typer.Option("--seeds/--no-seeds", help="Whether requests carry a seed; some hosts refuse the field.")]
Host = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE: any further option of the engine, such as timeout_s=60 or max_tokens_key=max_completion_tokens."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests under way at once.")]
PerMinute = Annotated[int | None, typer.Option(help="The host's limit of requests per minute.")]
TokensPerMinute = Annotated[int | None, typer.Option(help="The host's limit of tokens per minute.")]


def annotate(
    logs: Annotated[Path, typer.Argument(help="Episodes as a run writes them, such as runs/quickstart/episodes/logs.jsonl.")],
    out: Annotated[Path, typer.Option(help="Where the annotated episodes go. The replies are kept beside it; the same command goes on.")],
    base_url: BaseUrl,
    model: Model,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 4096,
    temperature: Temperature = 0.0,
    seeds: Seeds = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    host: Host = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate of tokens and dollars, and send nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Let an instruct model explain logged episodes: a tutorial, and a reasoning trace for every step."""
    from dreamgym.recipes import chat_host
    from dreamgym.recipes.annotate import annotate as run

    address = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_host.asking(max_tokens=max_tokens, temperature=temperature, seeds=seeds, format=form, max_cost=max_dollars)
    with chat_host.opened(host or (), **address, **limits, **prices) as chat:
        found = run(chat, logs, out, how, dry_run=dry_run)
    if as_json:
        print(json.dumps(found))
        return
    values("estimate", found["estimate"])
    if not dry_run:
        values(f"written: {found['written']} of {found['episodes']} episodes to {found['out']}", found["counts"] | found["used"])
        for name, problem in list(found["problems"].items())[:5]:
            print(f"left out: {name}: {problem[:200]}")


def judge(
    run: Run,
    base_url: BaseUrl,
    model: Model,
    n: Annotated[int, typer.Option("--n", min=1, help="Dreamed transitions to judge.")] = 100,
    controls: Annotated[int, typer.Option(min=0, help="Real transitions, and as many corrupted ones, that are mixed in.")] = 30,
    dreams: Annotated[str | None, typer.Option(help="Which of the run's episodes, such as dream-0050; by default the audit's.")] = None,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.0,
    seeds: Seeds = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    host: Host = None,
    seed: Annotated[int, typer.Option(help="Draws the transitions and the order of the questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Let an instruct model score dreamed transitions, beside real and corrupted ones that say whether to believe it."""
    from dreamgym.evals.judge import KINDS, QUESTIONS, JudgeConfig
    from dreamgym.recipes import chat_host
    from dreamgym.recipes.judge import judge_run

    address = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_host.asking(max_tokens=max_tokens, temperature=temperature, seeds=seeds, format=form, max_cost=max_dollars)
    with chat_host.opened(host or (), **address, **limits, **prices) as chat:
        found = judge_run(chat, run, JudgeConfig(n=n, controls=controls, seed=seed, ask=how), dreams=dreams)
    if as_json:
        print(json.dumps(found))
        return
    rows = [[name, *(score(found[kind][f"judge_{name}"]) for kind in KINDS)] for name in QUESTIONS]
    table(f"{found['judge']} on {found['dreams']}: 0 to 2, higher is better [95 % interval]", ["", *KINDS], rows)
    print(f"controls: {found['controls']['reason'] or 'passed'}")
    values("agreement with the environment", found["agreement"]["dream"] | {"unreadable": found["judge_unreadable"], **found["used"]})
