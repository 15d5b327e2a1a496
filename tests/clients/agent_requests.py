"""Requests in the shapes that real clients send, by their sources of 2025 and 2026, with contents of our own: each is
answered in full. Those of clients that send fields which no server of OpenAI has go to a server with --lenient, as
docs/clients.md says; Anthropic's, Ollama's and OpenAI's fields need none.

agent_requests.py [PATTERN]   only those whose client or situation has the word; what each got
"""

import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "server"))
import shapes  # noqa: E402
from apus_server import Checks, Server  # noqa: E402
from scripted_model import HERMES, template, write_scripted_model  # noqa: E402

check = Checks()
SYSTEM = "You are a careful assistant that edits code. Call tools where they help."
ASK = "Rename the function add to plus in calc.py and say what changed."
RESULT = "def add(a, b):\n    return a + b\n"
STRING = {"type": "string"}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def object_of(required, **properties):
    return {"type": "object", "properties": properties, "required": required}


READ = object_of(["path"], path={"type": "string", "description": "relative path"}, limit={"type": "integer"})
EDIT = object_of(["path", "old", "new"], path=STRING, old=STRING, new=STRING, all={"type": "boolean", "default": False})
PLAN = object_of(
    ["steps"],
    steps={
        "type": "array",
        "items": object_of(["text", "state"], text=STRING, state={"type": "string", "enum": ["open", "done"]}),
    },
)
SCHEMAS = {"read_file": READ, "edit_file": EDIT, "set_plan": PLAN}


def tools(**more):
    return [
        {"type": "function", "function": {"name": n, "description": f"To {n}.", "parameters": s, **more}}
        for n, s in SCHEMAS.items()
    ]


def flat_tools(**more):
    return [{"type": "function", "name": n, "description": n, "parameters": s, **more} for n, s in SCHEMAS.items()]


def blocks_tools(**more):
    return [{"name": n, "description": n, "input_schema": s, **more} for n, s in SCHEMAS.items()]


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def parts(*texts, **more):
    return [{"type": "text", "text": text, **more} for text in texts]


def call(number=1, name="read_file", **arguments):
    arguments = arguments or {"path": "calc.py"}
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number:024d}", "type": "function", "function": function}


def result(number=1, content=RESULT, **more):
    return {"role": "tool", "tool_call_id": f"call_{number:024d}", "content": content, **more}


def turn(content=None, **more):
    """A request behind a call of a tool."""
    return [
        said("system", SYSTEM),
        said("user", ASK),
        said("assistant", content, tool_calls=[call()], **more),
        result(),
    ]


def recorded(agent, **more):
    with open(os.path.join(HERE, "recorded", agent + ".json")) as file:
        return {**json.load(file), **more}


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OPENING = [said("system", SYSTEM), said("user", ASK)]
STOPS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>", "<|repo_name|>",
         "/src/", "#- coding: utf-8", "```", "\n\n\n", "\nfunction", "\nclass"]  # fmt: skip
FIM = "<|fim_prefix|>def plus(a, b):\n    return <|fim_suffix|>\n\nprint(plus(1, 2))<|fim_middle|>"
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "output", "schema": object_of(["x"], x=STRING)}}


