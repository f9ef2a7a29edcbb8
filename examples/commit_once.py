"""Transaction: messages of two topics become visible together, and only once.

python -m examples.commit_once
"""

from __future__ import annotations

import os
import time

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Commit a transaction twice under one name. The server stores its messages once."""
    name = f"invoice-{os.getpid()}-{time.time_ns()}"
    with tt.Client("billing-example", SERVER) as client:
        for _ in range(2):  # the second time as after a lost reply
            with client.transaction(name) as transaction:
                transaction.publish("invoices", {"name": name, "total": 30})
                transaction.publish("ledger", {"invoice": name, "amount": 30})
            assert transaction.result is not None
            print("committed before:", transaction.result.repeated)
        stored = list(client.replay("^(invoices|ledger)$", filter=f"/name = '{name}' OR /invoice = '{name}'"))
        print(len(stored), "messages are stored")


if __name__ == "__main__":
    main()
