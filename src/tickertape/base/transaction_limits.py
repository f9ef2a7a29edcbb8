"""Owns every bound of transactions, by name, with its unit last.

Must never be repeated elsewhere as a number.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import GIB, MIB, frame_bytes_max

staged_bytes_max_default: Final = 16 * GIB
"""What all that is staged may take on disk, unless configured."""
transaction_bytes_max_default: Final = 4 * GIB
"""What one transaction may take on disk, unless configured: the log has to hold it in one segment."""
staged_age_seconds_default: Final = 3600.0
"""How long something stays staged that nobody adds to or commits, unless configured."""
staged_age_seconds_min: Final = 1.0
"""The least that can be configured."""
transaction_bytes_min: Final = 1 * MIB
"""The least that can be configured, for one transaction and for all."""
staged_parts_max: Final = 4_096
"""Parts that are staged at a time, of all transactions."""
transaction_parts_max: Final = 1_024
"""Parts of one transaction that are committed together."""
staging_files_open_max: Final = 64
"""Files of parts that are written and open at a time; those of a commit are open too while it is made."""
commit_retry_seconds: Final = 0.02
"""A client whose commit met a lost connection looks so often for another one."""
commits_waiting_max: Final = 8_192
"""Commits that were asked for and are not answered yet, of all connections."""
commits_waiting_each_max: Final = 1_024
"""The same of one connection."""
staged_memory_bytes_max: Final = 256 * MIB
"""What of transactions that are being committed is in memory as it was read; the rest of them is mapped."""
staging_unwritten_bytes_max: Final = 64 * MIB
"""What waits to be written to staging files: who brings more is not read from until it is."""
staging_jobs_max: Final = 1_024
"""Blocks, feet and aborts that wait for the disk of staging files, of all connections: a foot is three
syncs, however small its part is, an abort one. Who brings more is not read from."""
transaction_batches_max: Final = 16_384
"""Batches that are staged for one transaction: each becomes a commit of its own in the log, and all of
a part are looked at in one turn of the event loop."""
transaction_name_bytes_max: Final = 255
"""Of each text that names a transaction or a part of one, in UTF-8."""
transaction_empty_number_max: Final = 10**17 - 1
"""The highest number to which a commit without parts may bring a space: nine tenths of the numbers are left.
A space at its end takes no transaction any more."""
transaction_names_each_max: Final = 16_384
"""Names of committed transactions that are known of one publisher; those of a space need one place
a space."""
transaction_names_max: Final = 131_072
"""Such names of all publishers: beyond it the publisher with most of them loses its oldest."""
transaction_publishers_max: Final = 16_384
"""Publishers of which such names are known."""
transaction_spaces_max: Final = 65_536
"""Spaces of which the highest committed number is known."""
block_abort_seconds_max: Final = 1.0
"""How long a block that raised waits until the server has dropped what was staged."""
client_transaction_bytes_max: Final = 64 * MIB
"""What a transaction of a client gathers in memory before its commit, unless it is told another bound."""
stage_frame_bytes: Final = 1 * MIB
"""About what a client puts into one frame that it stages."""

assert stage_frame_bytes < frame_bytes_max
assert commits_waiting_each_max < commits_waiting_max
assert transaction_names_each_max <= transaction_names_max
assert 8 * transaction_publishers_max <= transaction_names_max  # so many nobody else makes forgotten
