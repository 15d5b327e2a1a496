"""JSON schemas of the wire format, from OpenAI's OpenAPI document 2.3.0 (CreateChatCompletionResponse,
CreateChatCompletionStreamResponse, CreateCompletionResponse, Error, Model), with nothing extra allowed inside them but
`timings`.
"""

from jsonschema import Draft202012Validator as Validator


def closed(required, optional=None):
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "null"}
FINISH = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]}
BYTES = {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0, "maximum": 255}}
TOP = closed({"token": STRING, "logprob": {"type": "number"}, "bytes": BYTES})
TOKEN = closed(
    {"token": STRING, "logprob": {"type": "number"}, "bytes": BYTES, "top_logprobs": {"type": "array", "items": TOP}}
)
LOGPROBS = {"anyOf": [NULL, closed({"content": {"type": ["array", "null"], "items": TOKEN}, "refusal": NULL})]}
USAGE = closed(
    {"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER},
    {
        "prompt_tokens_details": closed({}, {"cached_tokens": INTEGER, "audio_tokens": INTEGER}),
        "completion_tokens_details": closed(
            {},
            {
                "reasoning_tokens": INTEGER,
                "audio_tokens": INTEGER,
                "accepted_prediction_tokens": INTEGER,
                "rejected_prediction_tokens": INTEGER,
            },
        ),
    },
)
CALL = closed(
    {
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": closed({"name": {"type": "string", "minLength": 1}, "arguments": STRING}),
    }
)
MESSAGE = closed(
    {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": ["string", "null"]}},
    {"reasoning_content": STRING, "tool_calls": {"type": "array", "minItems": 1, "items": CALL}},
)
NUMBER = {"type": "number", "minimum": 0}
TIMINGS = {
    "timings": closed(
        {
            "cache_n": INTEGER,
            "queued_ms": NUMBER,
            **{
                f"{what}_{name}": INTEGER if name == "n" else NUMBER
                for what in ("prompt", "predicted")
                for name in ("n", "ms", "per_token_ms", "per_second")
            },
            "draft_n": INTEGER,
            "draft_n_accepted": INTEGER,
            "kv_cache": closed(
                {"format": STRING, "exact_bytes": INTEGER, "coded_bytes": INTEGER, "f16_bytes": INTEGER},
                {"note": STRING, "layers_raised": INTEGER, "noise": NUMBER},
            ),
        }
    )
}
HEAD = {"id": {"type": "string", "minLength": 8}, "created": INTEGER, "model": STRING}
FINGERPRINT = {"system_fingerprint": STRING}
CHAT = closed(
    {
        **HEAD,
        "object": {"const": "chat.completion"},
        "usage": USAGE,
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": closed({"index": INTEGER, "message": MESSAGE, "logprobs": LOGPROBS, "finish_reason": FINISH}),
        },
    },
    {**FINGERPRINT, **TIMINGS},
)
CALL_DELTA = {
    "anyOf": [
        closed(
            {
                "index": INTEGER,
                "id": STRING,
                "type": {"const": "function"},
                "function": closed({"name": STRING, "arguments": {"const": ""}}),
            }
        ),
        closed({"index": INTEGER, "function": closed({"arguments": STRING})}),
    ]
}
DELTA = closed(
    {},
    {
        "reasoning_content": STRING,
        "tool_calls": {"type": "array", "minItems": 1, "maxItems": 1, "items": CALL_DELTA},
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "refusal": {"type": ["string", "null"]},
    },
)
CHUNK = closed(
    {
        **HEAD,
        "object": {"const": "chat.completion.chunk"},
        "choices": {
            "type": "array",
            "items": closed(
                {"index": INTEGER, "delta": DELTA, "finish_reason": {"anyOf": [NULL, FINISH]}}, {"logprobs": LOGPROBS}
            ),
        },
    },
    {**FINGERPRINT, **TIMINGS, "usage": {"anyOf": [NULL, USAGE]}},
)
OLD_LOGPROBS = {
    "anyOf": [
        NULL,
        closed(
            {
                "tokens": {"type": "array", "items": STRING},
                "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
                "top_logprobs": {
                    "type": "array",
                    "items": {"anyOf": [NULL, {"type": "object", "additionalProperties": {"type": "number"}}]},
                },
                "text_offset": {"type": "array", "items": INTEGER},
            }
        ),
    ]
}
COMPLETION_CHOICE = closed(
    {
        "index": INTEGER,
        "text": STRING,
        "logprobs": OLD_LOGPROBS,
        "finish_reason": {"enum": ["stop", "length", "content_filter"]},
    }
)
COMPLETION = closed(
    {
        **HEAD,
        "object": {"const": "text_completion"},
        "usage": USAGE,
        "choices": {"type": "array", "minItems": 1, "items": COMPLETION_CHOICE},
    },
    {**FINGERPRINT, **TIMINGS},
)
COMPLETION_CHUNK = closed(
    {
        **HEAD,
        "object": {"const": "text_completion"},
        "choices": {
            "type": "array",
            "items": closed(
                {
                    "index": INTEGER,
                    "text": STRING,
                    "logprobs": OLD_LOGPROBS,
                    "finish_reason": {"enum": ["stop", "length", "content_filter", None]},
                }
            ),
        },
    },
    {**FINGERPRINT, **TIMINGS, "usage": {"anyOf": [NULL, USAGE]}},
)
ERROR = closed(
    {
        "error": closed(
            {
                "message": {"type": "string", "minLength": 1},
                "type": STRING,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)
MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": STRING, "object": {"const": "model"}, "created": INTEGER, "owned_by": STRING},
}
MODELS = closed({"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}})


def problem(schema, value):
    """None, or what is wrong."""
    errors = sorted(Validator(schema).iter_errors(value), key=lambda e: e.json_path)
    return f"{errors[0].json_path}: {errors[0].message[:200]}" if errors else None
