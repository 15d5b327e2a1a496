"""Requests that real clients send and that once failed: the doors of other APIs, web pages, raw prompts, histories that
other servers wrote. Each check names the fault.
"""

import base64
import json
import socket
import tempfile

from apus_server import Checks, Server
from scripted_model import HERMES, TAGGED, template, write_scripted_model

check = Checks()
STRICT = (  # as Qwen3.5's: a system message anywhere but first is an error
    "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{%- endif %}{%- endfor %}"
)
CALL = ["<tool_call>", '\n{"name": "f", "arguments": {"city":', ' "Oslo"}}', "\n</tool_call>"]
TAGGED_CALL = ["<tool_call>", "\n<function=f", ">\n<parameter=city>\nOslo\n</parameter>\n", "</function>\n</tool_call>"]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
USER = {"role": "user", "content": "x"}


def models(root):
    scripts = {
        "plain": (["Hello ", "there."], template(HERMES)),
        "strict": (["Hello ", "there."], STRICT + template(HERMES)),
        "call": (CALL, template(HERMES)),
        "twice": ([*CALL[:3], "\n</tool_call>\n", "<tool_call>"], template(HERMES)),
        "tagged": (TAGGED_CALL, template(TAGGED)),
        "digits": (["1", "2"], template(HERMES)),
        "fill": (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "Mid."], template(HERMES)),
        "judge": (["yes", "no", "<|im_start|>", "<|im_end|>"], template(HERMES)),
        "thinks": (["Hm.", "</think>", "\n\nYes."], template(HERMES, "<think>\\n")),
        "switch": (
            ["Hm.", "</think>", "\n\nYes."],
            template(HERMES, "' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n') + '"),
        ),
    }
    return [write_scripted_model(f"{root}/{name}", *script) for name, script in scripts.items()]


class Api:
    def __init__(self, server):
        self.server = server

    def __call__(self, path, body=None, headers=None, method=None):
        status, headers, raw = self.server.request(
            method or ("POST" if body is not None else "GET"), path, body, headers
        )
        try:
            return status, json.loads(raw), headers
        except ValueError:
            return status, raw.decode(), headers


def post(api, path, fault, **body):
    status, answer, _ = api(path, body)
    check(status == 200, f"{fault}: {status} {answer}")
    return answer if status == 200 else None


