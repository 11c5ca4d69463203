"""pandas: a size, a seed. Prints digests of groups, a join and a sorted frame."""
import hashlib
import sys

import numpy as np
import pandas as pd

size, random = int(sys.argv[1]), np.random.default_rng(int(sys.argv[2]))
frame = pd.DataFrame(
    {
        "key": random.integers(0, size // 20, size),
        "kind": random.integers(0, 7, size).astype("int8"),
        "value": random.integers(0, 1 << 40, size),
        "weight": random.random(size),
    }
)


def digest(name, table):
    print(name, table.shape, hashlib.sha256(pd.util.hash_pandas_object(table).values.tobytes()).hexdigest())


groups = frame.groupby(["key", "kind"])["value"].agg(["sum", "max", "count"]).reset_index()
digest("groups", groups)
joined = frame.merge(frame.groupby("key")["value"].max().rename("top"), left_on="key", right_index=True)
digest("joined", joined)
digest("sorted", joined.sort_values(["value", "key"], kind="stable").reset_index(drop=True))
