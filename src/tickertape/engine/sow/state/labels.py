"""Labels of records: the correlation ids that their messages had, by slot."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tickertape.batch import MessageBatch
from tickertape.batch.format import CORRELATION_IDS, I4, I8, Int64s, Labels, offsets_from
from tickertape.engine.limits import sow_label_memory_bytes
from tickertape.engine.sow.state.keys import labels_between

RecordLabels = npt.NDArray[np.object_]
"""Correlation ids in UTF-8, as `bytes`. None: the message had none."""

LABEL_PLACE_BYTES: Final = 4
"""Memory of a row of a column, also without a label."""
_PLACE_BYTES: Final = 8
_NUMBER: Final = np.dtype("<u4")


class LabelColumn:
    """Labels of rows. It grows in place, unlike an array of objects, which NumPy would copy."""

    def __init__(self, rows: int) -> None:
        self._numbers = np.zeros(rows, _NUMBER)
        """Index of the label of each row in `_texts`. 0: none."""
        self._texts: list[bytes | None] = [None]
        self._free = array("I")
        """Indices without a label. Not a list, whose numbers would need 40 bytes each."""
        self.text_bytes = 0
        """Memory of the labels, without the rows."""

    def resize(self, rows: int) -> None:
        """Change the number of rows. New rows have no label."""
        self._numbers.resize(rows)

    def get(self, at: Int64s | slice) -> RecordLabels:
        """Return copies of labels."""
        numbers = self._numbers[at]
        found = no_labels(len(numbers))
        some = numbers.nonzero()[0]
        if len(some):
            texts = self._texts
            found[some] = np.array([texts[number] for number in numbers[some].tolist()], object)
        return found

    def set(self, at: Int64s | slice, labels: RecordLabels | None) -> None:
        """Replace the labels of distinct rows. None: they have none."""
        texts, free = self._texts, self._free
        before = self._numbers[at]
        before = before[before.nonzero()[0]]
        for number in before.tolist():
            text = texts[number]
            texts[number] = None
            self.text_bytes -= 0 if text is None else len(text) + sow_label_memory_bytes
            free.append(number)
        if labels is None or not has_labels(labels):
            if len(before):
                self._numbers[at] = 0
            return
        numbers = []
        for text in labels.tolist():
            if text is None:
                numbers.append(0)
                continue
            if not free:
                free.append(len(texts))
                texts.append(None)
            number = free.pop()
            texts[number] = text
            numbers.append(number)
        self._numbers[at] = numbers
        self.text_bytes += text_bytes(labels)


# -- columns of objects ---------------------------------------------------------------------------------


def no_labels(count: int) -> RecordLabels:
    """Return a column without labels."""
    return np.empty(count, object)


def has_labels(labels: RecordLabels) -> bool:
    """Return whether a column has a label."""
    return any(labels.tolist())


def text_bytes(labels: RecordLabels | None) -> int:
    """Return the memory of the labels of a column, without their places."""
    if labels is None:
        return 0
    texts = [*filter(None, labels.tolist())]
    return sum(map(len, texts)) + sow_label_memory_bytes * len(texts)


def labels_bytes(labels: RecordLabels | None) -> int:
    """Return the memory of a column."""
    return 0 if labels is None else _PLACE_BYTES * len(labels) + text_bytes(labels)


def label_lengths(labels: RecordLabels) -> Int64s:
    """Return the bytes of each label, 0 without one."""
    return np.array([0 if label is None else len(label) for label in labels.tolist()], I8)


def label_memory(labels: RecordLabels) -> Int64s:
    """Return the memory of each label without its place, 0 without one."""
    memory = [0 if label is None else len(label) + sow_label_memory_bytes for label in labels.tolist()]
    return np.array(memory, I8)


def texts_of(labels: RecordLabels | None, count: int) -> list[str | None]:
    """Return the labels of `count` rows as filters see them."""
    if labels is None:
        return [None] * count
    return [None if label is None else label.decode() for label in labels.tolist()]


def joined_labels(columns: Sequence[RecordLabels | None], counts: Sequence[int]) -> RecordLabels | None:
    """Return columns as one. A column of `counts` rows may be absent."""
    if all(column is None for column in columns):
        return None
    pairs = zip(columns, counts, strict=True)
    return np.concatenate([no_labels(count) if column is None else column for column, count in pairs])


# -- encoded columns ------------------------------------------------------------------------------------


def labels_of(batch: MessageBatch, rows: Int64s) -> RecordLabels | None:
    """Return the labels of messages, ascending. None: they have none."""
    column = _column_of(batch)
    if column is None or not len(rows):
        return None
    low, high = int(rows[0]), int(rows[-1]) + 1
    if high - low == len(rows):
        return decoded(column, low, high)
    text = memoryview(column.text)
    ends = column.offsets[rows + 1].tolist()
    pairs = zip(column.offsets[rows].tolist(), ends, strict=True)
    return np.array([bytes(text[start:end]) or None for start, end in pairs], object)


def label_memory_of(batch: MessageBatch, rows: Int64s) -> Int64s:
    """Return the memory that the label of each message needs without its place, 0 without one."""
    column = _column_of(batch)
    if column is None:
        return np.zeros(len(rows), I8)
    lengths = (column.offsets[rows + 1] - column.offsets[rows]).astype(I8)
    return lengths + sow_label_memory_bytes * (lengths > 0)


def label_of(batch: MessageBatch, row: int) -> bytes | None:
    """Return the label of one message."""
    if not batch.columns & CORRELATION_IDS:
        return None
    return labels_between(batch.correlation_ids, row, row + 1)[0] or None


def _column_of(batch: MessageBatch) -> Labels | None:
    return batch.correlation_ids if batch.columns & CORRELATION_IDS else None


def decoded(column: Labels | None, low: int, high: int) -> RecordLabels:
    """Return the labels of the rows from `low` to `high` of an encoded column."""
    return np.array([label or None for label in labels_between(column, low, high)], object)


def encoded(labels: RecordLabels) -> Labels | None:
    """Return a column in its encoded form. None without labels."""
    texts = [label or b"" for label in labels.tolist()]
    text = b"".join(texts)
    if not text:
        return None
    return Labels(offsets_from(np.fromiter(map(len, texts), I4, len(texts))), text)
