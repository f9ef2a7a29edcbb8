"""Queue: two consumers share messages, and a message of a lost consumer is redelivered.

    python -m examples.work_queue

The server needs the queues of `examples/queues.toml`: tickertape serve examples/queues.toml
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Share three tasks between two consumers. The first one leaves without an acknowledgement."""
    with (
        tt.Client("task-worker-1", SERVER) as first,
        tt.Client("task-worker-2", SERVER) as second,
    ):
        second.publish_batch("tasks", [{"id": 1}, {"id": 2}, {"id": 3}])
        second.publish_flush(timeout=10)

        lost = first.subscribe("tasks-queue", max_backlog=2)
        print("worker 1 holds task", lost.get(timeout=10).json()["id"])
        lost.close()  # releases its messages

        stream = second.subscribe("tasks-queue", max_backlog=2)
        for _ in range(3):
            message = stream.get(timeout=10)
            print("worker 2 finished task", message.json()["id"])
            message.ack()
        second.publish_flush(timeout=10)  # the acknowledgements are persisted


if __name__ == "__main__":
    main()
