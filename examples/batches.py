"""Numbers from Parquet to dense NumPy batches: no torch needed.

Run from the root of the repository, with the package installed (``make python`` or ``make demo``).
"""

import forebay as fb

columns = ["dep_delay", "arr_delay", "air_time", "distance"]
ds = fb.read_parquet("examples/data/flights", columns=[*columns, "carrier"])
ds = ds.filter("dep_delay IS NOT NULL").stack(columns, into="features", dtype="float32")
loader = ds.loader(batch_size=1024, shuffle="window", seed=7, format="numpy", fill=float("nan"))
for batch in loader:
    features = batch["features"]
print(f"{len(loader)} steps of {features.shape} {features.dtype}, carriers {batch['carrier'][:3]}")
