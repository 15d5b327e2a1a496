/* A model for tests of what is above the engine: the fake model, whose steps can be held, with a small tokenizer and
 * template in a directory of their own. The vocabulary is printable ASCII, a line end, the two bytes of "é" and two
 * control tokens. */
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "chat/chat_model.h"
#include "engine/fake_model.h"

enum { CHAT_ASCII = 95, CHAT_NEWLINE = CHAT_ASCII, CHAT_E1, CHAT_E2, CHAT_START, CHAT_END, CHAT_VOCAB };

#define CHAT_TEMPLATE                                                                                                  \
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' }}{% if m.name %}{{ m.name + ': ' }}{% endif %}"           \
    "{{ m.content + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}" \
    "{% if mood %}{{ mood.kind }}{{ mood.words | join(',') }}{% endif %}{{ eos_token }}"

typedef struct ChatFixture {
    char directory[64];
} ChatFixture;

/* ---- what chat/ asks of a model beside what the engine does ---- */

const Json *model_generation_config(const Model *model) { return NULL; }

static inline void chat_write(const ChatFixture *fixture, const char *name, Buffer *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fixture->directory, name);
    FILE *file = fopen(path, "w");
    CHECK(file && !text->failed && fwrite(text->data, 1, text->size, file) == text->size && fclose(file) == 0);
    buffer_free(text);
}

static inline void chat_fixture_open(ChatFixture *fixture, bool template) {
    snprintf(fixture->directory, sizeof fixture->directory, "/tmp/apus-chat-XXXXXX");
    CHECK(mkdtemp(fixture->directory) != NULL);
    fake_reset();
    fake.vocab = CHAT_VOCAB;
    fake.eos = CHAT_END;
    fake.eos_logit = -1000; /* an answer ends where it is told to */
    Buffer json = {0};
    buffer_text(&json, "{\"added_tokens\":[");
    for (int i = 0; i < 2; i++)
        buffer_printf(&json,
            "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
            "\"normalized\":false}",
            i ? "," : "", CHAT_START + i, i ? "<|end|>" : "<|start|>");
    buffer_text(&json,
        "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < CHAT_ASCII; i++) {
        const char text[2] = {(char)(' ' + i), 0};
        json_write_string(&json, i ? slice_of(text) : SLICE("\xC4\xA0"));
        buffer_printf(&json, ":%d,", i);
    }
    buffer_printf(&json, "\"\xC4\x8A\":%d,\"\xC3\x83\":%d,\"\xC2\xA9\":%d}}}", CHAT_NEWLINE, CHAT_E1, CHAT_E2);
    chat_write(fixture, "tokenizer.json", &json);
    buffer_text(&json, "{\"eos_token\":\"<|end|>\"");
    if (template) {
        buffer_text(&json, ",\"chat_template\":");
        json_write_string(&json, slice_of(CHAT_TEMPLATE));
    }
    buffer_byte(&json, '}');
    chat_write(fixture, "tokenizer_config.json", &json);
}

static inline void chat_fixture_close(ChatFixture *fixture) {
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", fixture->directory);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", fixture->directory);
    unlink(path);
    rmdir(fixture->directory);
}

static inline EngineOptions chat_engine_options(const ChatFixture *fixture, int slots, int queue_max) {
    return (EngineOptions){.directory = fixture->directory,
        .slots = slots,
        .queue_max = queue_max,
        .prefill_size = 64,
        .kv_bytes = (size_t)FAKE_PAGES * FAKE_PAGE_BYTES};
}

static inline ChatModel *chat_open(const ChatFixture *fixture, int slots, int queue_max) {
    Error error = {0};
    const EngineOptions options = chat_engine_options(fixture, slots, queue_max);
    ChatModel *model = chat_model_open("fake", &options, &error);
    if (!model) fprintf(stderr, "%s\n", error.text);
    CHECK(model != NULL);
    return model;
}
