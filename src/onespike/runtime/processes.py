"""Several processes that share one job, as `accelerate launch` or `torchrun` starts them.

Each takes every n-th batch, and the results are merged. All exchanges have one form, so a process that fails
can send its error in place of its next result: then all of them end and none waits. torch is imported
only where there are several processes: help pages do not need it.
"""

import atexit
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from onespike.errors import OnespikeError, UsageError, first_line, out_of_memory

T = TypeVar("T")

PATIENCE = timedelta(days=1)  # how long a process waits for a slower one; a dead one is noticed at once


class Processes:
    """This process, number `rank` of `count` that share the work; 0 is the one that prints and writes files."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self.ended = False
        self.is_main = rank == 0
        self.part = rank, count  # this process's batches: every `count`-th from `rank` on

    def exchange(self, mine: T) -> list[T]:
        """Return the results of all processes in order; if one failed, raise its error in all of them."""
        if self.count == 1:
            return [mine]
        results = self._gather(mine, None)
        if errors := [error for _, error in results if error is not None]:
            raise errors[0]
        return [value for value, _ in results]

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """Let all processes end this block together or fail together."""
        self.ended = False
        try:
            yield
        except Exception as error:
            if self.count > 1 and not self.ended:
                # errors of the user as they are, others with their traceback
                plain = isinstance(error, (OnespikeError, OSError)) or out_of_memory(error)
                lines = "".join(traceback.format_exception(error))
                self._gather(None, error if plain else RuntimeError(f"process {self.rank} failed:\n{lines}"))
            raise
        self.exchange(None)

    def wait(self) -> None:
        """Wait for all processes; a launcher stops the others as soon as one ends with an error."""
        if self.count > 1:
            import torch

            with suppress(RuntimeError):  # another one is gone, which is no reason to stay
                torch.distributed.barrier()

    def _gather(self, value: Any, error: Exception | None) -> list[tuple[Any, Exception | None]]:
        import torch

        results: list[Any] = [None] * self.count
        try:
            torch.distributed.all_gather_object(results, (value, error))
        except RuntimeError as lost:
            self.ended = True
            raise OnespikeError(
                f"process {self.rank}: another process ended before its work was done. "
                "See its message, and start all processes again."
            ) from lost
        self.ended = any(failure is not None for _, failure in results)
        return results


ALONE = Processes()


def launched() -> Processes:
    """Return the processes that a launcher started, according to the environment; alone without a launcher."""
    try:
        count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    except ValueError as error:
        raise UsageError(
            f"RANK and WORLD_SIZE must be numbers ({error}). They are set by accelerate launch and torchrun."
        ) from error
    if count == 1:
        return ALONE
    import torch

    if torch.cuda.is_available():  # `--device cuda` then means this process's GPU
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    if not torch.distributed.is_initialized():
        try:
            torch.distributed.init_process_group("gloo", timeout=PATIENCE)
        except (ValueError, RuntimeError) as error:
            raise UsageError(
                f"WORLD_SIZE is {count}, and the other processes cannot be reached ({first_line(error)}). "
                "Start them with accelerate launch, or unset WORLD_SIZE."
            ) from error
        # the exchange's threads, if they still run at the end of the process, abort it
        atexit.register(torch.distributed.destroy_process_group)
    return Processes(rank, count)
