"""Planted defects of queries of records: position, order, filter and frames.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_PROGRAMS = "property/test_sow_query.py"
_UNIT = "unit/engine/sow/query/"


def _of_query(
    name: str, module: str, old: str, new: str, *tests: str, promise: str = "invariant 1"
) -> Mutation:
    """Return a defect of a module of queries."""
    files = tuple(_UNIT + test for test in tests)
    return Mutation(name, f"engine/sow/query/{module}.py", old, new, (*files, _PROGRAMS), promise, "unit")


def _of_queue(name: str, module: str, old: str, new: str, test: str = "test_queue_queries.py") -> Mutation:
    """Return a defect of queries of queues."""
    return Mutation(
        name,
        f"engine/{module}.py",
        old,
        new,
        (f"unit/engine/sow/{test}",),
        promise="behaviour 49",
        tier="unit",
    )


SOW_QUERY_MUTATIONS: Final = (
    _of_query(
        "a query has changes above its position",
        "record_copy",
        "            self._undo(changes.earlier(number))\n",
        "",
        "test_query.py",
    ),
    _of_query(
        "a query undoes the earliest change of a record first",
        "record_copy",
        "in reversed(changes.needed_by(self._scan)):",
        "in changes.needed_by(self._scan):",
        "test_record_copy.py",
    ),
    _of_query(
        "a query by keys misses records that were deleted before their keys were looked up",
        "record_copy",
        "            self._add_removed(earlier, self._wanted)\n",
        "            pass\n",
        "test_record_copy.py",
    ),
    _of_query(
        "records with equal values have no order",
        "order",
        '        return list(map("".join, zip(values, self._ranks(rows), strict=True)))\n',
        "        return values\n",
        "test_query.py",
    ),
    _of_query(
        "ties are ordered by sequence before the publisher",
        "order",
        "        columns[:, 1] = self._publishers.ids(rows.publishers)\n"
        "        columns[:, 2] = rows.sequences\n",
        "        columns[:, 2] = self._publishers.ids(rows.publishers)\n"
        "        columns[:, 1] = rows.sequences\n",
        "test_query.py",
    ),
    _of_query(
        "texts compare by UTF-16",
        "order",
        'value.encode("utf-8", "surrogatepass")',
        'value.encode("utf-16-be", "surrogatepass")',
        "test_order.py",
    ),
    _of_query(
        "integers compare as the nearest floats",
        "order",
        "        key += _difference(int(value) - int(nearest))\n",
        "        key += _difference(0)\n",
        "test_order.py",
    ),
    _of_query(
        "a text is before each text that starts with it and a NUL",
        "order",
        'data.replace(b"\\x00", b"\\x00\\xff")',
        "data",
        "test_order.py",
    ),
    _of_query(
        "the filter sees the selected body",
        "query",
        "passed = source.filter.passing(piece.rows, bodies, piece.keys)",
        "passed = source.filter.passing(piece.rows, [body[:9] + b'}' for body in bodies], piece.keys)",
        "test_record_filter.py",
    ),
    _of_query(
        "a merge returns rows before lower ones of other runs are known",
        "runs",
        "bound = end if bound is None else min(bound, end)",
        "bound = end if bound is None else max(bound, end)",
        "test_runs.py",
    ),
    _of_query(
        "a small part of the result keeps the last rows",
        "runs",
        "        keys = keys[: self._limit]\n",
        "        keys = keys[-self._limit :]\n",
        "test_runs.py",
        "test_query.py",
    ),
    _of_query(
        "a merge sorts more rows with each run",
        "runs",
        "        while sum(counts) > query_merge_rows_max and",
        "        while not counts and",
        "test_runs.py",
        promise="R14",
    ),
    _of_query(
        "a query pins blocks of records that do not match",
        "query",
        "                copy.pin.narrow(views_of.get(number, found.rows.views[:0]))\n",
        "                pass\n",
        "test_query.py",
        promise="R14",
    ),
    _of_query(
        "records of a frame above the limit are dropped",
        "result",
        "            self._waiting = found.part(end, None)\n",
        "            self._waiting = None\n",
        "test_result.py",
    ),
    _of_query(
        "records of a result are taken from the chunk before theirs",
        "result_rows",
        'self._ends.searchsorted(numbers, "right")',
        'self._ends.searchsorted(numbers, "left")',
        "test_result_rows.py",
    ),
    _of_query(
        "all blocks that only a result kept are freed in one step",
        "record_copy",
        "            memory += self.pin.release()\n",
        "            self.pin.release()\n",
        "test_record_copy.py",
        promise="R14",
    ),
    _of_queue(
        "a query of a queue has a part of a commit that is beyond its position",
        "queues/state/queue",
        "        ready.remove_range(end, _END)",
        "        ready.remove_range(_END, _END)",
    ),
    _of_queue(
        "a query of a queue ends in the middle of a later transaction",
        "sow/feed",
        "self._selection.begin(self.position, self.needed, self)",
        "self._selection.begin(self.position, self.queues[0].queue.considered if self.queues else 0, self)",
    ),
    _of_queue(
        "a query of a queue returns messages that are too old",
        "queues/state/queue",
        "            ready -= self.expiry.overdue(ready, wall)",
        "            ready -= BitMap64()",
    ),
    _of_queue(
        "a message of several queues is in any order, so parts of a result repeat it",
        "sow/query/runs",
        "order = np.lexsort((numbers, positions))",
        "order = np.lexsort((positions ^ numbers, positions))",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a query of a queue starts before messages that were persisted at the request",
        "queues/registry",
        "if queue.considered >= waiter.needed or worker.failure is not None:",
        "if True:",
    ),
    _of_queue(
        "a query that waits for a queue starts with its credit",
        "sow/queries",
        "if feed not in self._early and not feed.late:",
        "if feed not in self._early:",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a query of a queue waits for the fold of SOW topics",
        "sow/queries",
        "elif not feed.needs_fold:",
        "elif False:",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a stopped queue ends the query of a pattern",
        "sow/selection",
        "if failure is not None and self._named:",
        "if failure is not None:",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a query of the name of a queue that has stopped meanwhile is empty",
        "sow/selection",
        "if failure is not None and self._named:",
        "if False:",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a pattern ends with the error of a stopped queue at the request",
        "sow/checks",
        "            queues.permit(session, worker)\n",
        "            queues.check(session, [worker], None)\n",
        "test_queue_patterns.py",
    ),
    _of_queue(
        "a query of a queue reads messages that retention removes",
        "sow/queue_copy",
        "return int(self._left.min()) if self._left else None",
        "return None",
    ),
    _of_queue(
        "the messages of a queue are not counted as memory of results",
        "sow/queue_copy",
        "        self._count(blocks.used_bytes - before)\n",
        "",
    ),
    _of_queue(
        "the copied messages of one query have no limit",
        "sow/queue_copy",
        "if self.nbytes > queue_query_bytes_max:",
        "if False:",
    ),
    _of_queue(
        "a query of a queue with top_n counts only copied messages",
        "sow/query/query",
        "            self.matches += self._copies[number].uncopied\n",
        "",
    ),
    _of_queue(
        "the filter of a query of a queue sees the time of its steps",
        "sow/queue_copy",
        "content.matching_rows(batch, rows, self._constants)",
        "content.matching_rows(batch, rows)",
    ),
    Mutation(
        "a filter on generated keys loses the messages after a query",
        "engine/sow/checks.py",
        "        _check_follow(content, topics)\n",
        "        pass\n",
        ("unit/engine/sow/test_query_refusals.py",),
        promise="behaviour 51",
        tier="unit",
    ),
    Mutation(
        "a frame has records and messages of a queue, so that records have the name of the queue",
        "engine/sow/query/result.py",
        "                end = min(end, self._of_one_kind(parts, found))\n",
        "                pass\n",
        ("integration/test_queue_queries.py",),
        promise="behaviour 49",
        tier="integration",
    ),
)
