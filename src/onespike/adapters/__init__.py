"""Networks by name. Only this package names libraries and architectures."""

from onespike.adapters import bundled as bundled
from onespike.adapters import detectron2 as detectron2
from onespike.adapters import timm as timm
from onespike.adapters import torchvision as torchvision
from onespike.adapters import transformers as transformers
from onespike.adapters import user_file as user_file
from onespike.adapters.base import ADAPTERS as ADAPTERS
from onespike.adapters.base import Adapter as Adapter
from onespike.adapters.base import LoadedModel as LoadedModel
from onespike.adapters.base import Normalization as Normalization
from onespike.adapters.base import Reading as Reading
from onespike.adapters.base import Source as Source
from onespike.adapters.base import adapter as adapter
from onespike.adapters.base import load_model as load_model
from onespike.adapters.checkpoints import load_checkpoint_ as load_checkpoint_
from onespike.adapters.checkpoints import read_checkpoint as read_checkpoint
from onespike.adapters.preprocessing import NORMALIZATIONS as NORMALIZATIONS
from onespike.adapters.preprocessing import exchanged as exchanged
from onespike.adapters.preprocessing import normalization as normalization
from onespike.adapters.preprocessing import renormalized as renormalized
from onespike.adapters.preprocessing import resized as resized
