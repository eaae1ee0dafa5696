"""A detector with masks: the bundled one, trained on scenes of clothes, before and after conversion.

It prints COCO's AP of both networks for boxes and for masks.
Any network serves that comes with functions from its output to COCO results and to tensors (`onespike.tasks.Detection`).
"""

import onespike
from onespike.adapters import load_model
from onespike.tasks import limit, list_coco

loaded = load_model("bundled:scenes")
calibration = limit(list_coco("bundled:scenes-calibration")[0], 32)
test = limit(list_coco("bundled:scenes-test")[0], 40)

inputs = (images for images, _ in loaded.batches(calibration, 16))
thresholds = onespike.calibrate(loaded.model, inputs)
snn = onespike.convert(loaded.model, thresholds, onespike.preset("sformer", scale=0.25))

metric = loaded.task.metric(test)
result = onespike.evaluate(loaded.model, snn, loaded.batches(test, 20), metric)

for kind, name in (("bbox", "boxes"), ("segm", "masks")):
    ann, spiking = (result.metrics[network][kind] for network in ("ann", "snn"))
    print(f"{name}: AP {ann['AP']:.1f} → {spiking['AP']:.1f}, AP50 {ann['AP50']:.1f} → {spiking['AP50']:.1f}")
print(f"energy: counts {result.ledger.ratio('counts'):.3f}, strict {result.ledger.ratio('strict'):.3f}")
