"""A detector with masks: the bundled one, trained on scenes of clothes, before and after conversion.

It prints COCO's AP of both networks for boxes and for masks, and draws what they find into detector.png.
Any network serves that comes with a function from its output to COCO results (`loaded.results` here).
"""

from pathlib import Path

import onespike
from onespike.adapters import load_model
from onespike.report.plots import png
from onespike.report.predictions import predictions
from onespike.tasks import Detection, batches, category_ids, limit, list_coco, read_image

loaded = load_model("bundled:scenes")
calibration = limit(list_coco("bundled:scenes-calibration")[0], 32)
scenes, truth = list_coco("bundled:scenes-test")
test = limit(scenes, 40)

inputs = (images for images, _ in batches(calibration, loaded.transform, 16))
thresholds = onespike.calibrate(loaded.model, inputs)
snn = onespike.convert(loaded.model, thresholds, onespike.preset("sformer", scale=0.25))

categories = category_ids(loaded.class_names, truth.categories)
metric = Detection(truth, loaded.results, "segmentation", categories)
result = onespike.evaluate(loaded.model, snn, batches(test, loaded.transform, 20), metric)

for kind, name in (("bbox", "boxes"), ("segm", "masks")):
    ann, spiking = (result.metrics[network][kind] for network in ("ann", "snn"))
    print(f"{name}: AP {ann['AP']:.1f} → {spiking['AP']:.1f}, AP50 {ann['AP50']:.1f} → {spiking['AP50']:.1f}")
print(f"energy: counts {result.ledger.ratio('counts'):.3f}, strict {result.ledger.ratio('strict'):.3f}")

shown = [(read_image(item), item.id) for item in test.items[:4]]
Path("detector.png").write_bytes(png(predictions(shown, metric.found, truth.categories)))