def claude_code():
    use = {"type": "tool_use", "id": "toolu_01", "name": "read_file", "input": {"path": "calc.py"}}
    done = {"type": "tool_result", "tool_use_id": "toolu_01", "content": RESULT}
    opening = said("user", [*parts("<system-reminder>Today is a Friday.</system-reminder>"), *parts(ASK, **EPHEMERAL)])
    system = [*parts("You are an agent."), *parts(SYSTEM, **EPHEMERAL)]
    base = {
        "max_tokens": 32000,
        "system": system,
        "tools": blocks_tools(),
        "metadata": {"user_id": "user_0_account__session_0"},
        "stream": True,
    }
    thought = {"type": "thinking", "thinking": "The file first.", "signature": "EqQB"}
    yield "opening", MESSAGES, recorded("claude")
    yield "results", MESSAGES, {**base, "messages": [opening, said("assistant", [use]), said("user", [done])]}
    failed = {**done, "is_error": True, "content": parts("no such file")}
    later = [said("assistant", [*parts("I look."), use]), said("user", [failed, *parts("Go on.", **EPHEMERAL)])]
    yield "failed call", MESSAGES, {**base, "messages": [opening, *later]}
    more = [{**use, "id": f"toolu_{i}"} for i in range(3)]
    answers = [{**done, "tool_use_id": f"toolu_{i}"} for i in range(3)]
    yield "parallel", MESSAGES, {**base, "messages": [opening, said("assistant", more), said("user", answers)]}
    thinking = {"type": "enabled", "budget_tokens": 31999}
    history = [opening, said("assistant", [thought, use]), said("user", [done])]
    yield "thinking", MESSAGES, {**base, "messages": history, "thinking": thinking, "temperature": 1}
    title = {"max_tokens": 512, "system": parts("Name this talk."), "messages": [said("user", ASK)], "temperature": 1}
    yield "title", MESSAGES, {**title, "stream": True}
    yield "quota", MESSAGES, {"max_tokens": 1, "messages": [said("user", "quota")], "metadata": base["metadata"]}
    yield "count", MESSAGES + "/count_tokens", {"messages": [opening], "system": system, "tools": blocks_tools()}
    compact = [opening, said("assistant", parts("Done.")), said("user", "Write a summary of this talk.")]
    yield "compact", MESSAGES, {**base, "messages": compact, "max_tokens": 20000}
    forced = {"type": "tool", "name": "set_plan"}
    yield "forced", MESSAGES, {**base, "messages": [opening], "tool_choice": forced, "max_tokens": 300, "stream": False}


def codex():
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASK}]}
    developer = {**message, "role": "developer"}
    reasoning = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}
    made = {"type": "function_call", "name": "read_file", "arguments": '{"path": "calc.py"}', "call_id": "call_1"}
    back = {"type": "function_call_output", "call_id": "call_1", "output": RESULT}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    base = {
        "instructions": SYSTEM,
        "tools": flat_tools(strict=False),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "include": [],
        "prompt_cache_key": "0199",
    }
    yield "opening", RESPONSES, recorded("codex")
    yield "history", RESPONSES, {**base, "input": [developer, message, reasoning, made, back]}
    yield "second turn", RESPONSES, {**base, "input": [developer, message, made, back, text, message]}
    listed = {**back, "output": [{"type": "input_text", "text": RESULT}]}
    yield "parts of a result", RESPONSES, {**base, "input": [message, made, listed]}
    form = {
        "format": {
            "type": "json_schema",
            "name": "out",
            "strict": True,
            "schema": PLAN | {"additionalProperties": False},
        }
    }
    form["format"]["schema"]["properties"]["steps"]["items"]["additionalProperties"] = False
    yield "output schema", RESPONSES, {**base, "input": [message], "tools": [], "text": form, "max_output_tokens": 200}
    yield (
        "compact",
        RESPONSES,
        {"instructions": SYSTEM, "input": [message, text, message], "stream": True, "store": False},
    )


def opencode():
    yield "opening", CHAT, recorded("opencode")
    yield "results", CHAT, {"messages": turn(""), "tools": tools(), "tool_choice": "auto", "max_tokens": 32000, **USAGE}
    title = [said("system", "You write titles."), said("user", "A title for this talk:\n"), said("user", ASK)]
    yield "title", CHAT, {"messages": title, "max_tokens": 32000, "temperature": 0.5, **USAGE}
    named = said("assistant", "", reasoning_content="The file first.", tool_calls=[call()])
    yield "reasoning", CHAT, {"messages": [*OPENING, named, result()], "tools": tools(), **USAGE}


def aider():
    example = [said("user", "Change the greeting."), said("assistant", "Ok.")]
    files = [said("user", "These are the files:\ncalc.py\n```\n" + RESULT + "```"), said("assistant", "Ok.")]
    talk = [said("system", SYSTEM), *example, *files, said("user", ASK)]
    yield "edit", CHAT, {"messages": talk, "stream": True, "temperature": 0}
    yield "commit message", CHAT, {"messages": OPENING, "stream": False, "temperature": 0}
    cached = [said("system", parts(SYSTEM, **EPHEMERAL)), *files, said("user", parts(ASK, **EPHEMERAL))]
    yield "cached prompts", CHAT, {"messages": cached, **USAGE, "temperature": 0}
    effort = {"reasoning_effort": "low"}
    yield "effort", CHAT, {"messages": talk, "stream": True, **effort}, "lenient"


