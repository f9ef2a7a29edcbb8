"""Conformance suite for publish stores of applications and of this package.

It uses only the protocol of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import StoreFull, StoreOwnerMismatch
from tickertape.base.names import publisher_id
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.derive import slice_batch
from tickertape.client.publish_store.protocol import (
    AppendingPublishStore,
    ClaimingPublishStore,
    PublishStore,
    Stored,
)
from tickertape.client.publishing.store_checks import free_bytes
from tickertape.testing.verdicts import must, same

NAME: Final = "checked"
FIRST: Final = 1_000
ROOM_BYTES_MIN: Final = 4_096
"""Minimum capacity, above the bytes that the checks store at once."""
FILLED_BYTES_MAX: Final = 65_536
"""Capacity up to which the checks fill a store."""
_BODY_BYTES: Final = 1_024
_NOTHING: Final = (0, 0)
_CLOCK: Final = 1_760_000_000_000_000

Make = Callable[[], PublishStore]
Kill = Callable[[PublishStore], None]


class SampleMessage(NamedTuple):
    """All fields of a message that a store must preserve."""

    sequence: int
    body: bytes
    topic: str = "orders"
    expiration_ms: int = 0
    correlation_id: str = ""
    key: str = ""


def check_publish_store(make: Make, *, survives: bool = False, killed: Kill | None = None) -> None:
    """Check a publish store. Raise `AssertionError` with the first violated requirement.

    The check does not cover several threads (the client has one lock for all calls), power loss, disk errors
    and speed. It fills the store to its capacity, unless the attribute `bytes_max` of the store is above
    65,536 bytes. The attribute must be at least 4,096 bytes.

    Args:
        make: Returns a new, empty store. With `survives=True` or `killed`, each later call
            reopens the store of the first call.
        survives: Whether messages and the highest sequence survive `close`. Default False. With `killed`,
            always True.
        killed: For a store whose messages survive a kill of the process. `killed(store)` simulates the kill:
            it releases locks and files as the operating system would, and writes nothing. Use `lambda
            store: None` if a store can be reopened without a close. With `killed`, the reopened store must
            have every message that was not discarded. It may also still have messages that were discarded.
            Default None: the check does not kill the store. A store that writes only in `close` then passes
            the check.

    Example:
        >>> check_publish_store(lambda: tt.MemoryPublishStore("64KB"))
    """
    store = make()
    must(isinstance(store, PublishStore), "it lacks methods of PublishStore")
    store.attach(NAME)
    _is_fresh(store)
    _holds_in_order(store)
    _cuts_what_is_settled_in_part(store)
    _replaces_in_the_middle(store)
    if isinstance(store, AppendingPublishStore):
        _seals_what_was_appended(store)
    if isinstance(store, ClaimingPublishStore):
        _claims_what_was_discarded(store)
    _fills_up(store)
    if survives or killed is not None:
        store = _survives_close(store, make)
    if killed is not None:
        store = _survives_the_process(store, make, killed)
    _three_batches(store)
    _refuses_another(store)
    store.close()


def _is_fresh(store: PublishStore) -> None:
    found = (store.last_sequence, store.size_bytes, store.unpersisted_count(), len(store.held()))
    same("a new store is empty (last sequence, bytes, messages, batches)", found, (0, 0, 0, 0))
    must(
        store.bytes_max >= ROOM_BYTES_MIN,
        f"it has bytes_max={store.bytes_max}, and the checks need {ROOM_BYTES_MIN:,}: a batch takes 128 "
        "bytes in addition to its message",
    )
    must(
        store.when_full in ("block", "raise"), f"when_full={store.when_full!r} is neither 'block' nor 'raise'"
    )
    if isinstance(store, ClaimingPublishStore):
        same("persisted_sequence of a new store", store.persisted_sequence, 0)


def _holds_in_order(store: PublishStore) -> None:
    one, two, three = _plain(FIRST, b"a"), _labelled(FIRST + 1, b"b"), _plain(FIRST + 2, b"c")
    store.put(_stored(one))
    store.put(_stored(two, three))
    same("put stores messages with topics and labels", _contents(store), [one, two, three])
    same("last_sequence is the sequence of the last message", store.last_sequence, three.sequence)
    size = store.size_bytes
    must(size > 0, f"it holds messages, and size_bytes is {size}")
    store.discard(FIRST - 1)
    same("discard keeps unsettled messages", _contents(store), [one, two, three])
    store.discard(FIRST)
    same("discard removes only settled messages", _contents(store), [two, three])
    must(store.size_bytes < size, f"it discarded a batch, and size_bytes is {store.size_bytes} after {size}")
    store.discard(FIRST + 1_000_000)
    _is_empty(store)
    must(store.last_sequence >= three.sequence, "an empty store forgot its highest sequence")


def _cuts_what_is_settled_in_part(store: PublishStore) -> None:
    first = store.last_sequence + 1
    messages = [_plain(first, b"a"), _plain(first + 1, b"b"), _labelled(first + 2, b"c")]
    store.put(_stored(*messages))
    store.discard(first + 1)
    same("discard keeps the rest of a partly settled batch", _contents(store), messages[2:])
    store.discard(first + 2)
    _is_empty(store)


def _replaces_in_the_middle(store: PublishStore) -> None:
    first = store.last_sequence + 1
    before, after = _plain(first, b"a"), _labelled(first + 4, b"e")
    messages = [_labelled(first + 1, b"b"), _plain(first + 2, b"c"), _labelled(first + 3, b"d")]
    middle = _stored(*messages)
    for stored in (_stored(before), middle, _stored(after)):
        store.put(stored)
    store.replace(first + 1, first + 3, slice_batch(middle.batch, 1, 3))
    same("replace keeps the rest of a batch", _contents(store), [before, *messages[1:], after])
    store.replace(first + 1, first + 3, None)
    same("replace without a rest removes the batch", _contents(store), [before, after])
    store.replace(first + 1, first + 3, None)
    same("replace of a removed batch has no effect", _contents(store), [before, after])
    store.discard(first + 4)
    _is_empty(store)


def _seals_what_was_appended(store: AppendingPublishStore) -> None:
    before, first = store.last_sequence, store.last_sequence + 1
    messages = [_plain(first, b"a"), _labelled(first + 1, b"b")]
    for message in messages:
        _append(store, message)
    found = (store.last_sequence, store.unpersisted_count())
    same("last_sequence and unpersisted_count exclude messages before seal", found, (before, 0))
    store.seal(_stored(*messages))
    same("seal stores appended messages", _contents(store), messages)
    more = [_plain(first + 2, b"c")]
    _append(store, more[0])
    write = store.writer("orders")
    if write is not None and write(first + 3, b"d"):
        more.append(_plain(first + 3, b"d"))
    store.seal(_stored(*more))
    same("seal stores messages of the writer", _contents(store), messages + more)
    store.discard(first + 3)
    alone = _labelled(first + 4, b"e")
    store.seal(_stored(alone))
    same("seal stores messages that were not appended", _contents(store), [alone])
    store.discard(first + 4)
    _is_empty(store)


def _claims_what_was_discarded(store: ClaimingPublishStore) -> None:
    first, before = store.last_sequence + 1, store.persisted_sequence
    same("persisted_sequence is at most last_sequence", before, store.last_sequence)
    refused, kept = _stored(_plain(first, b"a"), _plain(first + 1, b"b")), _stored(_plain(first + 2, b"c"))
    for stored in (refused, kept):
        store.put(stored)
    same("put does not change persisted_sequence", store.persisted_sequence, before)
    store.replace(first, first + 1, None)
    same("replace does not change persisted_sequence", store.persisted_sequence, before)
    store.discard(first)
    same("discard sets persisted_sequence", store.persisted_sequence, first)
    store.discard(first - 1)
    same("a lower discard does not change persisted_sequence", store.persisted_sequence, first)
    store.discard(first + 2)
    _is_empty(store)
    one = store.next_session(_CLOCK)
    must(one >= _CLOCK, f"next_session({_CLOCK}) returned {one}")
    two = store.next_session(_CLOCK - 1_000_000)
    must(two > one, f"next_session returned {two} after {one}")


def _session_of(store: PublishStore) -> int:
    """Return the number of another logon, with a clock that was set back. 0 without such numbers."""
    return store.next_session(_CLOCK - 1_000_000) if isinstance(store, ClaimingPublishStore) else 0


def _persisted_in(store: PublishStore) -> int:
    return store.persisted_sequence if isinstance(store, ClaimingPublishStore) else 0


def _rises(store: PublishStore, session: int, when: str) -> None:
    if session:
        found = _session_of(store)
        must(found > session, f"next_session returned {found} after {session}, when {when}")


def _fills_up(store: PublishStore) -> None:
    """Put messages like a client, up to the free space that the store reports."""
    messages: list[SampleMessage] = []
    taken, bound = 0, store.bytes_max
    while taken <= min(bound, FILLED_BYTES_MAX):
        message = _labelled(store.last_sequence + 1, bytes(_BODY_BYTES))
        stored = _stored(message)
        if free_bytes(store) < stored.batch.nbytes:
            break
        try:
            store.put(stored)
        except StoreFull as error:
            raise AssertionError(
                f"it raises StoreFull with size_bytes={store.size_bytes} of {bound}"
            ) from error
        messages.append(message)
        taken += stored.batch.nbytes
        bodies, size = len(messages) * _BODY_BYTES, store.size_bytes
        must(size >= bodies, f"it holds bodies of {bodies} bytes with size_bytes={size}: it is never full")
    else:
        must(bound > FILLED_BYTES_MAX, f"it accepted {taken} bytes with bytes_max={bound} and is not full")
    must(len(messages) > 1, f"an empty store with bytes_max={bound} does not accept 2 messages of 1 KiB")
    must(_contents(store) == messages, f"it lost messages after {taken} bytes")
    store.discard(messages[-1].sequence)
    _is_empty(store)


def _three_batches(store: PublishStore) -> tuple[list[SampleMessage], list[SampleMessage]]:
    """Put three batches, settle one partly and replace part of another. Return all messages, and the stored
    ones."""
    first = store.last_sequence + 1
    one = [_plain(first, b"a"), _labelled(first + 1, b"b"), _plain(first + 2, b"c")]
    two = [_labelled(first + 3, b"d"), _plain(first + 4, b"e"), _labelled(first + 5, b"f")]
    three = [_plain(first + 6, b"g"), _labelled(first + 7, b"h")]
    middle = _stored(*two)
    for stored in (_stored(*one), middle, _stored(*three)):
        store.put(stored)
    store.discard(first)
    store.replace(first + 3, first + 5, slice_batch(middle.batch, 1, 3))
    held = one[1:] + two[1:] + three
    same("three batches, one partly settled and one replaced", _contents(store), held)
    return one + two + three, held


def _survives_close(store: PublishStore, make: Make) -> PublishStore:
    _, held = _three_batches(store)
    last, persisted, session = store.last_sequence, _persisted_in(store), _session_of(store)
    store.close()
    store = make()
    _refuses_another(store)
    store.close()
    store = _again(make)
    same("messages survive close", _contents(store), held)
    must(store.last_sequence >= last, "it lost its highest sequence when it was closed")
    same("persisted_sequence survives close", _persisted_in(store), persisted)
    _rises(store, session, "it was closed")
    persisted = store.last_sequence
    store.discard(persisted)
    _is_empty(store)
    store.close()
    store = _again(make)
    same("settled messages stay removed after close", _contents(store), [])
    must(store.last_sequence >= last, "an empty store lost its highest sequence when it was closed")
    if isinstance(store, ClaimingPublishStore):
        same("persisted_sequence of an empty store survives close", store.persisted_sequence, persisted)
    return store


def _survives_the_process(store: PublishStore, make: Make, killed: Kill) -> PublishStore:
    given, held = _three_batches(store)
    last = store.last_sequence
    if isinstance(store, AppendingPublishStore):
        appended = [_plain(last + 1, b"i"), _labelled(last + 2, b"j")]
        for message in appended:
            _append(store, message)
        given, held, last = given + appended, held + appended, last + 2
    persisted, session = _persisted_in(store), _session_of(store)
    killed(store)
    after = _again(make)  # `store` stays referenced: it must not write during garbage collection
    found = _contents(after)
    lost = [message for message in held if message not in found]
    must(not lost, f"it lost messages when its process was killed: {lost!r}")
    strange = [message for message in found if message not in given]
    must(not strange, f"it holds unknown messages after its process was killed: {strange!r}")
    must(after.last_sequence >= last, "it lost its highest sequence when its process was killed")
    found_persisted = _persisted_in(after)
    must(
        found_persisted <= persisted,
        f"its process was killed, and persisted_sequence is {found_persisted} after {persisted}",
    )
    _rises(after, session, "its process was killed")
    after.discard(last)
    _is_empty(after)
    return after


def _again(make: Make) -> PublishStore:
    store = make()
    store.attach(NAME)
    return store


def _refuses_another(store: PublishStore) -> None:
    try:
        store.attach("another")
    except StoreOwnerMismatch:
        return
    raise AssertionError("it holds messages and accepts a client of another name")


def _is_empty(store: PublishStore) -> None:
    found = (store.unpersisted_count(), store.size_bytes)
    same("the store is empty after all messages are settled (messages, bytes)", found, _NOTHING)


def _plain(sequence: int, body: bytes) -> SampleMessage:
    return SampleMessage(sequence, body)


def _labelled(sequence: int, body: bytes) -> SampleMessage:
    return SampleMessage(
        sequence, body, "trades", 60_000 + sequence, f"correlation-{sequence}", f"key-{sequence}"
    )


def _append(store: AppendingPublishStore, message: SampleMessage) -> None:
    sequence, body, topic, expiration_ms, correlation_id, key = message
    store.append(sequence, topic, body, expiration_ms, correlation_id, key)


def _stored(*messages: SampleMessage) -> Stored:
    builder = BatchBuilder()
    for sequence, body, topic, expiration_ms, correlation_id, key in messages:
        builder.add(
            topic,
            body,
            expiration_ms=expiration_ms,
            correlation_id=correlation_id,
            key=key,
            sequence=sequence,
        )
    batch = builder.build(publisher=publisher_id(NAME))
    return Stored(messages[0].sequence, messages[-1].sequence, batch)


def _contents(store: PublishStore) -> Sequence[SampleMessage]:
    found: list[SampleMessage] = []
    for first, last, batch in store.held():
        batch.verify()
        messages = [
            SampleMessage(
                batch.sequence(i),
                batch.body(i),
                batch.topic(i),
                batch.expiration(i) or 0,
                batch.correlation_id(i) or "",
                batch.key(i) or "",
            )
            for i in range(batch.count)
        ]
        ends = (messages[0].sequence, messages[-1].sequence)
        same("first and last sequence of a stored batch", (first, last), ends)
        publishers = set(batch.publishers.tolist())
        same("the publishers of the stored messages", publishers, {publisher_id(NAME)})
        found += messages
    sequences = [message.sequence for message in found]
    same("stored messages are in the order of sequences", sequences, sorted(set(sequences)))
    same("unpersisted_count is the number of stored messages", store.unpersisted_count(), len(found))
    return found
