"""Sessions of coding agents with a model that follows a script: two calls of a tool that runs a command, an answer.

agent_session.py                the requests that the agents send (recorded/AGENT.json, without their texts), sent here
agent_session.py AGENT FOLDER   the agent itself, from the programs in FOLDER, started by `apus launch`
agent_session.py aider FOLDER   aider, which has no tools: two edits of a file, an answer
agent_session.py llm FOLDER     llm with a function
agent_session.py continue|cline FOLDER   the command lines of Continue and Cline, with a configuration of their own
agent_session.py open-webui FOLDER   the backend of Open WebUI, over its connections to OpenAI's and Ollama's APIs
"""

import functools
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "server"))
from apus_server import BINARY, Checks, Server  # noqa: E402
from scripted_model import write_scripted_model  # noqa: E402

check = Checks()
AGENTS = {
    "claude": ("Bash", "command", ["-p", "make the file", "--dangerously-skip-permissions"]),
    "codex": (
        "exec_command",
        "cmd",
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "make the file"],
    ),
    "opencode": ("bash", "command", ["run", "make the file"]),
}
# What agents tell their models is long and of no use to this one: the prompt has the beginning of each message, and its
# end says how many results of tools there are.
TEMPLATE = (
    "{%- if tools %}{{ 'JSON within <tool_call></tool_call>:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>\' }}{%- endif %}'
    "{%- set ns = namespace(results=0) %}{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{%- set ns.results = ns.results + 1 %}{%- endif %}"
    "{%- if m.role != 'system' %}{{ '<|start|>' + m.role + '\n' + (m.content or '')[:200] + '<|end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|start|>assistant\n' }}"
    "{%- if ns.results == 1 %}{{ '~' }}{%- elif ns.results > 1 %}{{ '^' }}{%- endif %}{%- endif %}"
)
COMMANDS = ["echo first >made.txt", "echo second >>made.txt"]


def write_model(directory, tool, member, listed=False):
    """A piece leads to the next one, so that no piece is in two scripts. listed: the tool takes a list of commands."""
    opens, ends = ('["', '"]') if listed else ('"', '"')
    begin = f'\n{{"name": "{tool}", "arguments": {{"{member}": {opens}'
    first = ["<tool_call>", begin, COMMANDS[0], ends + "}}", "\n</tool_call>"]
    second = [
        "<tool_call>\n{",
        f'"name": "{tool}", "arguments": {{',
        f'"{member}": {opens}',
        COMMANDS[1],
        ends + "}}\n</tool_",
        "call>",
    ]
    return write_scripted_model(directory, first, TEMPLATE, context=32768, more={"~": second, "^": ["Done"]})


# ---- the agents' requests ----


def events_of(raw):
    """Of a stream of events, or of Ollama's lines."""
    lines = raw.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]


def read_chat(events):
    """What an answer of chat completions says: its text, and the calls that go into the next request."""
    text, calls = "", []
    for choice in (c for event in events for c in event["choices"]):
        text += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                calls.append(call)
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return text, calls


