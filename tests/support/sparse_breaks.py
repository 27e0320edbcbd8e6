"""sparse_breaks.py TOOL OUT NAME...: the two-layer sparse set with each breakage, as OUT/NAME, in one process.

Runs make_sparse_k3.py's own main() per breakage; only its reading of the 60 MB index is done once and cut to what two layers keep.
"""
import contextlib
import copy
import importlib.util
import io
import json
import os
import re
import sys
import types

tool, out, names = sys.argv[1], sys.argv[2], sys.argv[3:]
spec = importlib.util.spec_from_file_location("sparse", tool)
sys.dont_write_bytecode = True
sparse = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sparse)
cache = {}


def load(f):
    key = getattr(f, "name", "index")
    if key not in cache:
        got = json.load(f)
        if "weight_map" in got:
            layer = re.compile(r"language_model\.model\.layers\.(\d+)\.")
            got["weight_map"] = {k: v for k, v in got["weight_map"].items() if not (m := layer.match(k)) or int(m[1]) < 2}
        cache[key] = got
    return copy.deepcopy(cache[key])


sparse.json = types.SimpleNamespace(load=load, dump=json.dump, dumps=json.dumps)
for name in names:
    sys.argv = [tool, os.path.join(out, name), "--layers", "2", "--break", name]
    with contextlib.redirect_stdout(io.StringIO()):
        sparse.main()
