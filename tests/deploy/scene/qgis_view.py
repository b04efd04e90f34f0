"""Open a map in QGIS and print what it shows; run by a Python that has QGIS, with the map's path without suffix."""

import json
import os
import sys

from qgis.core import QgsApplication, QgsRasterLayer, QgsVectorLayer

stem = sys.argv[1]
application = QgsApplication([], False)
application.initQgis()
raster = QgsRasterLayer(f"{stem}.tif", "map")
renderer = raster.renderer()
shader = renderer.shader().rasterShaderFunction()
footprints = QgsVectorLayer(f"{stem}.gpkg|layername=footprints", "footprints", "ogr")
shown = {
    "valid": raster.isValid() and footprints.isValid(),
    "bands": [raster.bandName(band + 1) for band in range(raster.bandCount())],
    "band": renderer.band(),
    "colours": [[item.value, item.color.name(), item.color.alpha()] for item in shader.colorRampItemList()],
    "middle": shader.shade(0.5),
    "regions": footprints.featureCount(),
    "categories": [[one.value(), one.symbol().color().name()] for one in footprints.renderer().categories()],
}
print(json.dumps(shown), flush=True)
os._exit(0)  # QGIS may crash while Python takes its objects apart
