#!/usr/bin/env bash
# tritonclient from 2.70.0 on (seen with 2.73.0): an input of type BF16 is an array of ml_dtypes.bfloat16 and nothing
# else; up to 2.69.0 it is an array of float32 and nothing else. No array is accepted by both, so that code for BF16 has to
# look at the release.
#
# The older client also cuts off the lower 16 bits of each float32: 1.0078125 - 2^-20 becomes 1.0, where rounding to
# nearest, which ml_dtypes and every framework do, gives 1.0078125. So the same numbers reach the server as other bits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/probe.py" <<'PYTHON'
import ml_dtypes
import numpy as np
import tritonclient.http as client

number = np.array([1.0078125 - 2.0**-20], np.float32)
for array in (number, number.astype(ml_dtypes.bfloat16)):
    given = client.InferInput("x", [1], "BF16")
    try:
        given.set_data_from_numpy(array, binary_data=True)
        print(array.dtype, given._get_binary_data().hex())
    except Exception as error:
        print(array.dtype, "refused")
PYTHON
got=""
for release in 2.69.0 2.73.0; do
    python3 -m venv "$folder/$release"
    "$folder/$release/bin/pip" install --quiet "tritonclient[http]==$release" ml_dtypes numpy
    got+="$release: $("$folder/$release/bin/python" "$folder/probe.py" | tr '\n' ';')"$'\n'
done
printf '%s' "$got"
[ "$got" = "2.69.0: float32 803f;bfloat16 refused;
2.73.0: float32 refused;bfloat16 813f;
" ]
