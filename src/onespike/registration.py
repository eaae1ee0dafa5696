"""After `import onespike`, transformers' `AutoModel.from_pretrained` loads converted networks; neither library imports the other."""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_QUANTIZERS = "transformers.quantizers.auto"


class _Registration:
    """Finds this module of transformers as Python does, and registers onespike there once it has run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _QUANTIZERS else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                execute(module)
                _register()

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def _register() -> None:
    with suppress(ImportError):  # of a transformers without custom quantizers
        import_module("onespike.runs.quantizer")


if _QUANTIZERS in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _Registration)