def llm():
    text = {"messages": [said("system", SYSTEM), said("user", ASK)], **USAGE}
    yield "chat", CHAT, text
    listed = [
        {"type": "function", "function": {"name": n, "description": None, "parameters": s}} for n, s in SCHEMAS.items()
    ]
    yield "tools", CHAT, {**text, "tools": listed}
    no_content = {"role": "assistant", "tool_calls": [call()]}
    yield "results", CHAT, {**text, "messages": [said("user", ASK), no_content, result()], "tools": listed}
    yield "schema", CHAT, {**text, "response_format": JSON_SCHEMA, "max_tokens": 100}
    yield "JSON", CHAT, {**text, "response_format": {"type": "json_object"}, "max_tokens": 100}
    yield "completion", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 32, **USAGE}
    options = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "\n\n", "logit_bias": {"10": -1}}
    yield "options", CHAT, {**text, **options, "stream": False, "stream_options": None}


def continue_dev():
    chat = {"max_tokens": 2048, "temperature": 0.5, "stream": True}
    yield "chat", CHAT, {**chat, "messages": [*OPENING, said("assistant", " "), said("user", ASK)]}
    yield "agent", CHAT, {**chat, "messages": OPENING, "tools": tools(strict=None)}
    yield "results", CHAT, {**chat, "messages": turn(" "), "tools": tools()}
    yield "parts", CHAT, {**chat, "messages": [said("user", parts(ASK, "Here is calc.py."))]}
    edit = {**chat, "messages": OPENING, "stop": ["```"], "prediction": {"type": "content", "content": RESULT}}
    yield "edit", CHAT, edit
    complete = {"prompt": FIM, "max_tokens": 64, "temperature": 0.01, "stop": STOPS, "stream": True}
    yield "autocomplete", "/v1/completions", complete
    options = {"temperature": 0.01, "num_predict": 64, "num_ctx": 4096, "stop": STOPS}
    generate = {"prompt": FIM, "raw": True, "options": options, "keep_alive": 1800, "stream": True}
    yield "autocomplete of Ollama", "/api/generate", generate, "lenient"
    ollama = {"messages": OPENING, "options": {"num_ctx": 8192, "num_predict": 64}, "keep_alive": 1800, "stream": True}
    yield "chat of Ollama", "/api/chat", ollama, "lenient"
    yield "show", "/api/show", {"name": "m"}


def cline():
    talk = [said("system", SYSTEM), said("user", parts(f"<task>{ASK}</task>", "# Open files\ncalc.py"))]
    base = {"temperature": 0, **USAGE}
    yield "opening", CHAT, {**base, "messages": talk}
    tags = "<read_file>\n<path>calc.py</path>\n</read_file>"
    back = said("user", parts("[read_file for 'calc.py'] Result:", RESULT))
    yield "tags", CHAT, {**base, "messages": [*talk, said("assistant", tags), back]}
    native = [*talk, said("assistant", "I look.", tool_calls=[call()]), result()]
    yield "native tools", CHAT, {**base, "messages": native, "tools": tools(strict=False), "tool_choice": "auto"}
    yield "ollama", "/api/chat", {"messages": OPENING, "stream": True, "options": {"num_ctx": 32768}}, "lenient"


def roo():
    system = said("system", parts(SYSTEM, **EPHEMERAL))
    base = {"temperature": 0, **USAGE, "parallel_tool_calls": False, "max_completion_tokens": 4096}
    yield "cached", CHAT, {**base, "messages": [system, said("user", parts(ASK, **EPHEMERAL))], "tools": tools()}
    forced = {**base, "messages": OPENING, "tools": tools(), "tool_choice": "required", "max_completion_tokens": 300}
    yield "required", CHAT, forced
    yield "prompt", CHAT, {"messages": [said("user", "Improve this prompt.")]}


