"""Class folders → the network's class numbers: by name, WordNet id or number, never by their order."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import defaultdict
from collections.abc import Sequence

from onespike.errors import DataError
from onespike.tasks.inputs import Items


def match_classes(items: Items, names: Sequence[str] | None, ids: Sequence[str] | None = None) -> Items:
    """Return the same images, labeled with the network's class numbers; images without named folders stay unchanged.

    Case, underscores and hyphens do not matter, and one synonym of a name like `tench, Tinca tinca` is enough. A folder
    that is no class of the network, could be several, or is the same class as another is refused. `ids` are other unique
    names of the same classes, such as WordNet ids.
    """
    folders = items.class_names
    if folders is None or (names is not None and folders == tuple(names)):
        return items
    used = sorted({folders[item.label] for item in items if item.label is not None})
    if names is None and not used:
        return items
    if names is None:
        raise DataError(
            f"{items.source}: the class names of the network are not known, so that the folder {used[0]!r} cannot be "
            "matched. Name each folder by the number of its class."
        )
    numbers = _numbers(used, names, ids or (), items.source)
    labeled = (
        item if item.label is None else dataclasses.replace(item, label=numbers[folders[item.label]])
        for item in items
    )
    return dataclasses.replace(items, items=tuple(labeled), class_names=tuple(names))


def _numbers(folders: Sequence[str], names: Sequence[str], ids: Sequence[str], source: str) -> dict[str, int]:
    # What a folder may be called, most certain first: name or id, normalized name, synonym.
    tables = [defaultdict[str, set[int]](set) for _ in range(3)]
    for number, name in [*enumerate(names), *enumerate(ids)]:
        tables[0][name].add(number)
        tables[1][_plain(name)].add(number)
        for synonym in name.split(","):
            tables[2][_plain(synonym)].add(number)
    numbers: dict[int, str] = {}
    for folder in folders:
        classes = next((t[key] for t in tables for key in (folder, _plain(folder)) if key in t), set[int]())
        if len(classes) > 1:
            several = " and ".join(map(str, sorted(classes)))
            raise DataError(
                f"{source}: the folder {folder!r} could be the classes {several} of the network. "
                "Name all folders by the numbers of their classes."
            )
        if not classes:
            raise _no_class(folder, names, source, not ids)
        (number,) = classes
        if (twin := numbers.setdefault(number, folder)) != folder:
            raise DataError(
                f"{source}: the folders {twin!r} and {folder!r} name the same class of the network, {names[number]!r}. "
                "Merge them."
            )
    return {folder: number for number, folder in numbers.items()}


def _plain(name: str) -> str:
    """Normalize a name: lower case, words separated by one space.

    >>> _plain("Great_White-Shark, n.")
    'great white shark n.'
    """
    return " ".join(re.split(r"[\s_,-]+", name.lower())).strip()


def _no_class(folder: str, names: Sequence[str], source: str, no_ids: bool) -> DataError:
    close = difflib.get_close_matches(_plain(folder), [_plain(n) for n in names], n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    if no_ids and re.fullmatch(r"n\d{8}", folder):
        hint = " WordNet ids of ImageNet's classes are known where timm is installed: pip install 'onespike[timm]'."
    return DataError(
        f"{source}: the folder {folder!r} is none of the {len(names)} classes of the network, which begin with "
        f"{names[0]!r}.{hint} Name each folder by its class, or all of them by the numbers of their classes."
    )
