"""What a batch is and how it is scored."""

from onespike.tasks.base import Task
from onespike.tasks.classification import Classification
from onespike.tasks.images import Item, Items, batches, limit, list_images, read_image

__all__ = ["Classification", "Item", "Items", "Task", "batches", "limit", "list_images", "read_image"]
