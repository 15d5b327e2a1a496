"""Serves the model and runs sdk.mjs against it."""

import os
import subprocess
import sys

from apus_server import Server, model_path

here = os.path.dirname(os.path.abspath(__file__))
with Server(model_path("qwen-0.5b"), "--ctx-size", 2048) as server:
    module = os.path.join(os.environ["NODE_MODULES"], "openai", "index.mjs")
    code = subprocess.run(["node", os.path.join(here, "sdk.mjs"), module, server.url + "/v1", server.name]).returncode
sys.exit(code)
