#!/bin/sh
# Makes seeds of the pictures in a folder: usage `fuzz/seed.sh FOLDER`. The byte in front chooses the
# pipeline; 0 is the plain one, and the fuzzer tries the others.
set -eu
to="$(dirname "$0")/corpus/image"
mkdir -p "$to"
for file in "$1"/*; do
    { printf '\0'; cat "$file"; } > "$to/$(basename "$file")"
done
