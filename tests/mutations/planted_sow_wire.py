"""Planted defects of queries and deletes of records on the wire.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_COMMANDS = "unit/wire/test_sow_command.py"

SOW_WIRE_MUTATIONS: Final = (
    Mutation(
        "a delete of records by keys and a filter is accepted",
        "wire/sow_command.py",
        "    if count != 1:\n",
        "    if count < 1:\n",
        (_COMMANDS, "property/test_sow_command.py"),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a delete of records by keys of any length is accepted",
        "wire/sow_command.py",
        "    if size > sow_keys_bytes_max:\n",
        "    if size < 0:\n",
        (_COMMANDS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "any number of keys is decoded before their bound",
        "wire/commands.py",
        "Keys = Annotated[tuple[str, ...], msgspec.Meta(max_length=sow_keys_per_command_max)]\n",
        "Keys = Annotated[tuple[str, ...], msgspec.Meta(max_length=1 << 31)]\n",
        ("unit/wire/test_query_frames.py", _COMMANDS),
        promise="invariant 20",
        tier="unit",
    ),
    Mutation(
        "an unknown restriction of a delete of records is ignored",
        "wire/sow_command.py",
        "omit_defaults=True, forbid_unknown_fields=True):\n",
        "omit_defaults=True):\n",
        (_COMMANDS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "marks of fewer records than messages are accepted",
        "wire/sow_command.py",
        "    if len(marks) != count * record_mark_bytes:\n",
        "    if len(marks) > count * record_mark_bytes:\n",
        (_COMMANDS,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "records without a batch are accepted",
        "wire/commands.py",
        "CARRIES_BATCH: Final = (Publish, Deliver, Stage, Records)",
        "CARRIES_BATCH: Final = (Publish, Deliver, Stage)",
        ("unit/wire/test_query_frames.py",),
        promise="R12",
        tier="unit",
    ),
)