def open_webui():
    talk = [said("user", "Hello"), said("assistant", "Hello there."), said("user", ASK)]
    yield "chat", CHAT, {"messages": talk, "stream": True}
    settings = {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 256,
        "frequency_penalty": 0.1,
        "seed": 3,
        "stop": ["END"],
    }
    yield "settings", CHAT, {"messages": talk, **USAGE, **settings}
    wider = {"top_k": 40, "min_p": 0.05, "repeat_penalty": 1.1, "num_ctx": 4096, "think": True, "keep_alive": "5m"}
    yield "settings of its own", CHAT, {"messages": talk, "stream": True, **wider}, "lenient"
    for what in ("title", "tags", "follow-ups", "search queries", "emoji"):
        task = [said("user", f"### Task:\nWrite {what} for this talk as JSON.\n<chat_history>\n{ASK}\n</chat_history>")]
        limit = {"max_completion_tokens": 1000} if what == "title" else {}
        yield what, CHAT, {"messages": task, "stream": False, **limit}
    yield "native tools", CHAT, {"messages": talk, "stream": True, "tools": tools()}
    prompted = [said("system", "Available tools: []"), said("user", "Query: History:\nUSER: " + ASK)]
    yield "tools by prompt", CHAT, {"messages": prompted, "stream": False}
    options = {"temperature": 0.7, "num_predict": 64, "top_k": 40, "stop": ["END"]}
    yield "ollama", "/api/chat", {"messages": talk, "stream": True, "options": options, "keep_alive": "5m"}
    yield "ollama's title", "/api/chat", {"messages": talk[:1], "stream": False, "options": {"num_predict": 1000}}


def editors():
    zed = {"messages": turn(), **USAGE, "tools": tools(), "temperature": 1.0, "parallel_tool_calls": False}
    yield "Zed", CHAT, {**zed, "prompt_cache_key": "t", "max_completion_tokens": 4096, "tool_choice": "auto"}
    ollama = {"messages": OPENING, "stream": True, "tools": tools(), "keep_alive": -1, "think": False}
    yield "Zed with Ollama", "/api/chat", {**ollama, "options": {"num_ctx": 8192, "temperature": 1.0}}, "lenient"
    copilot = {"messages": OPENING, "tools": tools(), "tool_choice": "auto", "temperature": 0.1, "top_p": 1, "n": 1}
    yield "Copilot", CHAT, {**copilot, **USAGE, "max_tokens": 4096}
    yield "Copilot's look at a model", "/api/show", {"model": "m"}
    yield "JetBrains", CHAT, {"messages": OPENING, "stream": True, "temperature": 0.2}
    twinny = {"prompt": FIM, "stream": True, "temperature": 0.2, "max_tokens": 512, "stop": STOPS[:4]}
    yield "Twinny", "/v1/completions", twinny


