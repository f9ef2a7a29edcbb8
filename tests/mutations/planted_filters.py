"""Planted defects of filters, payloads and subscriptions.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

FILTER_MUTATIONS: Final = (
    Mutation(
        "a filter from the cache has the positions of another filter",
        "filter/language/shapes.py",
        "        return at + self.shifts[bisect_left(self.places, at)]\n",
        "        return at\n",
        ("unit/filter/language/test_shapes.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "the cache of parsed filters has no maximum",
        "filter/language/shapes.py",
        "@lru_cache(maxsize=filter_shapes_max)",
        "@lru_cache(maxsize=None)",
        ("unit/filter/language/test_shapes.py",),
        promise="R13",
        tier="unit",
    ),
    Mutation(
        "the prefix of a removed filter stays in the index for good",
        "filter/index/predicates.py",
        "                same[prefix].remove(row)\n",
        "                pass\n",
        ("unit/filter/index/test_predicates.py",),
        promise="R13",
        tier="unit",
    ),
    Mutation(
        "prefixes are tested one by one for each value",
        "filter/index/predicates.py",
        "        if self._prefixes:\n",
        "        if False:\n",
        ("unit/filter/index/test_predicates.py",),
        promise="R13",
        tier="unit",
    ),
    Mutation(
        "an exception of a filter reaches the engine",
        "filter/compiler/compile.py",
        'Exception as error:",\n        "            defect(error)",\n        "            unr',
        'KeyError as error:",\n        "            defect(error)",\n        "            unr',
        ("integration/test_filter_defects.py",),
        promise="R12",
        tier="integration",
    ),
    Mutation(
        "an exception of a constant reaches the caller of the compiler",
        "filter/compiler/analyse.py",
        "        except Exception as error:\n            text = DEFECTS.note(error)\n            raise self",
        "        except KeyError as error:\n            text = DEFECTS.note(error)\n            raise self",
        ("unit/filter/test_contained_errors.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "STRPTIME accepts a format with a repeated directive",
        "filter/compiler/analyse.py",
        'once=node.name == "STRPTIME"',
        'once=node.name == "STRFTIME"',
        ("unit/filter/test_contained_errors.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "an index forgets the other filters when one raises",
        "filter/index/search.py",
        "            aside = set(range(len(bodies)))\n",
        "            aside = set()\n",
        ("unit/filter/test_contained_errors.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a replace that was answered is undone by an earlier one",
        "engine/commands/subscribe.py",
        "        held.cancel(command.sub_id)\n        if old is not None:",
        "        if old is not None:",
        ("unit/engine/commands/test_replace.py",),
        promise="behaviour 20",
        tier="unit",
    ),
    Mutation(
        "a message refused for its length on a lost connection counts as persisted",
        "client/publishing/server_topics.py",
        " or int(np.diff(batch.offsets).max()) > self.message_bytes_max:",
        ":",
        ("unit/client/publishing/test_server_topics.py",),
        promise="R9",
        tier="unit",
    ),
)