def test_raw_prompts(api):
    status, tokens, _ = api("/tokenize", {"model": "plain", "prompt": "<|start|>user\nx<|end|>"})
    answer = post(api, "/v1/completions", "F1", model="plain", prompt="<|start|>user\nx<|end|>", max_tokens=1)
    check(answer["usage"]["prompt_tokens"] == len(tokens["tokens"]) == 8, f"F1: control tokens {answer['usage']}")
    chat = post(
        api, "/v1/chat/completions", "F1", model="plain", messages=[{**USER, "content": "<|end|>"}], max_tokens=1
    )
    plain = post(api, "/v1/chat/completions", "F1", model="plain", messages=[{**USER, "content": "x"}], max_tokens=1)
    more = chat["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    check(more == len("<|end|>") - 1, f"F1: in a chat, user text stays text: {more}")
    answer = post(api, "/api/generate", "F11 raw", model="plain", prompt="<|start|>assistant\n", raw=True, stream=False)
    check(answer["response"] == "Hello there." and answer["prompt_eval_count"] == 11, f"F11 raw: {answer}")
    status, answer, _ = api("/api/generate", {"model": "plain", "prompt": "a", "suffix": "b", "stream": False})
    check(status == 400 and "suffix" in answer["error"], f"F11: a suffix without such tokens: {answer}")
    answer = post(api, "/api/generate", "F11 suffix", model="fill", prompt="a", suffix="b", stream=False)
    check(answer["response"] == "Mid." and answer["prompt_eval_count"] == 5, f"F11 suffix: {answer}")


def joined(events):
    text, calls, finish = "", [], None
    for chunk in map(json.loads, events[:-1]):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in choice["delta"].get("tool_calls", []):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[-1][1] += call["function"]["arguments"]
    return text, calls, finish


def test_cut_calls(api):
    """No marker of a call is content, wherever max_tokens cuts; the name comes once it is whole."""
    for model, most in (("call", 4), ("twice", 5), ("tagged", 4)):
        for choice in ("required", "auto") if model != "twice" else ("required",):
            for tokens in range(1, most + 1):
                fields = {
                    "model": model,
                    "messages": [USER],
                    "tools": [TOOL],
                    "tool_choice": choice,
                    "temperature": 0,
                    "max_tokens": tokens,
                }
                if choice == "required" and model != "twice":
                    fields["parallel_tool_calls"] = False
                answer = post(api, "/v1/chat/completions", "F2", **fields)
                message = answer["choices"][0]["message"]
                calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
                what = f"F2 {model} {choice} {tokens}: {message}"
                check(not message["content"], what)
                check(choice != "required" or message["content"] is None or calls == [], what)
                api.server.name = model
                text, streamed, _ = joined(api.server.stream("/v1/chat/completions", fields))
                check(text == "" and streamed == calls, f"{what}, streamed {text!r} {streamed}")
    fields = {"model": "call", "messages": [USER], "tools": [{"name": "f", "input_schema": {}}], "max_tokens": 1}
    answer = post(api, "/v1/messages", "F2", **fields, tool_choice={"type": "any"})
    check(all(b["type"] != "text" for b in answer["content"]), f"F2 Messages: {answer}")
    fields = {
        "model": "call",
        "input": "x",
        "tools": [{"type": "function", **TOOL["function"]}],
        "max_output_tokens": 1,
    }
    answer = post(api, "/v1/responses", "F2", **fields, tool_choice="required")
    check(all(item["type"] != "message" for item in answer["output"]), f"F2 Responses: {answer['output']}")


def test_no_arguments(api):
    """A tool without arguments is called without any, whatever the model would rather write."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for model in ("call", "tagged"):
        answer = post(api, "/v1/chat/completions", "no arguments", model=model, messages=[USER], tools=[tool],
                      tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=0)  # fmt: skip
        calls = [c["function"]["arguments"] for c in answer["choices"][0]["message"].get("tool_calls", [])]
        check(len(calls) == 1 and json.loads(calls[0]) == {}, f"no arguments, {model}: {answer['choices']}")


def prompt_of(api, **body):
    """How many tokens a request has, which tells whether two have the same prompt."""
    return post(api, "/v1/chat/completions", "F3", max_tokens=1, **body)["usage"]["prompt_tokens"]


def test_systems(api):
    system = {"role": "system", "content": "a"}
    one = prompt_of(api, model="strict", messages=[{"role": "system", "content": "a\n\na"}, USER])
    two = prompt_of(api, model="strict", messages=[system, {**system, "role": "developer"}, USER])
    check(one == two, f"F3: system and developer are joined: {one} {two}")
    later = prompt_of(api, model="strict", messages=[system, USER, {**system, "role": "developer"}, USER])
    user = prompt_of(api, model="strict", messages=[system, USER, {**USER, "content": "a"}, USER])
    check(later == user, f"F3: a later one is the user's where the template refuses it: {later} {user}")
    kept = prompt_of(api, model="plain", messages=[system, USER, system, USER])
    check(
        kept == prompt_of(api, model="plain", messages=[system, USER, {"role": "system", "content": "b"}, USER]), "F3"
    )
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]}
    body = {"model": "strict", "instructions": "Be brief.", "input": [developer, USER], "max_output_tokens": 4}
    post(api, "/v1/responses", "F3 Codex", **body)


def test_pages(api, closed):
    origin, host = {"Origin": "http://localhost:3000"}, {"Host": "host.docker.internal:1"}
    status, answer, _ = closed("/v1/models", headers=origin)
    check(status == 403 and "--allow-origin http://localhost:3000" in answer["error"]["message"], f"F4: {answer}")
    status, answer, _ = closed("/v1/models", headers=host)
    check(status == 403 and "--allow-host host.docker.internal" in answer["error"]["message"], f"F4: {answer}")
    status, answer, headers = api("/v1/models", headers=origin)
    check(status == 200 and headers["access-control-allow-origin"] == origin["Origin"], f"F4: {status} {headers}")
    status, answer, headers = api("/v1/models", headers=host)
    check(status == 200 and "access-control-allow-origin" not in headers, f"F4: a host: {status} {answer}")
    ask = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-a"}
    status, answer, headers = api("/v1/chat/completions", headers=ask, method="OPTIONS")
    check(
        status == 204
        and headers["access-control-allow-headers"] == "authorization,x-a"
        and "POST" in headers["access-control-allow-methods"],
        f"F4: preflight {status} {headers}",
    )
    local = "access-control-allow-private-network"
    check(local not in headers, f"F4: preflight {headers}")
    ask_local = {**ask, "Access-Control-Request-Private-Network": "true"}
    status, answer, headers = api("/v1/messages", headers=ask_local, method="OPTIONS")
    check(status == 204 and headers.get(local) == "true", f"F4: preflight from another network {status} {headers}")
    status, answer, headers = api("/v1/models", headers={"Origin": "http://evil.example"})
    check(status == 403 and "access-control-allow-origin" not in headers, f"F4: another origin {status} {headers}")
    status, answer, headers = closed("/v1/chat/completions", headers=ask, method="OPTIONS")
    check(status == 403, f"F4: preflight of a page that may not: {status}")


def test_ollama(api):
    version = api("/api/version")[1]
    check(tuple(map(int, version["version"].split("."))) >= (0, 6, 4) and version["apus_version"], f"F5: {version}")
    status, shown, _ = api("/api/show", {"model": "plain"})
    info, details = shown["model_info"], shown["details"]
    check(info["general.basename"] == "plain" and info["general.architecture"] == "llama", f"F5: {info}")
    check(info["llama.context_length"] == 1024, f"F5: {info}")
    check(
        details["family"] == "llama" and details["parameter_size"] and details["quantization_level"], f"F5: {details}"
    )
    tags = api("/api/tags")[1]["models"]
    check(all(m["size"] > 0 and m["details"]["family"] for m in tags), f"F5: {tags[0]}")
    for path in ("/api/show", "/api/nothing"):
        status, answer, _ = api(path, {"model": "none"})
        check(status == 404 and isinstance(answer["error"], str), f"F11: {path} {answer}")
    options = {"repeat_last_n": 64, "num_ctx": 4096, "num_predict": 2}
    for model in ("plain", "plain:latest"):
        post(api, "/api/chat", "F11", model=model, messages=[USER], stream=False, truncate=True, options=options)
    status, answer, _ = api("/api/chat", {"model": "plain", "messages": [USER], "stream": False,
                                          "options": {**options, "repeat_penalty": 1.2}})  # fmt: skip
    check(status == 400 and "repeat_last_n" in answer["error"], f"F11: a window that would count: {answer}")
    for path, body in (("/api/generate", {}), ("/api/chat", {"messages": []})):
        answer = post(api, path, "F11 load", model="plain", **body)
        check(answer["done"] is True and answer["done_reason"] == "load", f"F11: {path} {answer}")
    answer = post(api, "/api/generate", "keep_alive", model="digits", keep_alive=0)
    check(answer["done_reason"] == "unload", f"keep_alive 0: {answer}")
    for _ in range(100):
        names = [m["name"] for m in api("/api/ps")[1]["models"]]
        if "digits" not in names:
            break
    check("digits" not in names and "plain" in names, f"keep_alive 0: {names}")
    post(api, "/api/generate", "keep_alive", model="digits", keep_alive="5m", prompt="x", stream=False)
    status, answer, _ = api("/api/generate", {"model": "plain", "prompt": "x", "keep_alive": "soon"})
    check(status == 400, f"keep_alive: {answer}")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps({"model": "plain", "prompt": "x", "stream": False}).encode()
    check(api("/api/generate", body, form)[0] == 200, "F11: curl -d as in Ollama's documents")
    check(api("/api/generate", body, {**form, "Origin": api.server.url})[0] == 415, "F11: not from a page")
    check(api("/api/generate", body, {**form, "Sec-Fetch-Site": "same-site"})[0] == 415, "F11: not from a browser")


def refused(api, path, body, fault, *words):
    status, answer, _ = api(path, {"max_tokens": 4, **body} if path != "/v1/responses" else body)
    text = json.dumps(answer)
    check(status == 400 and all(word in text for word in words), f"{fault}: {status} {text}")


def test_errors(api):
    message = {"model": "plain", "messages": [USER]}
    refused(api, "/v1/responses", {"model": "plain", "input": []}, "F6", '"param": "input"')
    post(api, "/v1/responses", "F6", model="plain", max_output_tokens=4, input=[
        USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER])  # fmt: skip
    refused(
        api, "/v1/messages", {**message, "tools": [{"name": "a b", "input_schema": {}}]}, "F6", "tools[0].name", "128"
    )
    post(api, "/v1/messages", "F6", **message, max_tokens=4, tools=[{"name": "n" * 128, "input_schema": {}}])
    refused(api, "/v1/chat/completions", {**message, "seed": 2**63}, "F6", "more than 64 bits", "9223372036854775807")
    refused(api, "/v1/chat/completions", {**message, "seed": -(2**63) - 1}, "T9", "integer_below_min_value")
    post(api, "/v1/chat/completions", "T9", **message, seed=-(2**63), max_tokens=1)
    image = {"type": "image", "source": {"type": "url", "url": "http://a/b"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    refused(api, "/v1/messages", {**message, "messages": [{"role": "user", "content": [result]}]}, "F7",
            "messages[0].content[0].content[0]", "image")  # fmt: skip
    refused(api, "/v1/responses", {"model": "plain", "input": [{"type": "web_search_call"}]}, "F7", "input[0]",
            "'web_search_call'")  # fmt: skip
    refused(api, "/v1/chat/completions", {**message, "verbosity": "low"}, "F7", "does not support 'low'")
    refused(api, "/v1/chat/completions", {**message, "reasoning_effort": "low"}, "F7", "this model's chat template")
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}
    found = {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "abc"}]}
    for block in (document, found, {**result, "content": [document, found]}):
        post(api, "/v1/messages", "F7", model="plain", max_tokens=4, messages=[
            USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {"role": "user", "content": [block]}])  # fmt: skip


def test_files(api):
    """Text files in each API are texts with their name in front; other files are refused by name."""
    content = "\ufeffTwo lines,\nüñ.".encode()
    data = base64.b64encode(content).decode()
    url = f"data:text/markdown;base64,{data}"
    told = "n.md\nTwo lines,\nüñ."
    plain = post(api, "/v1/chat/completions", "files", model="plain", max_tokens=1, messages=[
        {"role": "user", "content": [{"type": "text", "text": told}, {"type": "text", "text": "y"}]}])  # fmt: skip
    for given in ({"file_data": url, "filename": "n.md"}, {"file_data": data, "filename": "n.md"}):
        part = [{"type": "file", "file": given}, {"type": "text", "text": "y"}]
        asked = [{"role": "user", "content": part}]
        found = post(api, "/v1/chat/completions", "files", model="plain", max_tokens=1, messages=asked)
        check(found["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"], f"files: {found['usage']}")
        shown = post(api, "/apply-template", "files", model="plain", messages=asked)
        check(f"user\n{told}\ny<|end|>" in shown["prompt"], f"files: {shown}")
    part = [{"type": "input_file", "file_data": url, "filename": "n.md"}, {"type": "input_text", "text": "y"}]
    found = post(api, "/v1/responses", "files", model="plain", input=[{"role": "user", "content": part}])
    check(found["usage"]["input_tokens"] == plain["usage"]["prompt_tokens"], f"files: Responses {found['usage']}")
    for source in (
        {"type": "base64", "media_type": "text/plain", "data": data},
        {"type": "text", "media_type": "text/plain", "data": content.decode()[1:]},
    ):
        block = [{"type": "document", "title": "n.md", "source": source}, {"type": "text", "text": "y"}]
        found = post(
            api, "/v1/messages", "files", model="plain", max_tokens=1, messages=[{"role": "user", "content": block}]
        )
        usage = found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"]
        check(usage == plain["usage"]["prompt_tokens"], f"files: Messages {found['usage']}")
    for name, begin in (
        ("a PDF", b"%PDF-1.7"), ("Office", b"PK\x03\x04"), ("UTF-16", b"\xff\xfea\0"), ("PNG", b"\x89PNG\r\n"),
        ("neither", b"a\0b"), ("neither", b"\xc3\x28"),
    ):  # fmt: skip
        bad = base64.b64encode(begin).decode()
        file = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + bad}}
        refused(api, "/v1/chat/completions", {"model": "plain", "messages": [{"role": "user", "content": [file]}]},
                "files", "messages[0].content[0].file.file_data", "unsupported_file", name)  # fmt: skip
        refused(api, "/v1/responses", {"model": "plain", "input": [{"role": "user", "content": [
            {"type": "input_file", "file_data": bad}]}]}, "files", "content[0].file_data", name)  # fmt: skip
        source = {"type": "base64", "media_type": "application/pdf", "data": bad}
        refused(api, "/v1/messages", {"model": "plain", "messages": [{"role": "user", "content": [
            {"type": "document", "source": source}]}]}, "files", "content[0].source.data", name)  # fmt: skip
    for file, word in (
        ({"file_id": "file-1"}, "file_id"), ({}, "file_data"), ({"file_data": "data:text/plain;base64,?"}, "base64"),
        ({"file_data": "http://a/b"}, "data URLs"), ({"file_data": data, "size": 1}, "size"),
    ):  # fmt: skip
        content = [{"type": "file", "file": file}]
        refused(api, "/v1/chat/completions", {"model": "plain", "messages": [{"role": "user", "content": content}]},
                "files", word)  # fmt: skip


def test_messages(api):
    whole = post(api, "/v1/messages", "F8", model="plain", max_tokens=8, messages=[USER])
    begun = [USER, {"role": "assistant", "content": "Hello "}]
    rest = post(api, "/v1/messages", "F8", model="plain", max_tokens=1, messages=begun)
    told = whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
    more = rest["usage"]["input_tokens"] + rest["usage"]["cache_read_input_tokens"] - told
    check(more == 1, f"F8: the answer goes on behind its beginning: {more} {rest}")
    for model in ("thinks", "switch"):
        answer = post(api, "/v1/messages", "F14", model=model, max_tokens=9, messages=[USER], temperature=0)
        check([b["type"] for b in answer["content"]] == ["text"], f"F14: {model} {answer['content']}")
        thinking = {"type": "enabled", "budget_tokens": 1024}
        answer = post(api, "/v1/messages", "F14", model=model, max_tokens=9, messages=[USER], thinking=thinking)
        check(answer["content"][0]["type"] == "thinking", f"F14: {model} {answer['content']}")


def test_histories(api):
    for message in (
        {"content": "x", "annotations": []},
        {"content": "x", "tool_calls": []},
        {"content": None, "reasoning_content": "Hm."},
        {"content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"content": "x", "function_call": None, "audio": None, "refusal": None},
    ):
        messages = [USER, {"role": "assistant", **message}, USER]
        post(api, "/v1/chat/completions", f"F10 {message}", model="plain", messages=messages, max_tokens=2)
    body = {"model": "plain", "messages": [{**USER, "annotations": []}]}
    refused(api, "/v1/chat/completions", body, "F10: only the assistant's", "annotations")
    status, answer, headers = api("/v1/chat/completions", {"model": "plain", "max_tokens": 1, "messages": [
        USER, {"role": "assistant", "content": "x", "executed_tools": []}, USER]})  # fmt: skip
    named = headers.get("x-ignored-params")
    check(status == 200 and named == "messages[1].executed_tools", f"F10: any member of an answer {named} {answer}")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "5"}
    bare = {k: v for k, v in call.items() if k != "type"}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [{**bare, "index": 0}]}, result]
    post(api, "/v1/chat/completions", "F10: a call without a type", model="plain", messages=messages, max_tokens=1)
    for thinking in ("Hm.", [{"type": "text", "text": "Hm."}]):
        parts = [{"type": "thinking", "thinking": thinking, "closed": True}, {"type": "text", "text": "x"}]
        messages = [USER, {"role": "assistant", "content": parts}, USER]
        told = post(api, "/apply-template", "F10: a part of reasoning", model="plain", messages=messages)
        check(told and "assistant\nx<|end|>" in told["prompt"], f"F10: a part of reasoning {told}")
    body = {"model": "plain", "messages": [{"role": "user", "content": parts}]}
    refused(api, "/v1/chat/completions", body, "F10: the user does not think", "messages[0].content[0]", "assistant")
    begun = {"role": "assistant", "content": "Hello "}
    told = []
    for more, field in (({"prefix": True}, {}), ({}, {"continue_final_message": True}), ({"prefix": False}, {})):
        body = {"model": "plain", "messages": [USER, {**begun, **more}], **field}
        told.append(post(api, "/apply-template", "prefix", **body))
    check(told[0] == told[1] != told[2], f"prefix continues the last message: {told}")
    told = []
    for content in ([], None):
        messages = [USER, {"role": "assistant", "content": content, "tool_calls": [call]}, result]
        told.append(post(api, "/apply-template", "no parts", model="plain", messages=messages))
    check(told[0] == told[1], f"no parts beside calls are no content: {told}")
    body = {"model": "plain", "messages": [USER, {"role": "assistant", "content": []}]}
    refused(api, "/v1/chat/completions", body, "no parts without calls", "messages[1].content", "empty_array")


def test_stops(api):
    """Stop strings end texts, not calls nor reasoning."""
    fields = {"messages": [USER], "temperature": 0, "max_tokens": 60}
    for model in ("call", "tagged"):
        for choice in ("required", "auto"):
            answer = post(api, "/v1/chat/completions", "stop", model=model, **fields, tools=[TOOL], tool_choice=choice,
                          parallel_tool_calls=False, stop=["city", "Oslo", "}"])  # fmt: skip
            chosen = answer["choices"][0]
            calls = [c["function"]["arguments"] for c in chosen["message"].get("tool_calls", [])]
            check(chosen["finish_reason"] == "tool_calls", f"stop, {model} {choice}: {chosen}")
            check(calls and json.loads(calls[0]) == {"city": "Oslo"}, f"stop, {model} {choice}: {calls}")
    answer = post(api, "/v1/chat/completions", "stop", model="thinks", **fields, stop=["m.", "es"])
    message = answer["choices"][0]["message"]
    check(message["content"] == "Y" and message["reasoning_content"] == "Hm.", f"stop and reasoning: {message}")
    answer = post(api, "/v1/messages", "stop", model="plain", messages=[USER], max_tokens=9, stop_sequences=["ther"])
    check(answer["content"][0]["text"] == "Hello ", f"stop: {answer}")
    check(answer["stop_sequence"] == "ther" and answer["stop_reason"] == "stop_sequence", f"stop: {answer}")


def test_members(api):
    """Members inside messages and tools: refused where they ask for what there is not, else named in a header."""
    source = {"type": "text", "media_type": "text/plain", "data": "abc"}
    for citations, status in (({"enabled": True}, 400), ({"enabled": False}, 200), (None, 200)):
        block = {"type": "document", "source": source, "citations": citations}
        body = {"model": "plain", "max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
        got, answer, headers = api("/v1/messages", body)
        check(got == status, f"citations {citations}: {got} {answer}")
        check(status == 200 or "messages[0].content[0].citations" in answer["error"]["message"], f"citations: {answer}")
        check("x-ignored-params" not in headers, f"citations {citations}: {headers}")
    said = {"role": "user", "content": [{"type": "text", "text": "x", "hint": 1}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "a": 1}}
    for path, body, named in (
        ("/v1/chat/completions", {"messages": [said]}, "messages[0].content[0].hint"),
        ("/v1/chat/completions", {"messages": [USER], "tools": [tool]}, "tools[0].function.a"),
        ("/v1/messages", {"messages": [said]}, "messages[0].content[0].hint"),
        ("/v1/responses", {"input": [{"role": "user", "content": "x", "c": 1}]}, "input[0].c"),
        ("/api/chat", {"messages": [{**USER, "d": 1}], "stream": False}, "messages[0].d"),
    ):  # fmt: skip
        limit = {} if path in ("/v1/responses", "/api/chat") else {"max_tokens": 1}
        got, answer, headers = api(path, {"model": "plain", **limit, **body})
        check(got == 200 and headers.get("x-ignored-params") == named, f"{path}: {got} {headers} {answer}")


def test_same_names(api):
    """Two tools of one name with other arguments: a call would not say which is meant."""
    one = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    other = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    tools = [{"type": "function", "function": function} for function in (one, other)]
    refused(api, "/v1/chat/completions", {"model": "plain", "messages": [USER], "tools": tools}, "T4",
            "tools[1].function.name", "unique")  # fmt: skip
    tools = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in (one, other)]
    refused(api, "/v1/messages", {"model": "plain", "messages": [USER], "tools": tools}, "T4", "tools[1].name")
    same = [{"type": "function", "function": one}] * 2
    body = {"model": "tagged", "messages": [USER], "tools": same, "max_tokens": 9}
    post(api, "/v1/chat/completions", "T4: the same tool twice", **body)


def test_numbers(api):
    for schema, most in (({"type": "integer"}, 20), ({"type": "number"}, 45), ({"type": "integer", "minimum": 3}, 20)):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        answer = post(api, "/v1/chat/completions", "F9", model="digits", messages=[USER], response_format=form,
                      max_tokens=400, temperature=0, logit_bias={str(ord("7")): 100})  # fmt: skip
        choice = answer["choices"][0]
        check(choice["finish_reason"] == "stop" and len(choice["message"]["content"]) <= most, f"F9: {schema} {choice}")


def exchange(port, text):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(text.encode())
        answer = s.recv(65536).decode()
    return int(answer.split(" ")[1]), answer


def test_http(api):
    port = api.server.port
    for target in (f"http://127.0.0.1:{port}/health", f"HTTP://localhost:{port}/health?x=1"):
        status, answer = exchange(port, f"GET {target} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        check(status == 200, f"F12: the absolute form {answer}")
    status, answer = exchange(port, "GET http://evil.example/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    check(status == 403, f"F12: its host counts {answer}")
    check(exchange(port, "GET /health HTTP/1.0\r\n\r\n")[0] == 200, "F12: HTTP/1.0 without a Host")
    check(exchange(port, "GET /health HTTP/1.1\r\n\r\n")[0] == 400, "F12: HTTP/1.1 needs one")
    whole = "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    check(exchange(port, whole)[0] == 204, "F12: OPTIONS of the whole server")
    status, answer = exchange(port, "GET /health HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n")
    check(status == 505 and "invalid_request_error" in answer, f"F12: {answer}")
    for wrong, right in (
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/completion", None),
    ):
        status, answer, _ = api(wrong, {"model": "plain"})
        told = answer["error"]["message"]
        check(status == 404 and (right is None or f"did you mean {right} ?" in told), f"F12: {wrong} {told}")


def test_lenient(api, closed):
    fields = {
        "stop": [],
        "max_tokens": -1,
        "num_ctx": 4096,
        "repeat_penalty": 1.1,
        "thinking": {"type": "disabled"},
        "add_generation_prompt": True,
        "reasoning_effort": "low",
    }
    body = {"model": "plain", "messages": [USER], **fields}
    status, answer, headers = api("/v1/chat/completions", body)
    named = set(headers.get("x-ignored-params", "").split(", "))
    check(status == 200 and {"num_ctx", "thinking", "max_tokens"} <= named, f"lenient: {status} {answer} {named}")
    many = {"model": "plain", "messages": [USER], "stop": [f"x{i}" for i in range(12)]}
    check(api("/v1/chat/completions", many)[0] == 200, "lenient: 12 stop strings")
    document = {"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": True}}
    body = {"model": "plain", "max_tokens": 1, "messages": [{"role": "user", "content": [document]}]}
    status, answer, headers = api("/v1/messages", body)
    named = headers.get("x-ignored-params")
    check(status == 200 and named == "messages[0].content[0].citations", f"lenient: citations {answer} {named}")
    for field, value in fields.items():
        status, answer, headers = closed("/v1/chat/completions", {"model": "plain", "messages": [USER], field: value})
        check(status == 400 and "x-ignored-params" not in headers, f"strict: {field} {answer}")
    many = {"model": "plain", "prompt": "x", "max_tokens": 1, "stop": many["stop"]}
    check(closed("/v1/completions", many)[0] == 200, "12 stop strings of a completion")


def test_names(api):
    for name in ("claude-sonnet-4-5", "gpt-4o"):
        answer = post(api, "/v1/chat/completions", "alias", model=name, messages=[USER], max_tokens=1)
        check(answer["model"] == "plain", f"alias: {answer['model']}")
    status, answer, _ = api("/v1/chat/completions", {"model": "gpt-5", "messages": [USER]})
    check(status == 404, f"alias: {answer}")


def test_rerank(api):
    documents = ["Paris is the capital of France.", {"text": "Rain."}, "The Seine flows through Paris.", ""]
    ask = {"model": "judge", "query": "capital of France", "documents": documents}
    answer = post(api, "/v1/rerank", "rerank", **ask)
    scores = {r["index"]: r["relevance_score"] for r in answer["results"]}
    check(sorted(scores) == [0, 1, 2, 3] and all(0 <= s <= 1 for s in scores.values()), f"rerank: {answer}")
    order = [r["relevance_score"] for r in answer["results"]]
    check(order == sorted(order, reverse=True) and answer["usage"]["prompt_tokens"] > 0, f"rerank: {answer}")
    for i, document in enumerate(documents):
        alone = post(api, "/v1/rerank", "rerank", **{**ask, "documents": [document]})["results"]
        check(alone == [{"index": 0, "relevance_score": scores[i]}], f"rerank, alone: {alone} {scores[i]}")
    first = post(api, "/v1/rerank", "rerank", **ask, top_n=1, return_documents=True)["results"]
    text = [d if isinstance(d, str) else d["text"] for d in documents][first[0]["index"]]
    check(len(first) == 1 and first[0]["document"] == {"text": text}, f"rerank, top_n: {first}")
    other = post(api, "/v1/rerank", "rerank", **ask, instruction="Is it about rain?")["usage"]["prompt_tokens"]
    check(other != answer["usage"]["prompt_tokens"], "rerank, instruction")
    for wrong, param in (
        ({**ask, "model": "plain"}, "model"),
        ({**ask, "documents": []}, "documents"),
        ({**ask, "documents": ["a", 5]}, "documents[1]"),
        ({**ask, "documents": ["x " * 2000]}, "documents[0]"),
        ({**ask, "top_n": 0}, "top_n"),
        ({"model": "judge", "documents": ["a"]}, "query"),
        ({**ask, "other": 1}, "other"),
    ):
        status, answer, _ = api("/v1/rerank", wrong)
        check(status == 400 and answer["error"]["param"] == param, f"rerank: {param} {answer}")


def large_schema(number, size=4200):
    """A schema of an agent's tool: nested, with definitions, choices and long descriptions."""
    text = f"What tool {number} does with it, at length. " * (size // 170)
    item = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": text}, "line": {"type": "integer", "minimum": 0}},
        "required": ["path"],
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$defs": {"Item": item},
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "minItems": 1, "description": text},
            "mode": {"anyOf": [{"enum": ["read", "write"]}, {"type": "null"}], "default": None},
            "options": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
            "note": {"type": "string", "description": text, "maxLength": 200},
        },
        "required": ["items"],
    }