def other_agents():
    goose = {"messages": turn(), "tools": tools(), "temperature": 0.7, "max_completion_tokens": 4096, **USAGE}
    yield "goose", CHAT, goose
    qwen = {"messages": turn(None, reasoning_content="The file first."), "tools": tools(), **USAGE, "top_p": 0.95}
    yield "Qwen Code", CHAT, {**qwen, "temperature": 0.7, "max_tokens": 8000}
    crush = [said("system", SYSTEM), said("user", parts(ASK))]
    yield "Crush", CHAT, {"messages": crush, "tools": tools(strict=False), "max_tokens": 4096, **USAGE}
    hands = {"messages": turn(""), "tools": tools(), "temperature": 0.0, "top_p": 1.0, "seed": None, "stop": None}
    yield "OpenHands", CHAT, hands
    smol = {
        "messages": OPENING,
        "stop": ["Observation:", "Calling tools:"],
        "tools": tools(),
        "tool_choice": "required",
    }
    yield "smolagents", CHAT, {**smol, "max_tokens": 300}
    chosen = {"type": "function", "function": {"name": "set_plan"}}
    yield "Instructor", CHAT, {"messages": OPENING, "tools": tools(), "tool_choice": chosen, "max_tokens": 300}
    house = {"input": [{"role": "user", "content": ASK}], "instructions": SYSTEM, "tools": flat_tools(strict=False)}
    house |= {"max_output_tokens": 3000, "top_p": 1.0, "temperature": 1.0, "stream": True, "store": False, "user": "0"}
    yield "Home Assistant", RESPONSES, house
    spoken = {"messages": OPENING, "tools": tools(), "stream": True, "options": {"num_ctx": 8192}, "keep_alive": "-1s"}
    yield "Home Assistant with Ollama", "/api/chat", spoken, "lenient"
    n8n = {"messages": OPENING, "temperature": 0.7, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1}
    yield "n8n", CHAT, {**n8n, "stream": False, "tools": tools(strict=False), "tool_choice": "auto"}
    dspy = {"messages": OPENING, "temperature": 0.0, "max_tokens": 100, "response_format": JSON_SCHEMA}
    yield "DSPy", CHAT, dspy
    harness = {"prompt": [[72, 105, 33]], "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234, "temperature": 0}
    yield "lm-eval", "/v1/completions", harness
    until = {"prompt": "Question: 1 + 1?\nAnswer:", "max_tokens": 32, "stop": ["Question:", "\n\n"], "seed": 1234}
    yield "lm-eval, until", "/v1/completions", {**until, "temperature": 0}


CLIENTS = [claude_code, codex, opencode, aider, llm, continue_dev, cline, roo, open_webui, editors, other_agents]


def events_of(raw):
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]


def whole(path, body, raw):
    """None, or what an answer lacks."""
    if path == MESSAGES + "/count_tokens":
        return None if json.loads(raw)["input_tokens"] > 0 else "counts nothing"
    if path.startswith("/api/"):
        lines = [json.loads(line) for line in raw.decode().splitlines()]
        finished = path == "/api/show" or (lines[-1].get("done") is True and lines[-1]["done_reason"])
        return None if finished else "is not done"
    stream = body.get("stream")
    if path == MESSAGES:
        last = events_of(raw)[-1]["type"] == "message_stop" if stream else json.loads(raw)["stop_reason"]
        return None if last else "has no end"
    if path == RESPONSES:
        end = events_of(raw)[-1]["response"] if stream else json.loads(raw)
        return None if end["status"] in ("completed", "incomplete") else f"ended as {end['status']}"
    chat = path == CHAT
    if not stream:
        answer = shapes.problem(shapes.CHAT if chat else shapes.COMPLETION, json.loads(raw))
        return answer and f"has another shape: {answer}"
    events, shape = events_of(raw), shapes.CHUNK if chat else shapes.COMPLETION_CHUNK
    wrong = next(filter(None, (shapes.problem(shape, event) for event in events)), None)
    ends = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    if wrong or len(ends) != 1 or not raw.rstrip().endswith(b"data: [DONE]"):
        return f"is no stream: {wrong} {ends} {raw[-100:]}"
    counted = (body.get("stream_options") or {}).get("include_usage")
    return "has no usage" if counted and not events[-1]["usage"] else None


def forced_call(body, raw):
    """Where a call is demanded: whether there is one."""
    return "tool_calls" in raw.decode() or "tool_use" in raw.decode()


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as root:
        model = write_scripted_model(f"{root}/m", ["Hello ", "there."], template(HERMES), context=32768)
        options = ("--threads", 1, "--alias", "claude-*=m,gpt-*=m")
        with Server(model, *options, name="m") as strict, Server(model, *options, "--lenient", name="m") as lenient:
            for client in CLIENTS:
                for what, path, body, *mode in client():
                    name = f"{client.__name__}: {what}"
                    if wanted and wanted not in name:
                        continue
                    server = lenient if mode else strict
                    status, _, raw = server.request("POST", path, {**body, "model": "m"})
                    problem = None if status != 200 else whole(path, body, raw)
                    check(status == 200 and not problem, f"{name}: {status} {problem or ''} {raw[:400]}")
                    if status == 200 and body.get("tool_choice") not in (None, "auto"):
                        check(forced_call(body, raw), f"{name}: no call: {raw[:400]}")
                    if wanted:
                        print(name, status, raw[:600].decode())
    check.done()


if __name__ == "__main__":
    main()
