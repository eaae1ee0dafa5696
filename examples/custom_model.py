"""A network that nobody has seen before, with a product that onespike does not know.

`convert` refuses what it cannot reach and names it; a rule of a few lines, or excluding it, mends that.
"""

import torch
from torch import nn

import onespike
from onespike.errors import ConversionError
from onespike.sites import matrix_product


class Mixer(nn.Module):
    """Multiplies each token by a matrix that another token made, with a function that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(x).relu()
        return self.leave(torch.linalg.multi_dot([hidden, hidden.T, hidden]).relu())


torch.manual_seed(0)
model, inputs = Mixer().eval(), torch.randn(8, 8)
batches = [inputs, torch.randn(8, 8)]
try:
    onespike.convert(model, onespike.calibrate(model, batches))
except ConversionError as refusal:
    print(refusal)


@onespike.synaptic(torch.linalg.multi_dot)
def chain(visit, tensors):
    """A chain is a product after another: both operands are visited, as torch.matmul's rule does."""
    first, *others = tensors
    for other in others:
        product = matrix_product(first, other)
        first = torch.matmul(visit(product, "lhs"), visit(product, "rhs"))
    return first


snn = onespike.convert(model, onespike.calibrate(model, batches))
print(snn)
