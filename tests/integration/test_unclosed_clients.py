"""Programs that publish and end without a close, on a real server."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tickertape as tt
from tickertape.testing import RunningServer

pytestmark = pytest.mark.slow
CONFIG = ""
MESSAGES = 2_000
BLOCKING = f"""
import sys, tickertape as tt
client = tt.Client("p", sys.argv[1])
for i in range({MESSAGES}):
    client.publish(sys.argv[2], b"%d" % i)
"""
HA = f"""
import sys, tickertape as tt
client = tt.HAClient("p", servers=sys.argv[1])
client.connect_and_logon()
for i in range({MESSAGES}):
    client.publish(sys.argv[2], b"%d" % i)
"""
ASYNC = f"""
import asyncio, sys, tickertape as tt
async def main():
    client = tt.AsyncClient("p", sys.argv[1])
    await client.connect()
    for i in range({MESSAGES}):
        await client.publish(sys.argv[2], b"%d" % i)
asyncio.run(main())
"""
THREAD = f"""
import sys, threading, tickertape as tt
def work():
    client = tt.Client("p", sys.argv[1])
    for i in range({MESSAGES}):
        client.publish(sys.argv[2], b"%d" % i)
threading.Thread(target=work).start()
"""
CHILD = f"""
import multiprocessing, sys, tickertape as tt
parent = tt.Client("parent", sys.argv[1])
def work():
    client = tt.Client("p", sys.argv[1])
    for i in range({MESSAGES}):
        client.publish(sys.argv[2], b"%d" % i)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
"""
HANDLER = f"""
import atexit, sys, tickertape as tt
def publish_and_close():
    for i in range({MESSAGES}):
        client.publish(sys.argv[2], b"%d" % i)
    client.close()
atexit.register(publish_and_close)
client = tt.Client("p", sys.argv[1])
"""
PROGRAMS = {"blocking": BLOCKING, "ha": HA, "async": ASYNC, "thread": THREAD, "child": CHILD}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_that_ends_without_close_loses_nothing(server: RunningServer, name: str) -> None:
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", PROGRAMS[name], server.uri, name]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Client 'p' was not closed" in ended.stderr
    assert "Cannot send" not in ended.stderr
    with tt.Client("reader", server.uri) as reader:
        stored = reader.replay(name, tt.EPOCH)
        assert [int(message.data) for message in stored] == list(range(MESSAGES))


def test_program_publishes_and_closes_in_an_exit_handler(server: RunningServer) -> None:
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", HANDLER, server.uri, "handler"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    with tt.Client("reader", server.uri) as reader:
        stored = reader.replay("handler", tt.EPOCH)
        assert [int(message.data) for message in stored] == list(range(MESSAGES))


def test_program_that_ends_without_a_server_reports_the_lost_message_count(server: RunningServer) -> None:
    program = HA.replace("client.connect_and_logon()\n", "")
    command = [sys.executable, "-c", program, server.uri, "lost"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == (
        f"Cannot send {MESSAGES} message(s) of client 'p' before the program ends. Call close(), "
        "or use the client in a with statement.\n"
    )
