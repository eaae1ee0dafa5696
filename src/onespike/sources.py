"""Where networks come from: each adapter's prefix in MODEL, and the form of what follows it.

The file of that name in `adapters/` has `load(name, source)`. It may have `names()`, where they can be counted, and
`has_weights(name)`, where a name may stand for its weights, too.
"""

SOURCES = {
    "timm": "NAME",
    "torchvision": "NAME",
    "transformers": "ID-OR-DIR",
    "detectron2": "CONFIG",
    "bundled": "NAME",
    "python": "FILE.py:FACTORY",
}


def forms() -> str:
    *most, last = (f"{prefix}:{form}" for prefix, form in SOURCES.items())
    return f"{', '.join(most)} or {last}"
