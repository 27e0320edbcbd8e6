"""Starts a server for node.mjs: the Node packages of both APIs. SKIP without node, or where the packages were not installed."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from server import Server

NODE = "build/clients/node"
if not shutil.which("node") or not os.path.isdir(NODE + "/node_modules/openai") or not os.path.isdir(NODE + "/node_modules/@anthropic-ai/sdk"):
    print("SKIP node: node or its packages openai and @anthropic-ai/sdk are missing\n0 passed, 0 failed")
    sys.exit(0)
server = Server(os.path.join(os.environ["TINY_MODELS"], "tiny-chain.gguf"))
shutil.copy(os.path.join(os.path.dirname(__file__), "node.mjs"), NODE)
env = {**os.environ, "NODE_EXTRA_CA_CERTS": server.env["SSL_CERT_FILE"], **server.env}
try:
    rc = subprocess.run(["node", "node.mjs"], cwd=NODE, env=env, timeout=120).returncode
finally:
    server.stop()
sys.exit(rc)
