"""Planted defects of queries in the client.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_PROTOCOL = "unit/client/sow/test_query_protocol.py"
_FAULTS = "property/test_client_queries.py"
_BUFFER = "unit/client/subscriptions/test_message_buffer_queries.py"

QUERY_MUTATIONS: Final = (
    Mutation(
        "records of an earlier result are delivered twice: a complete result is sent again at the same log",
        "client/sow/query_result.py",
        "not self.complete or journal != self._journal or len(",
        "not self.complete or journal == self._journal or len(",
        (_PROTOCOL,),
        promise="behaviour 52",
        tier="unit",
    ),
    Mutation(
        "records are missing: an incomplete result is not sent again after a lost connection",
        "client/sow/query_result.py",
        "        if not self.complete or journal",
        "        if journal",
        (_FAULTS,),
        promise="behaviour 52",
        tier="property",
    ),
    Mutation(
        "messages after a repeated result are dropped as duplicates of an earlier connection",
        "client/subscriptions/resubscribe.py",
        "            self.tracker.restart()\n",
        "",
        (_PROTOCOL,),
        promise="behaviour 53",
        tier="unit",
    ),
    Mutation(
        "a stream continues after the result of a pattern with the messages of other topics",
        "client/sow/query_result.py",
        "        return group.topic == topic if not group.pattern else ",
        "        return True if not group.pattern else ",
        (_PROTOCOL,),
        promise="behaviour 52",
        tier="unit",
    ),
    Mutation(
        "a stream continues after a result of an empty log, whose messages retention removed",
        "client/subscriptions/subscription.py",
        "(bookmark == EPOCH or not self.result.can_continue(journal))",
        "not self.result.can_continue(journal)",
        (_PROTOCOL,),
        promise="behaviour 52",
        tier="unit",
    ),
    Mutation(
        "a subscription whose place retention removed ends instead of a new result",
        "client/protocol/calls.py",
        "(BookmarkExpired.code, BookmarkUnknown.code)",
        "(BookmarkUnknown.code,)",
        (_PROTOCOL,),
        promise="behaviour 52",
        tier="unit",
    ),
    Mutation(
        "records that wait for a handler are dropped with the messages that are redelivered",
        "client/subscriptions/message_buffer.py",
        "        return self._kept_batches < self._taken[0] <= self._void_batches\n",
        "        return self._taken[0] <= self._void_batches\n",
        (_BUFFER,),
        promise="behaviour 51",
        tier="unit",
    ),
    Mutation(
        "a result that the server cut short is complete",
        "client/sow/query_result.py",
        "command.records != self._received",
        "command.records < self._received",
        (_PROTOCOL,),
        promise="behaviour 50",
        tier="unit",
    ),
    Mutation(
        "the end of a query within its result is an end without an error",
        "client/subscriptions/registry.py",
        "                subscription.result.check_complete()\n",
        "                subscription.result.keys\n",
        (_PROTOCOL,),
        promise="behaviour 50",
        tier="unit",
    ),
    Mutation(
        "a bounded query with a handler waits for its result on the next connection",
        "client/subscriptions/subscription.py",
        "        return self.result is None or not self.request.limited\n",
        "        return True\n",
        (_PROTOCOL,),
        promise="behaviour 50",
        tier="unit",
    ),
    Mutation(
        "a slow reader gets all records at once: their credit returns on arrival",
        "client/subscriptions/registry.py",
        "            self._idle_credit.delivered(subscription, batch.cost, now.mono)\n"
        "            self._effects.append(effects.DeliverBatch(subscription.sink, records))\n",
        "            self.grants.append(Credit(sub_id=command.sub_id, bytes=batch.cost))\n"
        "            self._effects.append(effects.DeliverBatch(subscription.sink, records))\n",
        (_PROTOCOL,),
        promise="behaviour 49",
        tier="unit",
    ),
    Mutation(
        "the marks of a result return credit that they did not cost",
        "client/sow/record_batch.py",
        "    batch.cost = 0\n",
        "",
        (_PROTOCOL,),
        promise="behaviour 51",
        tier="unit",
    ),
    Mutation(
        "a query by an empty list of keys returns all records",
        "client/sow/query_arguments.py",
        "    if not keys:\n",
        "    if keys is None:\n",
        ("unit/client/sow/test_query_arguments.py",),
        promise="behaviour 54",
        tier="unit",
    ),
    Mutation(
        "a record without its key fields has the key of null",
        "client/sow/record_keys.py",
        "isinstance(value, list | dict) or (value is None and not whole)",
        "isinstance(value, list | dict)",
        ("unit/client/sow/test_record_keys.py",),
        promise="behaviour 54",
        tier="unit",
    ),
    Mutation(
        "records of a slice have the publisher of the server",
        "client/sow/record_batch.py",
        'runs["publisher"], runs["first_sequence"] = self.publishers, self.sequences\n',
        'runs["first_sequence"] = self.sequences\n',
        ("unit/client/sow/test_record_batch.py",),
        promise="behaviour 8",
        tier="unit",
    ),
)
