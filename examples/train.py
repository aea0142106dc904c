"""The ten lines of Python a trainer needs: photographs from Parquet to batches of torch tensors.

Run from the root of the repository: ``make python``, then ``.venv/bin/python examples/train.py``.
"""

import torch

import forebay as fb

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
model = torch.nn.Sequential(torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

ds = fb.read_parquet("examples/data/photos", columns=["image", "label"])
ops = [fb.RandomResizedCrop(224), fb.RandomHorizontalFlip(), fb.Normalize(MEAN, STD)]
ds = ds.map_image("image", ops, mode="RGB")
loader = ds.loader(batch_size=5, shuffle="window", seed=7)
for epoch in range(loader.epoch, 3):  # from 0, or from where a loaded state is
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {len(loader)} steps of {tuple(batch['image'].shape)}, loss {loss:.3f}")
