"""Pack the Python package as a wheel: MODULE SOURCE FOLDER VERSION. Prints the path of the wheel.

The layout is that of the binary distribution format; see the packaging guide for the meaning of
each file. The compiled module uses the stable interface of CPython 3.10, hence the tags.
"""

import base64
import hashlib
import platform
import sys
import zipfile
from pathlib import Path

MODULE, SOURCE, FOLDER, VERSION = sys.argv[1:5]
TAG = f"cp310-abi3-linux_{platform.machine()}"
INFO = f"forebay-{VERSION}.dist-info"

# Every wheel of an earlier build is gone, so that a stale one is never picked up.
folder = Path(FOLDER)
folder.mkdir(parents=True, exist_ok=True)
for old in folder.glob("*.whl"):
    old.unlink()

files = {}
for path in sorted((Path(SOURCE) / "forebay").rglob("*")):
    if path.is_file() and path.suffix in (".py", ".pyi", ".typed", ".html", ".json"):
        files[path.relative_to(SOURCE).as_posix()] = path.read_bytes()
files["forebay/_forebay.abi3.so"] = Path(MODULE).read_bytes()
licences = {name: (Path(SOURCE).parent / name).read_bytes() for name in ("LICENSE", "NOTICE")}
for name, content in licences.items():
    files[f"{INFO}/licenses/{name}"] = content
files[f"{INFO}/METADATA"] = (
    f"Metadata-Version: 2.4\nName: forebay\nVersion: {VERSION}\n"
    "Summary: A streaming data engine for machine learning\n"
    "License-Expression: Apache-2.0\nLicense-File: LICENSE\nLicense-File: NOTICE\n"
    "Requires-Python: >=3.10\nRequires-Dist: numpy>=1.26\n"
).encode()
files[f"{INFO}/WHEEL"] = (
    f"Wheel-Version: 1.0\nGenerator: xtask\nRoot-Is-Purelib: false\nTag: {TAG}\n"
).encode()

record = []
for name, content in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(content)}")
record.append(f"{INFO}/RECORD,,")
files[f"{INFO}/RECORD"] = ("\n".join(record) + "\n").encode()

wheel = folder / f"forebay-{VERSION}-{TAG}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
    for name, content in files.items():
        archive.writestr(name, content)
print(wheel)