def chat_turn(body, events, empty=None, parts=("id", "type", "function"), result="(no output)"):
    """empty, parts: what the client writes for no text, and the parts of a call that it keeps."""
    text, calls = read_chat(events)
    calls = [{k: c[k] for k in parts} for c in calls]
    body["messages"] += [{"role": "assistant", "content": text or empty, "tool_calls": calls}] if calls else []
    body["messages"] += [{"role": "tool", "tool_call_id": c["id"], "content": result} for c in calls]
    return text, [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def messages_turn(body, events):
    blocks = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            blocks[-1]["json" if "partial_json" in event["delta"] else "text"] += (
                event["delta"].get("partial_json") or event["delta"].get("text") or ""
            )
    calls = [b for b in blocks if b["type"] == "tool_use"]
    for call in calls:
        call["input"] = json.loads(call.pop("json"))
    if calls:
        results = [{"type": "tool_result", "tool_use_id": c["id"], "content": "(no output)"} for c in calls]
        body["messages"] += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    return "".join(b.get("text", "") for b in blocks), [(c["name"], c["input"]) for c in calls]


def responses_turn(body, events):
    items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    calls = [i for i in items if i["type"] == "function_call"]
    body["input"] += items
    body["input"] += [{"type": "function_call_output", "call_id": c["call_id"], "output": "(no output)"} for c in calls]
    text = "".join(p["text"] for i in items if i["type"] == "message" for p in i["content"])
    return text, [(c["name"], json.loads(c["arguments"])) for c in calls]


def ollama_turn(body, events):
    message = {"role": "assistant", "content": "", "tool_calls": []}
    for event in events:
        message["content"] += event["message"].get("content", "")
        message["tool_calls"] += event["message"].get("tool_calls", [])
    calls = [c["function"] for c in message["tool_calls"]]
    body["messages"] += [message] if calls else []
    body["messages"] += [{"role": "tool", "content": "(no output)", "tool_name": c["name"]} for c in calls]
    return message["content"], [(c["name"], c["arguments"]) for c in calls]


CHAT = "/v1/chat/completions"
APIS = {
    "claude": ("/v1/messages", messages_turn),
    "codex": ("/v1/responses", responses_turn),
    "opencode": (CHAT, chat_turn),
}


def opening(tool, **more):
    """The first request of a client with one tool that runs commands."""
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    function = {"name": tool, "description": "Runs a command", "parameters": parameters, **more.pop("function", {})}
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "make the file"}]
    return {"messages": messages, "tools": [{"type": "function", "function": function}], **more}


# By their sources: how they begin, and how they write what was said into the next request.
USAGE = {"stream_options": {"include_usage": True}}
OTHERS = {
    "continue": (
        opening("builtin_run_terminal_command", max_tokens=2048, function={"strict": None}),
        CHAT,
        functools.partial(chat_turn, empty=" "),
    ),
    "cline": (opening("execute_command", temperature=0, tool_choice="auto", **USAGE), CHAT, chat_turn),
    "open-webui": (
        opening("run_code", metadata={"task": "chat"}, **USAGE),
        CHAT,
        functools.partial(chat_turn, empty="", parts=("index", "id", "type", "function")),
    ),
    "zed": (
        opening("terminal", parallel_tool_calls=False, temperature=1.0, prompt_cache_key="k", **USAGE),
        CHAT,
        functools.partial(chat_turn, result=[{"type": "text", "text": "(no output)"}]),
    ),
    "open-webui-ollama": (opening("run_code", options={"temperature": 0}, keep_alive="5m"), "/api/chat", ollama_turn),
}


def recorded(agent):
    with open(os.path.join(HERE, "recorded", agent + ".json")) as file:
        return json.load(file), *APIS[agent], *AGENTS[agent][:2]


def replay(agent, directory):
    if agent in APIS:
        body, path, turn, tool, member = recorded(agent)
    else:
        body, path, turn = OTHERS[agent]
        tool, member = body["tools"][0]["function"]["name"], "command"
    with Server(write_model(directory, tool, member), "-t", 1, name="m") as server:
        for number in range(3):
            status, _, raw = server.request("POST", path, {**body, "model": "m", "stream": True})
            if not check(status == 200, f"{agent}, turn {number + 1}: {status} {raw[:300]}"):
                return
            text, calls = turn(body, events_of(raw))
            wanted = [(tool, {member: COMMANDS[number]})] if number < 2 else []
            check(calls == wanted and text == ("" if wanted else "Done"), f"{agent}, {number + 1}: {text!r} {calls}")


# ---- the agents ----


def prepare(folder, directory):
    """A folder to work in, and the environment of a program in `folder`."""
    work, home = os.path.join(directory, "work"), os.path.join(directory, "home")
    os.makedirs(work)
    os.makedirs(home)
    path = folder + os.pathsep + os.environ["PATH"]
    environment = {**os.environ, "PATH": path, "HOME": home, "PWD": work, "IS_SANDBOX": "1"}
    environment.pop("APUS_API_KEY", None)
    return work, environment


