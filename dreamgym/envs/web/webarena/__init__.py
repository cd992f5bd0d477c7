"""WebArena-Lite: 165 tasks on six self-hosted sites, scored as the original scores them. The sites are the original's Docker images.

    export WA_SHOPPING=http://127.0.0.1:7770 WA_SHOPPING_ADMIN=http://127.0.0.1:7780/admin WA_REDDIT=http://127.0.0.1:9999
    export WA_GITLAB=http://127.0.0.1:8023 WA_WIKIPEDIA=http://127.0.0.1:8888 WA_MAP=http://127.0.0.1:3000
    export WA_HOMEPAGE=http://127.0.0.1:4399
    dreamgym train runs/webarena env.name=web env.options='{benchmark = "webarena_lite"}' env.workers=4

How to start the images: https://github.com/web-arena-x/webarena/tree/main/environment_docker. With WA_FULL_RESET, the address of a server
that knows /reset and /status, `dreamgym web reset` brings all of them into their first state.
"""

from dreamgym.envs.web.webarena.benchmark import WebArenaLite, reset_sites

__all__ = ["WebArenaLite", "reset_sites"]
