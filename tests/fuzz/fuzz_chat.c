/* Bodies of chats, by every door, and of completions: every body gets an answer or an ApiError of the client's kind
 * that can be written as JSON; what was accepted keeps the limits that the rest of the server relies on. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "server/api/endpoint.h"
#include "server/api/field_readers.h"
#include "server/api/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY_MAX = 64 << 20, VOCAB = 1000 };

static void check_error(const ApiError *error) {
    CHECK(error->status >= 400 && error->status < 500);
    CHECK(error->message[0] && error->type);
    Arena arena = {.limit = MEMORY_MAX};
    Buffer out = {0};
    Error why = {0};
    api_write_error(&out, error);
    CHECK(!out.failed && json_parse(&arena, buffer_view(&out), &why));
    buffer_free(&out);
    arena_free(&arena);
}

static void check_sampling(const ChatRequest *request) {
    const SamplingOptions *s = &request->generation.request.sampling;
    CHECK(s->temperature >= 0 && s->temperature <= 2);
    CHECK(s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0);
    CHECK(s->repetition_penalty > 0 && s->repetition_penalty <= 2);
    CHECK(fabsf(s->frequency_penalty) <= 2 && fabsf(s->presence_penalty) <= 2);
    CHECK(s->logprobs >= -1 && s->logprobs <= LOGPROBS_TOP_MAX);
    CHECK(s->bias_count >= 0 && s->bias_count <= LOGIT_BIAS_MAX);
    for (int i = 0; i < s->bias_count; i++) {
        CHECK(s->bias_ids[i] >= 0 && s->bias_ids[i] < VOCAB);
        CHECK(fabsf(s->bias_values[i]) <= 100);
    }
}

static void check_request(const ChatRequest *request) {
    CHECK(request->model.data && request->generation.request.choices >= 1 &&
        request->generation.request.choices <= CHOICES_MAX);
    CHECK(request->generation.request.max_tokens >= -1);
    CHECK(request->generation.stop_count >= 0 && request->generation.stop_count <= STOP_STRINGS_MAX);
    for (int i = 0; i < request->generation.stop_count; i++) {
        CHECK(request->stops[i].size > 0 && request->stops[i].size <= STOP_STRING_BYTES_MAX);
        CHECK(utf8_valid(request->stops[i]));
    }
    check_sampling(request);
}

static void check_messages(const ChatRequest *request) {
    CHECK(request->chat.message_count > 0);
    for (size_t i = 0; i < request->chat.message_count; i++) {
        const ChatMessage *message = &request->chat.messages[i];
        CHECK(message->role && message->role[0] && message->part_count > 0);
        CHECK(!message->name.data || utf8_valid(message->name));
        for (size_t k = 0; k < message->part_count; k++) {
            const ContentPart *part = &message->parts[k];
            if (part->kind == CONTENT_TOOL_CALL)
                CHECK(part->call.name.data && part->call.id.data && part->call.arguments.size > 0);
            else
                CHECK(part->text.data && utf8_valid(part->text));
        }
    }
}

static ChatRequest defaults(Arena *arena) { return request_init(arena, VOCAB); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena arena = {.limit = MEMORY_MAX};
    Error why = {0};
    const Json *body = json_parse(&arena, (Slice){(const char *)data, size}, &why);
    if (body && body->type == JSON_OBJECT) {
        ChatRequest chat = defaults(&arena), completion = defaults(&arena);
        ApiError error = {0};
        if (request_read_chat(&chat, body, &error)) {
            CHECK(error.status == 0);
            check_request(&chat);
            check_messages(&chat);
        } else {
            check_error(&error);
        }
        const Endpoint *adapters[] = {
            &endpoint_messages, &endpoint_responses, &endpoint_ollama_chat, &endpoint_ollama_generate};
        for (size_t i = 0; i < COUNT_OF(adapters); i++) {
            ChatRequest request = defaults(&arena);
            error = (ApiError){0};
            if (adapters[i]->read(&request, body, &error)) {
                CHECK(error.status == 0);
                check_request(&request);
                check_messages(&request);
            } else {
                check_error(&error);
            }
        }
        error = (ApiError){0};
        if (request_read_completion(&completion, body, &error)) {
            CHECK(error.status == 0 && completion.prompt && completion.generation.request.max_tokens >= 0);
            check_request(&completion);
        } else {
            check_error(&error);
        }
    }
    arena_free(&arena);
    return 0;
}