def test_many_tools(api):
    """60 tools with 200 KB of schemas, as agents with many MCP servers have: answered, in each API, and a call that is
    demanded is one of them."""
    schemas = {f"tool_{i}": large_schema(i) for i in range(59)}
    size = len(json.dumps(schemas))
    check(size > 200_000, f"60 tools: {size} bytes of schemas")
    listed = [TOOL] + [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in schemas.items()]
    flat = [{"type": "function", **tool["function"], "strict": False} for tool in listed]
    blocks = [{"name": t["name"], "input_schema": t["parameters"]} for t in flat]
    chat = {"model": "call", "messages": [USER], "tools": listed, "max_tokens": 200, "temperature": 0}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
        answer = post(api, "/v1/chat/completions", "60 tools", **chat, tool_choice=choice)["choices"][0]
        calls = [c["function"] for c in answer["message"].get("tool_calls", [])]
        check(calls[:1] == [{"name": "f", "arguments": '{"city": "Oslo"}'}], f"60 tools, {choice}: {answer}")
    choice = {"type": "function", "function": {"name": "tool_7"}}
    answer = post(api, "/v1/chat/completions", "60 tools", **{**chat, "max_tokens": 60}, tool_choice=choice)["choices"][
        0
    ]
    calls = answer["message"].get("tool_calls") or [{"function": {"name": "tool_7"}}]
    check(calls[0]["function"]["name"] == "tool_7" and answer["message"]["content"] is None, f"one of 60: {answer}")
    answer = post(api, "/v1/messages", "60 tools", model="call", messages=[USER], tools=blocks, max_tokens=200)
    check(answer["content"][0]["name"] == "f", f"60 tools of Messages: {answer['content']}")
    answer = post(api, "/v1/responses", "60 tools", model="call", input="x", tools=flat, max_output_tokens=200)
    check(answer["output"][0]["name"] == "f", f"60 tools of Responses: {answer['output']}")
    answer = post(api, "/api/chat", "60 tools", model="call", messages=[USER], tools=listed, stream=False)
    check(answer["message"]["tool_calls"][0]["function"]["name"] == "f", f"60 tools of Ollama: {answer}")
    twice = {**chat, "tools": [*listed, TOOL]}
    status, answer, _ = api("/v1/chat/completions", twice)
    named = answer["error"]["param"] if status == 400 else None
    check(status == 200 or (named and named.startswith("tools[60]")), f"a tool twice: {status} {answer}")


