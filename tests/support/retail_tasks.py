"""Tasks for tau2's retail domain, made from the package's own database."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from dreamgym.envs._tau2 import load_domain


@cache
def retail_tasks(n: int = 120) -> Path:
    """A file of tasks in tau-bench's form, one a user: orders to cancel or to return, and one call that the tools refuse. MissingExtra
    without tau2."""
    domain = load_domain("retail")
    db = domain.RetailDB.load(domain.RETAIL_DB_PATH)
    rows = [{"user_id": "mia_garcia_4516", "instruction": "Undo it.", "actions": [{"name": "cancel_pending_order", "kwargs": {}}]}]
    for order in {order.user_id: order for order in db.orders.values() if order.status in ("pending", "delivered")}.values():
        pay = order.payment_history[0].payment_method_id
        user = db.users[order.user_id]
        who = f"Your name is {user.name.first_name} {user.name.last_name} and your zip code is {user.address.zip}."
        if order.status == "pending":
            call = ("cancel_pending_order", {"order_id": order.order_id, "reason": "no longer needed"})
            wish = f"Cancel order {order.order_id} because no longer needed."
        else:
            first = order.items[0]
            call = (
                "return_delivered_order_items",
                {"order_id": order.order_id, "item_ids": [first.item_id], "payment_method_id": pay},
            )
            wish = f"Return {order.order_id} via {pay}: {first.name};"
        rows.append({"user_id": user.user_id, "instruction": f"{who} {wish}", "actions": [{"name": call[0], "kwargs": call[1]}]})
        if len(rows) > n:
            break
    path = Path(tempfile.mkdtemp()) / "retail.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
