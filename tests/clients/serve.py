"""serve.py COMMAND…: serves the 0.5B and runs COMMAND URL MODEL beside it."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from apus_server import Server, model_path  # noqa: E402

with Server(model_path("qwen-0.5b"), "--ctx-size", 4096) as server:
    code = subprocess.run([*sys.argv[1:], server.url, server.name], timeout=300).returncode
sys.exit(code)
