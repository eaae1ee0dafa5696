"""Formats in which a converted network runs elsewhere, each verified by its runtime."""

from onespike.deploy.exports import integers as integers
from onespike.deploy.exports import nir_graph as nir_graph
from onespike.deploy.exports import onnx_file as onnx_file
from onespike.deploy.exports import pt2 as pt2
from onespike.deploy.exports import qonnx_file as qonnx_file
from onespike.deploy.exports.base import FORMATS as FORMATS
from onespike.deploy.exports.base import Exported as Exported
from onespike.deploy.exports.base import export as export
