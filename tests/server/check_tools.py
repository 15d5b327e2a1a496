"""Tools on a real model: calls, streamed and whole, their answers in history."""
import json

import shapes
from apus_server import Checks, Server, model_path

check = Checks()
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city now", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}, "required": ["city"]}}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "max_tokens": 100}


def valid(schema, value, what):
    wrong = shapes.problem(schema, value)
    check(wrong is None, f"{what}: {wrong}")


def joined(events):
    """The message that the events of a stream add up to, and how it ended."""
    check(events[-1] == "[DONE]", "a stream ends with [DONE]")
    message, finish, calls = {"content": "", "reasoning_content": ""}, None, []
    for chunk in map(json.loads, events[:-1]):
        valid(shapes.CHUNK, chunk, "chunk")
        for choice in chunk["choices"]:
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    check(call["index"] == len(calls), "calls begin one after the other")
                    calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                check(call["index"] == len(calls) - 1, "only the last call goes on")
                calls[-1]["arguments"] += call["function"]["arguments"]
    return message, calls, finish


def same_as_whole(s, **fields):
    status, answer = s.chat(ASK, **GREEDY, **fields)
    check(status == 200, answer)
    valid(shapes.CHAT, answer, "answer")
    whole = answer["choices"][0]
    message, calls, finish = joined(s.stream("/v1/chat/completions", {"messages": ASK, **GREEDY, **fields}))
    check(message["content"] == (whole["message"]["content"] or ""), f"content: {message} {whole}")
    mine = [(c["function"]["name"], c["function"]["arguments"]) for c in whole["message"].get("tool_calls", [])]
    check([(c["name"], c["arguments"]) for c in calls] == mine and finish == whole["finish_reason"], f"calls: {calls} {whole}")
    return whole


def test_auto(s):
    whole = same_as_whole(s, tools=[WEATHER])
    calls = whole["message"].get("tool_calls")
    if not check(calls and whole["finish_reason"] == "tool_calls", f"the model calls: {whole}"):
        return
    call = calls[0]
    check(call["function"]["name"] == "get_weather" and "Paris" in json.loads(call["function"]["arguments"])["city"], call)
    check(call["id"].startswith("call_") and len(call["id"]) == 29, call["id"])
    for arguments in (call["function"]["arguments"], "no JSON"):
        history = ASK + [{"role": "assistant", "content": None, "tool_calls": [{**call, "function": {"name": "get_weather", "arguments": arguments}}]},
                         {"role": "tool", "tool_call_id": call["id"], "content": "It is 31 degrees."}]
        status, answer = s.chat(history, tools=[WEATHER], **GREEDY)
        check(status == 200, f"the call's answer is taken: {answer}")
    cut = s.chat(ASK, tools=[WEATHER], temperature=0, max_tokens=12)[1]["choices"][0]
    check(cut["finish_reason"] == "length", f"a call that is cut: {cut}")
    without = same_as_whole(s, tools=[WEATHER], tool_choice="none")
    check("tool_calls" not in without["message"], "none")
    status, answer = s.chat(ASK, tools=[WEATHER], n=3, temperature=1, seed=4, logprobs=True, max_tokens=30)
    ids = [c["id"] for choice in answer["choices"] for c in choice["message"].get("tool_calls", [])]
    check(status == 200 and len(ids) == len(set(ids)), "ids differ")


if __name__ == "__main__":
    with Server(model_path("qwen-0.5b"), "--ctx-size", 2048) as server:
        test_auto(server)
    check.done()
