"""Tasks: how inputs are read, what a network's output means, and how both networks are scored."""

from onespike.tasks.base import TASKS, Meaning, Metric, Objective, Score, Task, compared, task, task_of
from onespike.tasks.classification import Accuracy, Classification, match_classes
from onespike.tasks.coco import Coco, category_ids, list_coco, read_coco, unlabeled
from onespike.tasks.detection import Detection
from onespike.tasks.embedding import Embedding
from onespike.tasks.images import list_images, read_image
from onespike.tasks.inferred import Inferred, Numbers, infer
from onespike.tasks.inputs import Item, Items, batches, limit
from onespike.tasks.language import Language
from onespike.tasks.precision import AveragePrecision
from onespike.tasks.summaries import Headline, Summary, Table

__all__ = [
    "TASKS", "Accuracy", "AveragePrecision", "Classification", "Coco", "Detection", "Embedding", "Headline", "Inferred",
    "Item", "Items", "Language", "Meaning", "Metric", "Numbers", "Objective", "Score", "Summary", "Table", "Task",
    "batches", "category_ids", "compared", "infer", "limit", "list_coco", "list_images",
    "match_classes", "read_coco", "read_image", "task", "task_of", "unlabeled",
]  # fmt: skip
