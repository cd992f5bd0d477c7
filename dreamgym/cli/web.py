"""`dreamgym web`: the practice shop, to look at and to test browsers against."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="The web environments: start the practice shop.", no_args_is_help=True)


@app.command()
def up(
    port: Annotated[int, typer.Option(help="Where to listen on 127.0.0.1; 0 finds a free port.", min=0, max=65_535)] = 8000,
    content: Annotated[int, typer.Option(help="Seed of what the shop holds.", min=0)] = 0,
) -> None:
    """Start the practice shop on loopback, with its administration, until Ctrl-C. The first start makes its database."""
    from dreamgym.envs.web.shop.content import CUSTOMER, STAFF
    from dreamgym.envs.web.shop.server import ShopServer

    server = ShopServer(content, port)
    try:
        print(f"The shop: http://{server.site}/  (log in as {CUSTOMER[0]}, password {CUSTOMER[1]})")
        print(f"Its administration: http://{server.site}/dashboard/  (log in as {STAFF[0]}, password {STAFF[1]})")
        print("Ctrl-C ends it. What was changed is forgotten.", flush=True)
        server.process.wait()
    finally:
        server.close()