def test_llama_cpp(api):
    """What clients of llama.cpp ask, and counting of tokens."""
    props = api("/props?model=plain")[1]
    check(props["total_slots"] == 8 and props["default_generation_settings"]["n_ctx"] == 1024, f"/props: {props}")
    check("add_generation_prompt" in props["chat_template"], "/props: chat_template")
    slots = api("/slots?model=plain")[1]
    check(len(slots) == 8 and slots[0] == {"id": 0, "n_ctx": 1024, "is_processing": False}, f"/slots: {slots}")
    check(api("/slots?model=none")[0] == 404, "/slots of no model")
    body = {"model": "plain", "messages": [USER]}
    rendered = post(api, "/apply-template", "/apply-template", **body)
    wanted = "<|start|>user\nx<|end|>\n<|start|>assistant\n"
    check(rendered == {"prompt": wanted}, f"/apply-template: {rendered}")
    tokens = api("/tokenize", {"model": "plain", "content": wanted})[1]["tokens"]
    for path, fields in (
        ("/v1/responses/input_tokens", {"model": "plain", "input": "x"}),
        ("/v1/chat/completions/input_tokens", body),
        ("/v1/messages/count_tokens", body),
    ):
        counted = post(api, path, path, **fields)
        check(counted["input_tokens"] == len(tokens), f"{path}: {counted}")
        check(("object" in counted) == (path != "/v1/messages/count_tokens"), f"{path}: {counted}")
    version = {"anthropic-version": "2023-06-01"}
    listed = api("/v1/models", headers=version)[1]
    check(listed["data"][0]["type"] == "model" and listed["has_more"] is False, f"Anthropic's models: {listed}")
    check(listed["first_id"] == listed["data"][0]["id"] and listed["last_id"] == listed["data"][-1]["id"], f"{listed}")
    one = api("/v1/models/plain", headers=version)[1]
    check(one["display_name"] == "plain" and "created_at" in one, f"Anthropic's model: {one}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        paths = models(root)
        common = ("-t", 2, "--ctx-size", 1024)
        page = ("--allow-origin", "http://localhost:3000,app://obsidian.md", "--allow-host", "host.docker.internal")
        names = ("--alias", "claude-*=plain,gpt-4o=plain", "--lenient")
        with (
            Server(paths[0], *common, name="plain") as strict,
            Server(paths[0], *paths[1:], *common, *page, *names, names=False) as server,
            Server(paths[0], *paths[1:], *common, names=False) as all_models,
        ):
            closed, lenient, api = Api(strict), Api(server), Api(all_models)
            for test in (test_raw_prompts, test_cut_calls, test_no_arguments, test_systems, test_ollama, test_errors,
                         test_files, test_messages, test_histories, test_members,
                         test_same_names, test_stops, test_numbers, test_http, test_llama_cpp,
                         test_rerank, test_many_tools):  # fmt: skip
                test(api)
            test_pages(lenient, closed)
            test_lenient(lenient, closed)
            test_names(lenient)
    check.done()
