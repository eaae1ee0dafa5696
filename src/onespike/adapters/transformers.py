"""`transformers:ID` from the hub and `transformers:DIR` from a folder that `save_pretrained` wrote."""

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.adapters.base import LoadedModel, Reading, Source, cannot_download, classifier
from onespike.adapters.checkpoints import each_tensor, read_checkpoint, refuse_differences, refuse_types
from onespike.adapters.detection import padded, processed
from onespike.adapters.preprocessing import describe_normalization
from onespike.errors import LoadError, UsageError, first_line, out_of_memory, require
from onespike.runtime.validated import understood
from onespike.tasks import Embedding, Language, Task

RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
DETECTS, SEGMENTS = "AutoModelForObjectDetection", "AutoModelForUniversalSegmentation"
WRITES, EMBEDS, CLASSIFIES = "AutoModelForCausalLM", "AutoModel", "AutoModelForImageClassification"
HEADS = {
    DETECTS: ("ForObjectDetection",),
    SEGMENTS: ("ForUniversalSegmentation", "ForInstanceSegmentation"),
    WRITES: ("ForCausalLM", "LMHeadModel"),
    EMBEDS: ("ForMaskedLM", "ForPreTraining"),
}
"""The class that builds a network → the endings of its architectures' names; all others classify."""
LENGTH, SENTENCE = 512, 256  # default limit of tokens per window, and per embedded text
POOLING, FIRST = Path("1_Pooling") / "config.json", "pooling_mode_cls_token"
"""The file in which sentence-transformers states the pooling, and its word for the first state."""


def has_weights(name: str) -> bool:
    return any(Path(name).glob("*.safetensors"))


def load(name: str, source: Source) -> LoadedModel:
    """Load a network with its image processor or tokenizer; code from the hub is never trusted."""
    spec = source.spec
    library = require("transformers", "transformers", spec)
    where: dict[str, Any] = {"trust_remote_code": False, "local_files_only": Path(name).is_dir()}
    with _quiet(library), _failures(spec, name):
        config = library.AutoConfig.from_pretrained(name, **where)
        kind = _kind(library, spec, config)
        reads = kind in (WRITES, EMBEDS)
        reader = library.AutoTokenizer if reads else library.AutoImageProcessor
        processor = reader.from_pretrained(name, **where)
        build = partial(_build, library, kind, name, source, config, where)
        try:
            model: Any = build(source.attention or "sdpa")
        except ValueError as error:
            if source.attention or "scaled_dot_product_attention" not in str(error):
                raise
            model = build("eager")
        parts, attention = [model.config if reads else config, processor], model.config._attn_implementation
        if reads:
            reading, task = text_reader(spec, processor, model, kind == WRITES)
        else:
            reading, task = _image_reader(spec, kind, config, processor, model)
        if kind == WRITES:
            parts.append(model.generation_config)
        elif kind == EMBEDS:
            model = Pooled(model, takes_first(Path(name)))

    def save(folder: Path) -> None:
        for part in parts:
            part.save_pretrained(folder)
        if isinstance(model, Pooled):
            (folder / POOLING).parent.mkdir(exist_ok=True)
            (folder / POOLING).write_text(json.dumps({FIRST: model.first}), encoding="utf-8")

    return LoadedModel(model, spec, reading, task, source.describe(), attention, save_configuration=save)


def _kind(library: Any, spec: str, config: Any) -> str:
    """Return the class that builds a network; refuse a decoder without its language head, which nothing can score."""
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    kind = next((kind for kind, endings in HEADS.items() if architecture.endswith(endings)), CLASSIFIES)
    if kind is CLASSIFIES and architecture.endswith("Model") and getattr(config, "vocab_size", None):
        kind = EMBEDS
    writes, masks = library.MODEL_FOR_CAUSAL_LM_MAPPING, library.MODEL_FOR_MASKED_LM_MAPPING
    if kind == EMBEDS and type(config) in writes and type(config) not in masks:
        raise LoadError(
            f"{spec}: {architecture} has no language head, and nothing can be scored. "
            f"Save the network with its head, a {writes[type(config)].__name__}."
        )
    return kind


def _image_reader(spec: str, kind: str, config: Any, processor: Any, model: Any) -> tuple[Reading, Task]:
    labels, words = config.id2label, _describe(processor)
    names = tuple(labels[i] for i in sorted(labels)) if labels else None

    def transform(image: Any) -> Tensor:
        with understood(f"{spec}: the image processor", "Mend its preprocessor_config.json."):
            pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    if kind == CLASSIFIES:
        return Reading(transform, words), classifier(names)
    parameters = inspect.signature(type(model).forward).parameters

    def collate(inputs: list[Tensor]) -> dict[str, Tensor]:
        return {name: x for name, x in padded(inputs).items() if name in parameters}

    return Reading(transform, words, collate), processed(processor, kind == SEGMENTS, names)


class Tokens:
    """A tokenizer of transformers as a task needs it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return tokens, with those that open a text."""
        return list(self.tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int], bare: bool = False) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=bare))


class Pooled(nn.Module):
    """An encoder whose last states are averaged over the tokens of each text, or whose first state is taken."""

    def __init__(self, encoder: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.encoder, self.first = encoder, first

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        states: Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **others
        ).last_hidden_state
        if self.first:
            return states[:, 0]
        real = attention_mask.unsqueeze(-1).to(states.dtype)
        return (states * real).sum(1) / real.sum(1).clamp(min=1)


