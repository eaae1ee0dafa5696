"""With ONESPIKE_PREBUILT=1 a wheel holds compiled kernels and is made for one platform; otherwise nothing is compiled."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
PREBUILT = os.environ.get("ONESPIKE_PREBUILT") == "1"


class BuildKernels(build_py):
    """Compile the kernels into the package that is built, never into the sources."""

    def run(self) -> None:
        super().run()
        if not PREBUILT or self.editable_mode:
            return
        where = HERE / "src" / "onespike" / "kernels" / "compiler.py"
        spec = importlib.util.spec_from_file_location("compiler", where)
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            sys.exit("ONESPIKE_PREBUILT=1 needs a C compiler, and there is none. Name one with CC.")
        kernels.compile_all(compiler, Path(self.build_lib) / "onespike" / "kernels" / "prebuilt")


class Binary(Distribution):
    """A distribution of one platform, if it holds compiled kernels."""

    def has_ext_modules(self) -> bool:
        return PREBUILT or super().has_ext_modules()


class AnyPython(bdist_wheel):
    """The kernels do not use Python's API, so that one wheel serves every Python 3 of its platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": BuildKernels, "bdist_wheel": AnyPython}, distclass=Binary)
