"""`dreamgym web`: the example shop and forum, to look at and to test browsers against, and recorded episodes of other tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli._show import Json, table

app = typer.Typer(help="The web environments: an example shop and forum, recorded episodes, WebArena's sites.", no_args_is_help=True)


@app.command()
def up(
    site: Annotated[str, typer.Argument(help="shop or forum.")] = "shop",
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0 finds a free port.", min=0, max=65_535)] = 8000,
    content: Annotated[int, typer.Option(help="Seed of what the site holds.", min=0)] = 0,
) -> None:
    """Start a site of the tasks on loopback until Ctrl-C: the example shop, or the forum. The first start makes its database."""
    from dreamgym.envs.web import SITES
    from dreamgym.envs.web.sites.server import SiteServer
    from dreamgym.errors import UsageError, nearest

    if site not in SITES:
        raise UsageError(f"No site '{site:.64}'.{nearest(site, SITES)} Known: {', '.join(SITES)}.")
    server = SiteServer(SITES[site], content, port)
    try:
        for account in SITES[site].accounts.values():
            print(f"{account.about}: http://{server.address}{account.start}  (log in as {account.login}, password {account.password})")
        print("Ctrl-C ends it. What was changed is forgotten.", flush=True)
        server.wait()
    finally:
        server.close()


@app.command()
def reset() -> None:
    """Bring WebArena's sites into their first state, by the server at WA_FULL_RESET, and wait for it: five minutes are usual."""
    import httpx

    from dreamgym.envs.web.webarena import reset_sites
    from dreamgym.errors import ServerError

    def get(url: str) -> tuple[int, str]:
        try:
            answer = httpx.get(url, timeout=60.0)
        except httpx.HTTPError as error:
            raise ServerError(f"No answer from {url} ({error}). Start the server, or correct WA_FULL_RESET.") from error
        return answer.status_code, answer.text

    reset_sites(get=get)
    print("The sites are in their first state.")


@app.command("import")
def import_episodes(
    records: Annotated[list[Path], typer.Argument(help="Files, or folders that hold tape.json or steps_info.json.")],
    out: Annotated[Path | None, typer.Option(help="The file of episodes, for logs.files.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of a state; as env.options.max_tokens of the run.", min=200)] = 1500,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what was understood and what was left out; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Read recorded episodes of AgentLab and BrowserGym as logs of the web: the states and actions are those of the real browser here."""
    from dreamgym.envs.web.recorded import import_recorded
    from dreamgym.errors import UsageError, counted

    if out is None and not dry_run:
        raise UsageError("Give --out FILE, such as --out episodes.jsonl, or --dry-run.")
    found = import_recorded(records, None if dry_run else out, max_tokens=max_tokens)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    held = f"{counted(found.successes, 'success', 'successes')}, {counted(found.steps, 'step')}"
    print(f"{counted(found.episodes, 'episode')} ({held}) of {counted(found.files, 'file')}")
    if found.left_out:
        rows = [[reason, f"{n:,}", found.examples[reason]] for reason, n in sorted(found.left_out.items(), key=lambda one: -one[1])]
        table("left out", ["reason", "episodes", "for example"], rows)
    if out is not None and not dry_run:
        print(f"written: {out}")