def text_reader(
    spec: str, tokenizer: Any, model: Any, writes: bool, length: int | None = None
) -> tuple[Reading, Task]:
    """Return reading and task for a number of tokens: windows of a text for a network that writes, else texts."""
    size = int(model.get_input_embeddings().num_embeddings)
    if len(tokenizer) > size:
        raise LoadError(
            f"{spec}: its tokenizer has {len(tokenizer)} tokens, and the network knows {size}. "
            "Put the tokenizer that the network was trained with into the folder."
        )
    context, arguments = _context(model, tokenizer), inspect.signature(type(model).forward).parameters
    if length is None:
        length = min(context, LENGTH if writes else SENTENCE)
    elif not 2 <= length <= context:
        raise UsageError(f"length= must be from 2 to {context}, the context of {spec}, not {length}.")

    def windows(ids: list[Tensor]) -> dict[str, Any]:
        return {"input_ids": torch.stack(ids), "use_cache": False}  # nothing is generated

    def padded(texts: list[str]) -> dict[str, Any]:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return {name: value for name, value in batch.items() if name in arguments}

    task: Task = Language(Tokens(tokenizer), length, context) if writes else Embedding()
    words = f"its own tokenizer, {'windows of' if writes else 'texts of at most'} {length} tokens"
    of_length = partial(text_reader, spec, tokenizer, model, writes)
    return Reading(lambda text: text, words, windows if writes else padded, length, of_length), task


def _context(model: Any, tokenizer: Any) -> int:
    """Return the longest input of a network, as far as its configuration and its tokenizer state it."""
    names = ("max_position_embeddings", "n_positions", "seq_length")
    limits = [int(limit) for name in names if (limit := getattr(model.config, name, None))]
    # positions of RoBERTa and related networks begin after the number of the padding token
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None) if isinstance(module, nn.Embedding) else None
        if name.endswith("position_embeddings") and padding is not None:
            limits.append(module.num_embeddings - padding - 1)
    return min([*limits, int(tokenizer.model_max_length)])


def takes_first(folder: Path) -> bool:
    """Return whether a folder of sentence-transformers takes the first state of a text instead of the mean."""
    file = folder / POOLING
    try:
        return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get(FIRST))
    except (OSError, ValueError, AttributeError) as error:
        raise LoadError(f"{file}: it does not say how states are pooled. Correct or remove it.") from error


def _build(
    library: Any, kind: str, name: str, source: Source, config: Any, where: dict[str, Any], attention: str
) -> nn.Module:
    automatic, settings = getattr(library, kind), dict[str, Any](attn_implementation=attention)
    if kind == EMBEDS and type(config) in library.MODEL_MAPPING:
        constructor = library.MODEL_MAPPING[type(config)].__init__
        if "add_pooling_layer" in inspect.signature(constructor).parameters:  # which only pre-training used
            settings["add_pooling_layer"] = False
    if source.random:
        model: nn.Module = automatic.from_config(config, dtype=torch.float32, **settings)
        return model
    settings |= dict(config=config, dtype="float32", output_loading_info=True)
    settings["ignore_mismatched_sizes"] = True  # so that they are reported, and refused below
    if source.file:
        # Through the library, not load_state_dict: it knows the names in files of its older releases.
        tensors = read_checkpoint(source.file)
        with torch.device("meta"):
            architecture = type(automatic.from_config(config))
        model, report = architecture.from_pretrained(None, state_dict=tensors, **settings)
    else:
        model, report = automatic.from_pretrained(name, use_safetensors=True, **where, **settings)
    # transformers fills missing tensors with random numbers and continues; a converted network must not.
    # Extra tensors (heads for other tasks) are common in published checkpoints.
    missing, reshaped, extra = (sorted(report[f"{k}_keys"]) for k in ("missing", "mismatched", "unexpected"))
    place = str(source.file) if source.file else source.spec
    refuse_differences(place, model, missing, extra if source.file else [], reshaped)
    if source.file:
        refuse_types(place, tensors.items(), model.state_dict())
    for file in sorted(Path(name).glob("*.safetensors")) if source.pretrained else ():
        refuse_types(str(file), each_tensor(file), model.state_dict())
    return model


@contextmanager
def _failures(spec: str, name: str) -> Iterator[None]:
    """Turn the library's many exceptions into one that ends with the remedy."""
    try:
        yield
    except (LoadError, UsageError):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise LoadError(
                f"{spec}: its weights do not fit into memory ({first_line(error)}). "
                "Read them one block at a time: device_map=blocks."
            ) from error
        if Path(name).is_dir():
            raise LoadError(
                f"{spec}: the folder holds no network that can be loaded ({first_line(error)}). Write one there with "
                "save_pretrained, of the model and of its image processor or tokenizer."
            ) from error
        raise cannot_download(spec, error) from error


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Switch off progress bars and advice: loading is quick beside converting."""
    logging = library.utils.logging
    with ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


def _describe(processor: Any) -> str:
    parts = []
    if getattr(processor, "do_resize", False):
        resample = getattr(processor, "resample", None)
        resampling = f" {RESAMPLINGS[int(resample)]}" if resample is not None else ""
        parts.append(f"resize {_size(processor.size)}{resampling}")
    if getattr(processor, "do_center_crop", False):
        parts.append(f"center crop {_size(processor.crop_size)}")
    if getattr(processor, "do_normalize", False):
        parts.append(describe_normalization(processor.image_mean, processor.image_std))
    return ", ".join(parts) or "none"


def _size(size: Any) -> str:
    """`{'height': 32, 'width': 32}` → 32×32, `{'shortest_edge': 256}` → 256."""
    sides = (dict(size).get(key) for key in ("height", "width", "shortest_edge"))
    return "×".join(str(side) for side in sides if side is not None)
