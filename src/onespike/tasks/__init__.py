"""What a batch is and how it is scored."""

from onespike.tasks.base import Task
from onespike.tasks.classification import Classification, Paired
from onespike.tasks.coco import SCENES, Coco, category_ids, list_coco, read_coco
from onespike.tasks.detection import Detection, average_precision, matched
from onespike.tasks.images import Item, Items, batches, limit, list_images, read_image

__all__ = [
    "SCENES",
    "Classification",
    "Coco",
    "Detection",
    "Item",
    "Items",
    "Paired",
    "Task",
    "average_precision",
    "batches",
    "category_ids",
    "limit",
    "list_coco",
    "list_images",
    "matched",
    "read_coco",
    "read_image",
]