def run(agent, folder, directory):
    tool, member, arguments = AGENTS[agent]
    work, environment = prepare(folder, directory)
    with Server(write_model(os.path.join(directory, "model"), tool, member), "-t", 1, name="m") as server:
        launch = [BINARY, "launch", agent, "m", "--port", str(server.port)]
        shown = subprocess.run([*launch, "--print"], capture_output=True, text=True, env=environment).stdout
        check(
            f"127.0.0.1:{server.port}" in shown and re.search(rf"^{agent}\b", shown, re.M), f"launch --print: {shown}"
        )
        done = subprocess.run(
            [*launch, "--", *arguments], capture_output=True, text=True, cwd=work, env=environment, timeout=300,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        check_made(agent, work, done)


def check_made(agent, work, done):
    made = os.path.join(work, "made.txt")
    text = open(made).read() if os.path.exists(made) else None
    said = f"{done.stdout} {done.stderr}"
    check(done.returncode == 0 and text == "first\nsecond\n", f"{agent}: {text!r} {said}")
    check("Done" in said, f"{agent}: {said}")


CONTINUE = """
name: local
version: 1.0.0
schema: v1
models:
  - {{name: m, provider: openai, model: m, apiBase: {url}/v1, apiKey: none, roles: [chat], capabilities: [tool_use]}}
"""


def run_continue(folder, directory):
    work, environment = prepare(folder, directory)
    environment["CONTINUE_TELEMETRY_ENABLED"] = "0"
    config = os.path.join(directory, "config.yaml")
    with Server(write_model(os.path.join(directory, "model"), "Bash", "command"), "-t", 1, name="m") as server:
        with open(config, "w") as file:
            file.write(CONTINUE.format(url=server.url))
        done = subprocess.run(
            ["cn", "--config", config, "--auto", "-p", "make the file"],
            capture_output=True, text=True, cwd=work, env=environment, timeout=600, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        check_made("continue", work, done)


def run_cline(folder, directory):
    work, environment = prepare(folder, directory)
    model = write_model(os.path.join(directory, "model"), "run_commands", "commands", listed=True)
    with Server(model, "-t", 1, name="m") as server:
        for words in (
            ["auth", "openai", "-k", "none", "-m", "m", "-b", server.url + "/v1"],
            ["-P", "openai", "-m", "m", "make the file"],
        ):
            done = subprocess.run(
                ["cline", *words], capture_output=True, text=True, cwd=work, env=environment, timeout=600,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        check_made("cline", work, done)


OPEN_WEBUI = {
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "none",
    "OFFLINE_MODE": "True",
    "RAG_EMBEDDING_ENGINE": "openai",  # else it would load a model of its own
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
    "SCARF_NO_ANALYTICS": "true",
}
CONNECTIONS = [
    ("/openai/config/update", {"ENABLE_OPENAI_API": False, "OPENAI_API_BASE_URLS": [], "OPENAI_API_KEYS": []}),
    ("/ollama/config/update", {"ENABLE_OLLAMA_API": True, "OLLAMA_API_CONFIGS": {}}),
]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask_web(port, path, body=None, token=""):
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, head)
    try:
        return urllib.request.urlopen(asked, timeout=600).read()
    except urllib.error.HTTPError as error:
        return error.read()


def talk_web(port, token, connection):
    body = opening("run_code", model="m", stream=True)
    turn = functools.partial(chat_turn, empty="", parts=("index", "id", "type", "function"))
    for number in range(3):
        raw = ask_web(port, "/api/chat/completions", body, token)
        text, calls = turn(body, [event for event in events_of(raw) if "choices" in event])
        wanted = [("run_code", {"command": COMMANDS[number]})] if number < 2 else []
        check(calls == wanted and text == ("" if wanted else "Done"), f"{connection}, {number + 1}: {raw[:500]}")


def run_open_webui(folder, directory):
    python = os.path.join(folder, "python")
    asked = [python, "-c", "import importlib.util as i; print(i.find_spec('open_webui').submodule_search_locations[0])"]
    package = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    port, log = free_port(), os.path.join(directory, "log")
    command = [python, "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port)]
    with Server(write_model(os.path.join(directory, "model"), "run_code", "command"), "-t", 1, name="m") as server:
        environment = {**os.environ, **OPEN_WEBUI, "OPENAI_API_BASE_URL": server.url + "/v1", "OPENAI_API_KEY": "none"}
        environment |= {"ENABLE_OLLAMA_API": "False", "FRONTEND_BUILD_DIR": os.path.join(package, "frontend")}
        environment |= {name: os.path.join(directory, name) for name in ("DATA_DIR", "STATIC_DIR", "HF_HOME")}
        for name in ("DATA_DIR", "STATIC_DIR"):
            os.makedirs(environment[name])
        with open(log, "w") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=directory)
        try:
            while process.poll() is None:
                try:
                    ask_web(port, "/health")
                    break
                except OSError:
                    time.sleep(0.5)
            if not check(process.poll() is None, f"open-webui: {open(log).read()[-2000:]}"):
                return
            token = json.loads(ask_web(port, "/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
            for connection in ("openai", "ollama"):
                for path, settings in CONNECTIONS if connection == "ollama" else []:
                    ask_web(port, path, {"OLLAMA_BASE_URLS": [server.url], **settings}, token)
                listed = json.loads(ask_web(port, "/api/models?refresh=true", token=token))["data"]
                check([(m["id"], m["owned_by"]) for m in listed] == [("m", connection)], f"{connection}: {listed}")
                talk_web(port, token, connection)
        finally:
            process.terminate()
            process.wait()


# The answer follows what the last message asks for.
AIDER = (
    "{%- for m in messages %}{%- if m.role != 'system' %}"
    "{{ '<|start|>' + m.role + '\n' + (m.content or '')[:200] + '<|end|>\n' }}{%- endif %}{%- endfor %}"
    "{{ '<|start|>assistant\n' }}{%- set last = messages[-1].content %}"
    "{%- if 'make it longer' in last %}{{ '~' }}{%- elif 'praise it' in last %}{{ '^' }}{%- endif %}"
)


def run_aider(folder, directory):
    work, environment = prepare(folder, directory)
    first = ["made.txt", "\n```\n", "first", "\n```"]
    second = ["made", ".txt\n", "```", "\nfirst", "\nsecond\n", "``", "`\n"]
    path = os.path.join(directory, "model")
    model = write_scripted_model(path, first, AIDER, context=32768, more={"~": second, "^": ["Well done."]})
    quiet = ["--analytics-disable", "--no-check-update", "--no-show-release-notes", "--no-git", "--no-pretty"]
    quiet += ["--no-fancy-input", "--no-detect-urls", "--no-suggest-shell-commands", "--yes-always"]
    with Server(model, "-t", 1, name="m") as server:
        done = subprocess.run(
            [BINARY, "launch", "aider", "m", "--port", str(server.port), "--", "--edit-format", "whole", *quiet,
             "made.txt"],
            capture_output=True, text=True, cwd=work, env={**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            timeout=600, input="make the file\nmake it longer\npraise it\n/exit\n",
        )  # fmt: skip
        made = os.path.join(work, "made.txt")
        text = open(made).read() if os.path.exists(made) else None
        said = done.stdout + done.stderr
        check(text == "first\nsecond\n", f"aider: {text!r} {said}")
        check("Well done." in said, f"aider: {said}")


FUNCTION = """
import subprocess


def run(command: str) -> str:
    "Runs a command and gives its output"
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "(no output)"
"""


def run_llm(folder, directory):
    work, environment = prepare(folder, directory)
    settings = os.path.join(directory, "settings")
    os.makedirs(settings)
    with Server(write_model(os.path.join(directory, "model"), "run", "command"), "-t", 1, name="m") as server:
        with open(os.path.join(settings, "extra-openai-models.yaml"), "w") as file:
            file.write("- model_id: mine\n  model_name: m\n  supports_tools: true\n  supports_schema: true\n")
            file.write(f"  api_base: {server.url}/v1\n")
        environment["LLM_USER_PATH"] = settings
        for more in ([], ["--no-stream"]):
            done = subprocess.run(
                ["llm", "-m", "mine", "--functions", FUNCTION, *more, "make the file"],
                capture_output=True, text=True, cwd=work, env=environment, timeout=300, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            made = os.path.join(work, "made.txt")
            text = open(made).read() if os.path.exists(made) else None
            check(
                done.returncode == 0 and text == "first\nsecond\n", f"llm {more}: {text!r} {done.stdout} {done.stderr}"
            )
            check("Done" in done.stdout, f"llm {more}: {done.stdout} {done.stderr}")
        again = ["llm", "-c", "-m", "mine", "and now?"]
        done = subprocess.run(again, capture_output=True, text=True, cwd=work, env=environment, timeout=300)
        check(done.returncode == 0, f"llm -c: {done.stdout} {done.stderr}")


class Loading(http.server.BaseHTTPRequestHandler):
    """A server that does not answer yet."""

    def do_GET(self):
        body = b'{"error":{"message":"It loads its models.","code":"loading"}}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_launch():
    """Without an agent or a server: what is missing is said."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(write_model(directory, "f", "x"), "-t", 1, "--api-key", "secret", name="m") as server,
    ):
        port = ["--port", str(server.port)]
        bare = {**os.environ, "PATH": directory}
        bare.pop("APUS_API_KEY", None)

        def launch(*arguments):
            done = subprocess.run([BINARY, "launch", *arguments], capture_output=True, text=True, env=bare)
            return done.returncode, done.stdout + done.stderr

        code, said = launch("codex", *port)
        check(code == 2 and "wants a key" in said, f"without a key: {said}")
        code, said = launch("codex", *port, "--api-key", "secret")
        check(code == 1 and "npm install -g @openai/codex" in said and "secret" not in said, f"no such program: {said}")
        code, said = launch("claude", "other", *port, "--api-key", "secret")
        check(code == 1 and "does not serve other" in said, f"no such model: {said}")
        code, said = launch("vim", *port)
        check(code == 2 and "want codex" in said, f"no such agent: {said}")
        for agent in ("claude", "codex", "opencode", "aider"):
            code, said = launch(agent, "m", *port, "--api-key", "secret", "--print", "--", "--more")
            fits = code == 0 and str(server.port) in said and said.rstrip().endswith("--more") and "secret" not in said
            check(fits, f"{agent}: {said}")
            # Agents that do not know how long the context is take it for longer, and do not shorten a talk in time.
            check(agent == "aider" or "32768" in said, f"{agent}, the context: {said}")
            check(agent not in ("claude", "opencode") or "8192" in said, f"{agent}, a quarter of it: {said}")
        code, said = launch("claude", "m2", *port, "--api-key", "secret")
        check(code == 1 and "does not serve m2" in said, f"a longer name: {said}")
        with Server(write_model(f"{directory}/s", "f", "x"), "-t", 1, "-c", 4096, name="model-one") as short:
            code, said = launch("opencode", "mod", "--port", str(short.port), "--print", "--", "it's")
            fits = "model-one" in said and "context of 4096 tokens" in said and "opencode 'it'\\''s'\n" in said
            check(code == 0 and fits, f"a part of the name, a short context, an argument with a quote: {said}")
    with http.server.HTTPServer(("127.0.0.1", 0), Loading) as loading:
        threading.Thread(target=loading.handle_request).start()
        command = [BINARY, "launch", "claude", "--port", str(loading.server_port)]
        code = subprocess.run(command, capture_output=True, text=True)
    check(code.returncode == 1 and "It loads its models." in code.stderr, f"a server that loads: {code.stderr}")
    code = subprocess.run([BINARY, "launch", "claude", "--port", "1"], capture_output=True, text=True)
    check(code.returncode == 1 and "apus serve MODEL" in code.stderr, f"no server: {code.stderr}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as top:
        if len(sys.argv) > 1:
            agent, *folder = sys.argv[1:]
            if agent in AGENTS:
                run(agent, *folder, top)
            else:
                others = {"aider": run_aider, "llm": run_llm, "continue": run_continue, "cline": run_cline}
                others["open-webui"] = run_open_webui
                others[agent](*folder, top)
        else:
            test_launch()
            for each in [*APIS, *OTHERS]:
                replay(each, os.path.join(top, each))
    check.done()
